//! `fixture-threaded`'s lines.

use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use crate::timeline::read_lines;

/// `[before, after, result]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct SocketCall {
    pub before: u64,
    pub after: u64,
    pub result: i64,
}

/// `[name, before, after, ret, count, arg, stream, [[before, after], …]]`.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct DriverCall {
    pub name: String,
    pub before: u64,
    pub after: u64,
    pub ret: i64,
    pub count: u64,
    pub arg: u64,
    pub stream: u64,
    #[serde(default)]
    pub pairs: Vec<(u64, u64)>,
}

impl DriverCall {
    /// The name as in `cuda.h`, without version and stream-mode suffixes.
    pub fn base_name(&self) -> &str {
        base_name(&self.name)
    }
}

/// A driver function's name without the suffixes that a symbol may carry.
pub fn base_name(name: &str) -> &str {
    let mut base = name;
    for suffix in ["_ptsz", "_ptds", "_v2", "_v3", "_v4"] {
        base = base.strip_suffix(suffix).unwrap_or(base);
    }
    base
}

/// A line of any kind; which fields are there is a matter of `t`.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct Line {
    pub t: String,
    #[serde(default)]
    pub pid: u32,
    #[serde(default)]
    pub tid: u32,
    #[serde(default)]
    pub conn: u64,
    #[serde(default)]
    pub peer_port: u16,
    #[serde(default)]
    pub seq: u64,
    #[serde(default)]
    pub rid: String,
    #[serde(default)]
    pub method: String,
    #[serde(default)]
    pub path: String,
    #[serde(default)]
    pub plan: String,
    #[serde(default)]
    pub status: u16,
    #[serde(default)]
    pub request_bytes: u64,
    #[serde(default)]
    pub response_bytes: u64,
    #[serde(default)]
    pub read: Vec<SocketCall>,
    #[serde(default)]
    pub interim: Vec<SocketCall>,
    #[serde(default)]
    pub write: Vec<SocketCall>,
    #[serde(default)]
    pub close: Vec<SocketCall>,
    #[serde(default)]
    pub cuda: Vec<DriverCall>,
}

impl Line {
    /// Whether it is about a request that was answered.
    pub fn is_request(&self) -> bool {
        self.t == "request"
    }

    /// Launches that ran: those under capture are recorded, not run, and failed ones do not run.
    pub fn launches(&self) -> u64 {
        self.ran().filter(|call| is_launch(&call.name)).map(|call| call.count).sum()
    }

    /// Driver calls that had work done, without those under capture.
    pub fn ran(&self) -> impl Iterator<Item = &DriverCall> {
        let mut capturing = false;
        self.cuda.iter().filter(move |call| {
            match call.base_name() {
                "cuStreamBeginCapture" => capturing = true,
                "cuStreamEndCapture" => capturing = false,
                _ => {}
            }
            !capturing && call.ret == 0
        })
    }

    /// Bytes of copies whose function's name begins with `prefix`.
    pub fn copied(&self, prefix: &str) -> u64 {
        self.ran().filter(|call| call.name.starts_with(prefix)).map(|call| call.arg).sum()
    }

    /// Graphs launched.
    pub fn graph_launches(&self) -> u64 {
        self.ran().filter(|call| call.base_name() == "cuGraphLaunch").map(|call| call.count).sum()
    }
}

/// Whether the function launches a kernel.
pub fn is_launch(name: &str) -> bool {
    matches!(base_name(name), "cuLaunchKernel" | "cuLaunchKernelEx" | "cuLaunchCooperativeKernel")
}

/// Reads the file of a server that has ended.
///
/// # Errors
/// Where it is not as described.
pub fn read(file: &Path) -> Result<Vec<Line>> {
    read_lines(file)
}
