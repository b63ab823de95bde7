//! The simulated driver's lines: what ran on the device, and when.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// An operation that ran.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "tests/cudasim describes them")]
pub struct SimOp {
    pub id: u64,
    pub kind: String,
    pub pid: u32,
    pub tid: u32,
    pub stream: u64,
    pub enqueue_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub bytes: u64,
    #[serde(default)]
    pub graph: u64,
}

/// A call of an exported function, stamped inside the driver: between the caller's own stamps.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "tests/cudasim describes them")]
pub struct SimCall {
    pub api: String,
    pub pid: u32,
    pub tid: u32,
    pub enter_ns: u64,
    pub exit_ns: u64,
    pub ret: u64,
}

#[derive(Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
enum Line {
    Op(SimOp),
    Call(SimCall),
    #[serde(other)]
    Other,
}

/// Everything that the driver wrote down.
#[derive(Debug, Clone, Default)]
pub struct Sim {
    /// Operations that a program enqueued: graphs as a whole, not their parts.
    pub ops: Vec<SimOp>,
    /// Kernels that a launch of a graph ran, by process and the launch's id.
    pub graph_kernels: HashMap<(u32, u64), u64>,
    /// Calls.
    pub calls: Vec<SimCall>,
}

impl Sim {
    /// Reads the file of a process that has ended.
    ///
    /// # Errors
    /// Where it is not as described.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::File::open(file).with_context(|| file.display().to_string())?;
        let mut sim = Self::default();
        for line in BufReader::new(text).lines() {
            let line = line?;
            let parsed = serde_json::from_str(&line)
                .with_context(|| format!("{}: {line}", file.display()))?;
            match parsed {
                Line::Op(op) if op.kind == "graph" || op.graph == 0 => sim.ops.push(op),
                Line::Op(op) if op.kind == "kernel" => {
                    *sim.graph_kernels.entry((op.pid, op.graph)).or_default() += 1;
                }
                Line::Op(_) | Line::Other => {}
                Line::Call(call) => sim.calls.push(call),
            }
        }
        sim.ops.sort_by_key(|op| (op.pid, op.tid, op.enqueue_ns, op.id));
        sim.calls.sort_by_key(|call| (call.pid, call.tid, call.enter_ns));
        Ok(sim)
    }
}
