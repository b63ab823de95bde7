//! The Python servers' lines. Their stamps lie beside Python calls: they trail the system calls.

use serde::Deserialize;

/// A request, as the application saw it.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct PythonRequest {
    pub pid: u32,
    pub tid: u32,
    pub rid: String,
    pub method: String,
    pub path: String,
    pub peer_port: u16,
    pub begin: u64,
    pub end: u64,
    pub status: u16,
    pub steps: Vec<PythonStep>,
    pub chunks: Vec<u64>,
}

/// `[tid, before, after, launches]`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct PythonStep {
    pub tid: u32,
    pub before: u64,
    pub after: u64,
    pub launches: u64,
}
