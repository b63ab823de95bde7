//! The clients' lines: those of `fixture-client`, and of `openai_client.py`.

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
    /// Around the making of its connection, where it was the first request of it.
    #[serde(default)]
    pub connect: Option<(u64, u64)>,
    #[serde(default)]
    pub chunks: Vec<u64>,
    #[serde(default)]
    pub tokens: u64,
    #[serde(default)]
    pub stall: bool,
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
