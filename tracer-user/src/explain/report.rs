//! The answer to why it is slow, as it is told: in the order of a runbook.

use serde::{Deserialize, Serialize};

use crate::{
    export::health::Health,
    happening::Happening,
    nvml::Gpu,
    timeline::model::{Now, Timeline},
};

/// Version of the shape.
pub const SCHEMA: u32 = 1;

/// What the agent knows beside the recorder.
#[derive(Clone, Debug, Default)]
pub struct State<'a> {
    /// Now, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, ns.
    pub realtime_offset_ns: i64,
    /// Requests that are open.
    pub open: &'a [Timeline],
    /// What the GPUs said last.
    pub gpus: &'a [Gpu],
    /// What was lost and could not be seen.
    pub health: Option<&'a Health>,
    /// Tracing is paused.
    pub paused: bool,
    /// What is left out to keep to the cost budget, in words.
    pub left_out: Option<&'static str>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Now, ns since the Unix epoch.
    pub now_unix_ns: u64,
    /// The window that was asked for, ns.
    pub since_ns: u64,
    /// How much of it is known, ns.
    pub known_ns: u64,
    /// *Now* is the last so much of it, ns; *before* is the rest.
    pub recent_ns: u64,
    /// What stands out, a sentence each, the gravest first.
    pub answer: Vec<String>,
    /// What was asked of whom, how often, how long it took and where that time went.
    pub traffic: Traffic,
    /// The GPU.
    pub gpu: GpuWhy,
    /// What is under way.
    pub queue: QueueWhy,
    /// What happened beside the requests, the last first.
    pub events: Vec<Happening>,
    /// What the tracer itself could not see.
    pub tracer: TracerWhy,
}

/// Requests that ended, by route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// The routes that took most time now first.
    pub routes: Vec<RouteWhy>,
    /// Further ones.
    pub routes_left_out: usize,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteWhy {
    /// Name of the process's executable.
    pub service: String,
    /// Method and route.
    pub route: String,
    /// Now.
    pub now: Figures,
    /// Before.
    pub before: Figures,
    /// The phase in which the slow requests spend most beyond its median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PhaseWhy>,
    /// Where the time goes, the most first.
    pub shares: Vec<Share>,
    /// The slowest requests of the window.
    pub slowest: Vec<Slow>,
}

/// Figures of a route over a stretch of time. Percentiles are those of a fair sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests that ended.
    pub requests: u64,
    /// The same per second.
    pub per_second: f64,
    /// Those that failed or went away.
    pub errors: u64,
    /// Those of which something is missing.
    pub incomplete: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 95th percentile, ns.
    pub p95_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// Median of the requests' bytes, heads included.
    pub request_bytes_p50: u64,
}

/// The phase with the largest excess over its own median.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseWhy {
    /// Its name.
    pub phase: String,
    /// Mean time in it of the slowest twentieth now, ns.
    pub slow_ns: u64,
    /// Its median before (now, where there is no before), ns.
    pub median_ns: u64,
    /// The difference, ns.
    pub excess_ns: u64,
    /// That, as a part of the excesses of all phases, 0 to 1.
    pub share: f64,
}

/// A phase's part of the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Its name.
    pub phase: String,
    /// Now, 0 to 1.
    pub now: f64,
    /// Before, 0 to 1.
    pub before: f64,
}

/// A slow request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// Its trace.
    pub trace_id: String,
    /// Its start, ns since the Unix epoch.
    pub start_unix_ns: u64,
    /// How long it took, ns.
    pub duration_ns: u64,
    /// The phase that took most of it.
    pub phase: String,
}

impl Slow {
    pub(super) fn of(timeline: &Timeline) -> Self {
        let longest = timeline.phases.iter().max_by_key(|phase| phase.duration_ns);
        Self {
            trace_id: timeline.trace_id.to_string(),
            start_unix_ns: timeline.start_unix_ns,
            duration_ns: timeline.duration_ns,
            phase: longest.map_or("", |phase| phase.phase.as_str()).to_owned(),
        }
    }
}

/// The GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuWhy {
    /// Calls of the driver that failed, now and before.
    pub failed_calls: (u64, u64),
    /// Readings of the device, a sentence each; empty where none are taken.
    pub readings: Vec<String>,
}

/// What is under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueWhy {
    /// Requests that are open.
    pub open: usize,
    /// Those of them that wait for their turn: not accepted, not read, or behind others.
    pub waiting: usize,
    /// The oldest first, a few.
    pub oldest: Vec<OpenWhy>,
}

/// An open request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenWhy {
    /// Its trace.
    pub trace_id: String,
    /// Name of the process's executable.
    pub service: String,
    /// Process.
    pub pid: u32,
    /// Method and route.
    pub route: String,
    /// Its age, ns.
    pub age_ns: u64,
    /// The phase that it is in.
    pub phase: String,
    /// What the thread that carries it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Now>,
}

/// The tracer's own sight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TracerWhy {
    /// Tracing is paused.
    pub paused: bool,
    /// What is left out to keep to the cost budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// Events taken in since the start.
    pub events_seen: u64,
    /// Events lost since the start, by place.
    pub events_lost: Vec<(String, u64)>,
    /// Timelines of the window, and those of them that miss something.
    pub timelines: u64,
    /// As above.
    pub incomplete: u64,
    /// Anything else that the reader has to know.
    pub notes: Vec<String>,
}
