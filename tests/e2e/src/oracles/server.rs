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

/// `[name, before, after]`.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct HostSpan {
    pub name: String,
    pub before: u64,
    pub after: u64,
}

/// `[handed, worker, begin, end]`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[allow(missing_docs, reason = "tests/servers/README.md describes them")]
pub struct Hand {
    pub handed: u64,
    pub worker: u32,
    pub begin: u64,
    pub end: u64,
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
    pub host: Vec<HostSpan>,
    #[serde(default)]
    pub hands: Vec<Hand>,
    #[serde(default)]
    pub cuda: Vec<DriverCall>,
    #[serde(default)]
    pub loop_tid: u32,
    #[serde(default)]
    pub read_tids: Vec<u32>,
    #[serde(default)]
    pub write_tids: Vec<u32>,
    #[serde(default)]
    pub cuda_tids: Vec<u32>,
    #[serde(default)]
    pub work_pid: u32,
}

impl Line {
    /// Whether it is about a request that was answered.
    pub fn is_request(&self) -> bool {
        self.t == "request"
    }

    /// Its calls on the socket, with the threads that made them.
    pub fn socket_calls(&self) -> impl Iterator<Item = (u32, &SocketCall)> {
        // The thread that reads a request asks for its body.
        let reader = if self.loop_tid == 0 { self.tid } else { self.loop_tid };
        with_threads(&self.read, &self.read_tids, reader)
            .chain(with_threads(&self.interim, &[], reader))
            .chain(with_threads(&self.write, &self.write_tids, self.tid))
    }

    /// The process that made its driver calls.
    pub fn driver_pid(&self) -> u32 {
        if self.work_pid == 0 { self.pid } else { self.work_pid }
    }

    /// Its driver calls, with the threads that made them.
    pub fn driver_calls(&self) -> impl Iterator<Item = (u32, &DriverCall)> {
        with_threads(&self.cuda, &self.cuda_tids, self.tid)
    }

    /// Stretches of work on the host with this name, as instants.
    pub fn host_spans(&self, name: &str) -> Vec<(u64, u64)> {
        let spans = self.host.iter().filter(|span| span.name == name);
        spans.map(|span| (span.before, span.after)).collect()
    }

    /// Stretches between a hand-off and its taking by a worker, as instants.
    pub fn queued(&self) -> Vec<(u64, u64)> {
        self.hands.iter().map(|hand| (hand.handed, hand.begin)).collect()
    }

    /// CPU time that its plan takes on the thread that carries it out, ns.
    pub fn cpu_ns(&self) -> u64 {
        let items = self.plan.split(',').filter_map(|item| item.split_once(':'));
        let cpu = items.filter(|(name, _)| matches!(*name, "spin" | "lock"));
        cpu.filter_map(|(_, ns)| ns.parse::<u64>().ok()).sum()
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

/// Entries with the threads that a list beside them names; `all` where it names none.
fn with_threads<'a, T>(
    entries: &'a [T],
    tids: &'a [u32],
    all: u32,
) -> impl Iterator<Item = (u32, &'a T)> {
    entries.iter().enumerate().map(move |(at, entry)| (tids.get(at).copied().unwrap_or(all), entry))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(more: &serde_json::Value) -> Line {
        let mut line = serde_json::json!({
            "t": "request", "pid": 1, "tid": 2, "plan": "spin:5,dep:7,lock:11,k:2:3,sync:stream",
            "read": [[1, 2, 3]], "interim": [[4, 5, 6]], "write": [[7, 8, 9]],
            "host": [["dep", 20, 30], ["lock", 40, 50], ["hold", 50, 60]],
            "cuda": [["cuLaunchKernel", 10, 11, 0, 1, 5, 1]]
        });
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(line).unwrap()
    }

    fn threads(line: &Line) -> Vec<u32> {
        line.socket_calls().map(|(tid, _)| tid).collect()
    }

    #[test]
    fn calls_belong_to_the_one_thread_or_to_those_named() {
        let alone = line(&serde_json::json!({}));
        assert_eq!(threads(&alone), [2, 2, 2]);
        assert_eq!(alone.driver_calls().next().unwrap().0, 2);
        let handed = line(&serde_json::json!({
            "loop_tid": 9, "read_tids": [9], "write_tids": [8], "cuda_tids": [7],
            "hands": [[100, 7, 130, 200]]
        }));
        assert_eq!(threads(&handed), [9, 9, 8]);
        assert_eq!(handed.driver_calls().next().unwrap().0, 7);
        assert_eq!(handed.queued(), [(100, 130)]);
    }

    #[test]
    fn what_a_plan_takes() {
        let line = line(&serde_json::json!({}));
        assert_eq!(line.cpu_ns(), 16);
        assert_eq!(line.host_spans("dep"), [(20, 30)]);
        assert_eq!(line.host_spans("lock"), [(40, 50)]);
    }
}
