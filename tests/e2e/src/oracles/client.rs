//! `fixture-client`'s lines.

use serde::Deserialize;

/// One request, as its client saw it. Times are ns of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct ClientRequest {
    pub tid: u32,
    pub local_port: u16,
    pub seq: u64,
    pub rid: String,
    pub send_before: u64,
    pub send_after: u64,
    pub sends: u64,
    pub sent: u64,
    pub first_byte: u64,
    pub last_byte: u64,
    pub status: u16,
    pub bytes_in: u64,
    pub body_hash: String,
    pub raw_hash: String,
    pub error: Option<String>,
    #[serde(default)]
    pub chunk_count: u64,
    #[serde(default)]
    stall: Stall,
}

/// `true`, or which of the two kinds of stalled requests it is.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Stall {
    Whether(bool),
    Which(u8),
}

impl Default for Stall {
    fn default() -> Self {
        Self::Whether(false)
    }
}

impl ClientRequest {
    /// Which stall was asked for with this request: 0 none, 1 the first, 2 the second.
    pub fn stall(&self) -> u8 {
        match self.stall {
            Stall::Whether(stalled) => stalled.into(),
            Stall::Which(which) => which,
        }
    }
}

/// The last line of its standard output.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct Summary {
    pub requests: u64,
    pub errors: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub rps: f64,
    pub seconds: f64,
    pub first_error: Option<String>,
}
