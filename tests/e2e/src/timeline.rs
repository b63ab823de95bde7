//! A timeline as it stands in a JSON line: read by its documented shape, not by spanprobe's types.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// The fields of a timeline that are judged.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "docs/timeline.md describes them")]
pub struct Timeline {
    pub trace_id: String,
    pub span_id: String,
    #[serde(default)]
    pub parent_span_id: Option<String>,
    pub service: String,
    pub pid: u32,
    #[serde(default)]
    pub container: Option<String>,
    #[serde(default)]
    pub pod: Option<String>,
    pub protocol: String,
    pub method: String,
    pub route: String,
    #[serde(default)]
    pub status: Option<u16>,
    #[serde(default)]
    pub outcome: Option<String>,
    #[serde(default)]
    pub open: bool,
    pub peer: String,
    pub arrival: String,
    pub start_monotonic_ns: u64,
    pub duration_ns: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub phases: Vec<Phase>,
    #[serde(default)]
    pub chunks: Option<Chunks>,
    pub links: Vec<Link>,
    #[serde(default)]
    pub gpu: Option<GpuSummary>,
    #[serde(default)]
    pub nvml: Option<BTreeMap<String, Reading>>,
    pub complete: bool,
    #[serde(default)]
    pub incomplete: Vec<String>,
    #[serde(default)]
    pub now: Option<Now>,
}

/// What the thread that carries an open request is in.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "docs/timeline.md describes them")]
pub struct Now {
    pub tid: u32,
    pub state: String,
    #[serde(default)]
    pub call: String,
    #[serde(default)]
    pub for_ns: Option<u64>,
    #[serde(default)]
    pub detail: String,
    pub confidence: f64,
}

/// What the GPU said of itself: a value or a state, and how old it was.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "docs/nvml.md describes them")]
pub struct Reading {
    #[serde(default)]
    pub value: Option<u64>,
    #[serde(default)]
    pub state: Option<String>,
    pub age_ns: u64,
}

/// A phase.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "docs/timeline.md describes them")]
pub struct Phase {
    pub phase: String,
    pub offset_ns: u64,
    pub duration_ns: u64,
    pub method: String,
    pub lower_ns: u64,
    pub upper_ns: u64,
    #[serde(default)]
    pub detail: Option<String>,
}

/// Chunks of a streamed response.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "docs/timeline.md describes them")]
pub struct Chunks {
    pub count: u64,
    pub first_offset_ns: u64,
    pub gaps_ns: Gaps,
}

/// Gaps between chunks.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "docs/timeline.md describes them")]
pub struct Gaps {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// A link to a GPU step.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "docs/timeline.md describes them")]
pub struct Link {
    pub step_id: u64,
    pub evidence: String,
    pub confidence: f64,
    pub share: f64,
}

/// GPU work of a request.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "docs/timeline.md describes them")]
pub struct GpuSummary {
    #[serde(default)]
    pub device: Option<String>,
    pub step_count: u32,
    pub busy_lower_ns: u64,
    pub busy_upper_ns: u64,
    pub h2d_bytes: u64,
    pub d2h_bytes: u64,
    pub launches: u64,
    pub graph_launches: u64,
    #[serde(default)]
    pub graph_opaque: u64,
    #[serde(default)]
    pub graph_kernels: u64,
}

/// The phases that name GPU work.
pub const GPU_PHASES: [&str; 4] = ["h2d", "kernel", "d2h", "gpu"];

impl Timeline {
    /// Port of the other end.
    pub fn peer_port(&self) -> Option<u16> {
        self.peer.rsplit(':').next()?.parse().ok()
    }

    /// When it ended, ns of `CLOCK_MONOTONIC`.
    pub fn end_ns(&self) -> u64 {
        self.start_monotonic_ns + self.duration_ns
    }

    /// Whether some phase names GPU work.
    pub fn has_gpu_phase(&self) -> bool {
        self.phases.iter().any(|phase| GPU_PHASES.contains(&phase.phase.as_str()))
    }

    /// Time in phases of this name, ns.
    pub fn time_in(&self, name: &str) -> u64 {
        self.phases.iter().filter(|phase| phase.phase == name).map(|phase| phase.duration_ns).sum()
    }
}

/// Reads JSON lines.
///
/// # Errors
/// Where a line is none.
pub fn parse_lines<T: serde::de::DeserializeOwned>(text: &str) -> Result<Vec<T>> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).with_context(|| format!("not as expected: {line}")))
        .collect()
}

/// Reads a file of JSON lines.
///
/// # Errors
/// Where there is none, or a line is not as expected.
pub fn read_lines<T: serde::de::DeserializeOwned>(file: &Path) -> Result<Vec<T>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    parse_lines(&text).with_context(|| file.display().to_string())
}

/// A timeline with these phases one after the other, and these links (step, evidence, confidence).
#[cfg(test)]
pub fn made(start: u64, phases: &[(&str, u64)], links: &[(u64, &str, f64)]) -> Timeline {
    let mut duration = 0;
    let mut tiles = Vec::new();
    for (name, ns) in phases {
        tiles.push(serde_json::json!({
            "phase": name, "offset_ns": duration, "duration_ns": ns, "method": "observed",
            "lower_ns": 0, "upper_ns": 0
        }));
        duration += ns;
    }
    let links: Vec<_> = links
        .iter()
        .map(|(step_id, evidence, confidence)| {
            serde_json::json!({
                "step_id": step_id, "evidence": evidence, "confidence": confidence, "share": 1.0
            })
        })
        .collect();
    serde_json::from_value(serde_json::json!({
        "trace_id": "", "span_id": "", "service": "", "pid": 1, "protocol": "http/1.1",
        "method": "GET", "route": "/", "peer": "", "arrival": "socket",
        "start_monotonic_ns": start, "duration_ns": duration, "request_bytes": 0,
        "response_bytes": 0, "phases": tiles, "links": links, "complete": true
    }))
    .unwrap()
}
