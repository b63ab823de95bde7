//! A timeline: the answer for one request, in the shape that every exporter writes.

use std::{borrow::Cow, net::SocketAddr};

use compact_str::CompactString;
use serde::{Deserialize, Serialize, Serializer};

pub use super::ids::{SpanId, TraceId};
use crate::nvml::Joined;
pub use crate::stream::Outcome;

/// Version of the JSON shape.
pub const SCHEMA: u32 = 1;

/// Where a request's time went. `phases` tile `[0, duration_ns]`: sorted, without gap or overlap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The incoming `traceparent`'s, where there was one.
    pub trace_id: TraceId,
    /// The request's own.
    pub span_id: SpanId,
    /// The incoming `traceparent`'s span, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<SpanId>,
    /// Name of the process's executable.
    pub service: CompactString,
    /// Process that answered.
    pub pid: u32,
    /// Its container: the id, or the name where the runtime uses that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Uid of its Kubernetes pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// `http/1.1`, `http/1.0`.
    pub protocol: &'static str,
    /// HTTP method, `?` where the request's head was not seen.
    pub method: CompactString,
    /// Path without query, `?` where it was not seen.
    pub route: CompactString,
    /// HTTP status, where a response was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How it ended; left out while it is open, and where that was not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The request is not answered yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// The other end of the connection: in JSON `address:port`, empty where unknown.
    #[serde(serialize_with = "text_or_empty")]
    pub peer: Option<SocketAddr>,
    /// How the start is known.
    pub arrival: Arrival,
    /// Start, ns since the Unix epoch.
    pub start_unix_ns: u64,
    /// Start, ns of `CLOCK_MONOTONIC`.
    pub start_monotonic_ns: u64,
    /// Start to the exit of the last write of the response (to now, while it is open), ns.
    pub duration_ns: u64,
    /// While it is open: what the thread that carries it is in, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Now>,
    /// Bytes of the request, head included.
    pub request_bytes: u64,
    /// Bytes of the response, head included.
    pub response_bytes: u64,
    /// Where the time went.
    pub phases: Vec<Phase>,
    /// Chunks of a streamed response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Chunks>,
    /// GPU steps that this request waited for.
    pub links: Vec<Link>,
    /// Its GPU work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSummary>,
    /// What the GPU that its process uses said of itself, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml: Option<Joined>,
    /// Round-trip time of the connection when the request arrived, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_rtt_ns: Option<u64>,
    /// Segments that this host sent again on the connection meanwhile.
    pub tcp_retransmits: u32,
    /// Nothing is known to be missing.
    pub complete: bool,
    /// What is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<&'static str>,
}

impl Timeline {
    /// Time in each phase that it has, ns, in the order of [`PhaseName::ALL`].
    pub fn by_phase(&self) -> impl Iterator<Item = (PhaseName, u64)> {
        PhaseName::ALL.into_iter().zip(phase_sums(&self.phases)).filter(|(_, ns)| *ns > 0)
    }

    /// When its GPU time ended, or, where it has none, the request, ns of `CLOCK_MONOTONIC`.
    pub fn gpu_end_ns(&self) -> u64 {
        let last = self.phases.iter().rfind(|phase| phase.phase.is_gpu());
        let end = last
            .map_or(self.duration_ns, |phase| phase.offset_ns.saturating_add(phase.duration_ns));
        self.start_monotonic_ns.saturating_add(end)
    }
}

/// What the thread that carries an open request was in when it was last looked at, about a second
/// ago at most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// The thread.
    pub tid: u32,
    /// Whether it ran: `running`, `runnable`, `blocked`, `disk`, `stopped`, `ended`.
    pub state: String,
    /// The function of the CUDA driver that it was in, or else the system call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub call: String,
    /// For how long it had been in that call (off the processor, where the entry was not seen), ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// What it waited for, in words; empty where there is nothing to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// How certain it is that this thread carries the request: 0 to 1, 0.9 and more is claimed.
    pub confidence: f64,
}

/// How the start of a request is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// Its bytes were seen to reach the socket.
    Socket,
    /// Only the server's read was seen.
    Read,
}

/// Names of phases, in the order of precedence of `docs/timeline.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseName {
    /// Bytes have arrived on a connection that is not accepted yet.
    AcceptQueue,
    /// Bytes lie in the socket, not read yet.
    SocketWait,
    /// From the first to the last byte read.
    Receive,
    /// The request's thread, or the event loop that owns its socket, was serving something else.
    ThreadBusy,
    /// Waiting behind other requests, for a worker, or for a batch to form.
    Queue,
    /// Running on behalf of the request.
    Cpu,
    /// Could run, but had no core.
    RunQueue,
    /// Waiting for a copy to the device.
    H2d,
    /// Waiting for kernels.
    Kernel,
    /// Waiting for a copy from the device.
    D2h,
    /// Waiting for GPU work whose parts no fact separates.
    Gpu,
    /// Allocating device memory, loading modules.
    Alloc,
    /// Waiting for the answer to a request that the server made of another.
    Dependency,
    /// Waiting for a lock that somebody else held.
    Lock,
    /// Waiting for a disk, or for a page of memory.
    Io,
    /// Writing the response: from the first byte's write to the last byte's.
    Send,
    /// Nothing seen says what happened.
    Unattributed,
}

impl PhaseName {
    /// Every name, in display order, which is that of their declaration.
    pub const ALL: [Self; 17] = [
        Self::AcceptQueue,
        Self::SocketWait,
        Self::Receive,
        Self::ThreadBusy,
        Self::Queue,
        Self::Cpu,
        Self::RunQueue,
        Self::H2d,
        Self::Kernel,
        Self::D2h,
        Self::Gpu,
        Self::Alloc,
        Self::Dependency,
        Self::Lock,
        Self::Io,
        Self::Send,
        Self::Unattributed,
    ];

    /// Whether it is time that the GPU is waited for.
    pub fn is_gpu(self) -> bool {
        matches!(self, Self::H2d | Self::Kernel | Self::D2h | Self::Gpu)
    }

    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AcceptQueue => "accept-queue",
            Self::SocketWait => "socket-wait",
            Self::Receive => "receive",
            Self::ThreadBusy => "thread-busy",
            Self::Queue => "queue",
            Self::Cpu => "cpu",
            Self::RunQueue => "run-queue",
            Self::H2d => "h2d",
            Self::Kernel => "kernel",
            Self::D2h => "d2h",
            Self::Gpu => "gpu",
            Self::Alloc => "alloc",
            Self::Dependency => "dependency",
            Self::Lock => "lock",
            Self::Io => "io",
            Self::Send => "send",
            Self::Unattributed => "unattributed",
        }
    }
}

/// How a number is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Both ends are events.
    Observed,
    /// A blocking call was measured.
    Direct,
    /// Bounded by its enqueue and by the completion fact that covers it.
    SyncBounded,
    /// The application's own `cuEventElapsedTime`.
    EventElapsed,
    /// Estimated.
    Estimated,
    /// An end lies where bytes were not captured.
    Inferred,
}

impl Method {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observed => "observed",
            Self::Direct => "direct",
            Self::SyncBounded => "sync-bounded",
            Self::EventElapsed => "event-elapsed",
            Self::Estimated => "estimated",
            Self::Inferred => "inferred",
        }
    }
}

/// Time in each phase, ns, in the order of [`PhaseName::ALL`].
pub fn phase_sums<'a>(phases: impl IntoIterator<Item = &'a Phase>) -> [u64; PhaseName::ALL.len()] {
    let mut sums = [0_u64; PhaseName::ALL.len()];
    for phase in phases {
        if let Some(sum) = sums.get_mut(phase.phase as usize) {
            *sum = sum.saturating_add(phase.duration_ns);
        }
    }
    sums
}

/// One phase of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// Its name.
    pub phase: PhaseName,
    /// From the request's start, ns.
    pub offset_ns: u64,
    /// Length, ns.
    pub duration_ns: u64,
    /// How it is known.
    pub method: Method,
    /// Least GPU time that the facts allow in it (for other phases: its length), ns.
    pub lower_ns: u64,
    /// Most GPU time that the facts allow in it (for other phases: its length), ns.
    pub upper_ns: u64,
    /// More, in words; empty where there is nothing to say.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub detail: Cow<'static, str>,
}

/// Chunks of a streamed response. A chunk is never called a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// How many.
    pub count: u64,
    /// From the request's start to the write of the first, ns.
    pub first_offset_ns: u64,
    /// From the request's start to the write of each, ns; of the first 4,096. Not in the JSON.
    #[serde(skip)]
    pub offsets_ns: Vec<u64>,
    /// Gaps between them, ns.
    pub gaps_ns: Gaps,
    /// The longest gap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest: Option<LongestGap>,
}

/// Distribution of gaps between chunks, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gaps {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest.
    pub max: u64,
}

/// The longest gap between two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LongestGap {
    /// Where it begins, ns from the request's start.
    pub offset_ns: u64,
    /// The phase that fills most of it.
    pub phase: PhaseName,
}

/// A GPU step that belongs, or may belong, to the request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The step.
    pub step_id: u64,
    /// How the link is known.
    pub evidence: Evidence,
    /// 0 to 1; from 0.9 on it is claimed as unambiguous.
    pub confidence: f64,
    /// This request's part of the step's cost, 0 to 1.
    pub share: f64,
}

/// How a link between a request and a GPU step is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// One thread read the request, called the driver and wrote the response, and served nothing
    /// else meanwhile.
    SameThread,
    /// Wakes lead from the thread that read the request to the one that did the work, and back.
    WakeChain,
    /// The thread that did the work polled memory until the one that handed it over had put it
    /// there, and that one polled until it was done.
    Spin,
    /// By position: reads match hand-offs and completions match responses, and both ways name the
    /// same request.
    Order,
    /// The step ran while the request was open, on another thread of the process.
    Overlap,
    /// Several requests come into question.
    Ambiguous,
}

impl Evidence {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameThread => "same-thread",
            Self::WakeChain => "wake-chain",
            Self::Spin => "spin",
            Self::Order => "order",
            Self::Overlap => "overlap",
            Self::Ambiguous => "ambiguous",
        }
    }
}

/// GPU work of one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuSummary {
    /// UUID of the device, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Steps.
    pub step_count: u32,
    /// Least GPU time that the facts allow, ns.
    pub busy_lower_ns: u64,
    /// Most GPU time that the facts allow, ns.
    pub busy_upper_ns: u64,
    /// Bytes copied to the device.
    pub h2d_bytes: u64,
    /// Bytes copied from the device.
    pub d2h_bytes: u64,
    /// Kernels launched, graphs' own nodes not counted.
    pub launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Of these, launches of opaque ones: not seen being made, so what they hold is not known.
    #[serde(skip_serializing_if = "is_none")]
    pub graph_opaque: u64,
    /// Kernels in the others, which were learned.
    #[serde(skip_serializing_if = "is_none")]
    pub graph_kernels: u64,
    /// Bounds per kind of work.
    pub operations: Vec<OperationBounds>,
    /// Names of kernels launched most, where the functions were looked up under trace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_kernels: Vec<KernelCount>,
    /// Calls of the driver that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_calls: u32,
}

fn text_or_empty<S: Serializer>(peer: &Option<SocketAddr>, to: S) -> Result<S::Ok, S::Error> {
    match peer {
        Some(peer) => to.collect_str(peer),
        None => to.serialize_str(""),
    }
}

fn is_none(n: &u64) -> bool {
    *n == 0
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Bounds for all operations of a kind and method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationBounds {
    /// `h2d`, `kernel`, `d2h`, `d2d`, `memset`, `graph`.
    pub kind: &'static str,
    /// How they are known.
    pub method: Method,
    /// How many.
    pub count: u64,
    /// Sum of lower bounds, ns.
    pub lower_ns: u64,
    /// Sum of upper bounds, ns.
    pub upper_ns: u64,
}

/// Launches of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelCount {
    /// Name as the module has it (mangled).
    pub name: String,
    /// Launches.
    pub launches: u64,
}
