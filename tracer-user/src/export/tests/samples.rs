//! Timelines of an embedding server, made by hand.

use crate::timeline::model::{
    Arrival, Chunks, Evidence, Gaps, GpuSummary, KernelCount, Link, LongestGap, Method,
    OperationBounds, Outcome, Phase, PhaseName, SCHEMA, SpanId, Timeline, TraceId,
};

/// 2025-11-30 04:12:07.123456 UTC, ns since the Unix epoch.
pub const START_UNIX_NS: u64 = 1_764_475_927_123_456_789;
/// The same on the monotonic clock, ns.
pub const START_MONOTONIC_NS: u64 = 86_400_000_000_000;

/// Phases one after the other, from their names, lengths in µs and methods.
pub fn tiled(parts: &[(PhaseName, u64, Method)]) -> Vec<Phase> {
    let mut offset_ns = 0;
    parts
        .iter()
        .map(|(phase, us, method)| {
            let duration_ns = us * 1_000;
            let (lower_ns, upper_ns) = match phase {
                PhaseName::Gpu => (duration_ns / 3, duration_ns),
                _ => (duration_ns, duration_ns),
            };
            let phase = Phase {
                phase: *phase,
                offset_ns,
                duration_ns,
                method: *method,
                lower_ns,
                upper_ns,
                detail: "".into(),
            };
            offset_ns += duration_ns;
            phase
        })
        .collect()
}

/// Says more of a phase.
fn detail(timeline: &mut Timeline, phase: usize, text: &str) {
    timeline.phases[phase].detail = text.to_owned().into();
}

fn link(step_id: u64, evidence: Evidence, confidence: f64, share: f64) -> Link {
    Link { step_id, evidence, confidence, share }
}

/// A request with the given phases.
pub fn request(route: &str, phases: Vec<Phase>) -> Timeline {
    Timeline {
        schema: SCHEMA,
        trace_id: TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736),
        span_id: SpanId(0x00f0_67aa_0ba9_02b7),
        parent_span_id: None,
        service: "uvicorn".into(),
        container: None,
        pod: None,
        pid: 12_345,
        protocol: "http/1.1",
        method: "POST".into(),
        route: route.into(),
        status: Some(200),
        outcome: Some(Outcome::Ok),
        open: false,
        peer: "10.1.2.3:51234".parse().ok(),
        arrival: Arrival::Socket,
        start_unix_ns: START_UNIX_NS,
        start_monotonic_ns: START_MONOTONIC_NS,
        duration_ns: phases.iter().map(|phase| phase.duration_ns).sum(),
        request_bytes: 1_234,
        response_bytes: 56_789,
        now: None,
        phases,
        chunks: None,
        links: Vec::new(),
        gpu: None,
        nvml: None,
        tcp_rtt_ns: Some(180_000),
        tcp_retransmits: 0,
        complete: true,
        incomplete: Vec::new(),
    }
}

/// An embedding: copy, kernels, copy back, each known.
pub fn embedding() -> Timeline {
    use Method::{Direct, Observed, SyncBounded};
    let mut timeline = request(
        "/v1/embeddings",
        tiled(&[
            (PhaseName::AcceptQueue, 40, Observed),
            (PhaseName::SocketWait, 9_300, Observed),
            (PhaseName::Receive, 25, Observed),
            (PhaseName::Cpu, 4_100, Observed),
            (PhaseName::H2d, 3_200, Direct),
            (PhaseName::Kernel, 18_700, SyncBounded),
            (PhaseName::D2h, 1_900, Direct),
            (PhaseName::Cpu, 2_800, Observed),
            (PhaseName::Send, 1_135, Observed),
        ]),
    );
    detail(&mut timeline, 3, "pre");
    detail(&mut timeline, 7, "post");
    timeline.gpu = Some(GpuSummary {
        device: None,
        step_count: 1,
        busy_lower_ns: 17_900_000,
        busy_upper_ns: 23_800_000,
        h2d_bytes: 12_582_912,
        d2h_bytes: 49_152,
        launches: 97,
        graph_launches: 2,
        graph_opaque: 0,
        graph_kernels: 24,
        operations: vec![
            OperationBounds {
                kind: "h2d",
                method: Method::Direct,
                count: 2,
                lower_ns: 3_000_000,
                upper_ns: 3_200_000,
            },
            OperationBounds {
                kind: "kernel",
                method: Method::SyncBounded,
                count: 97,
                lower_ns: 14_100_000,
                upper_ns: 18_700_000,
            },
        ],
        top_kernels: vec![
            KernelCount { name: "ampere_sgemm_128x64_tn".to_owned(), launches: 48 },
            KernelCount { name: "_Z10layer_normPKfPfi".to_owned(), launches: 25 },
        ],
        failed_calls: 0,
    });
    timeline.links.push(link(17, Evidence::SameThread, 1.0, 1.0));
    timeline
}

/// A stream whose steps nothing divides, of a server whose threads hand work to each other; timed
/// from the read.
pub fn stream() -> Timeline {
    use Method::{Observed, SyncBounded};
    let mut timeline = request(
        "/v1/chat/completions",
        tiled(&[
            (PhaseName::Receive, 30, Observed),
            (PhaseName::ThreadBusy, 3_100, Observed),
            (PhaseName::Queue, 12_400, Observed),
            (PhaseName::Alloc, 22_000, Observed),
            (PhaseName::Gpu, 290_000, SyncBounded),
            (PhaseName::Cpu, 6_000, Observed),
            (PhaseName::RunQueue, 1_500, Observed),
            (PhaseName::Unattributed, 18_000, Observed),
            (PhaseName::Send, 900, Observed),
        ]),
    );
    detail(&mut timeline, 2, "behind GPU work of other requests");
    detail(&mut timeline, 5, "post");
    detail(&mut timeline, 7, "ambiguous");
    timeline.links = vec![
        link(21, Evidence::WakeChain, 0.97, 1.0),
        link(22, Evidence::Order, 0.95, 0.5),
        link(23, Evidence::Overlap, 0.6, 1.0),
        link(24, Evidence::Ambiguous, 0.5, 1.0),
    ];
    timeline.arrival = Arrival::Read;
    timeline.start_unix_ns += 250_000_000;
    timeline.start_monotonic_ns += 250_000_000;
    timeline.chunks = Some(Chunks {
        count: 128,
        first_offset_ns: 38_400_000,
        offsets_ns: vec![38_400_000, 40_800_000, 44_000_000],
        gaps_ns: Gaps { p50: 2_400_000, p99: 9_100_000, max: 31_000_000 },
        longest: Some(LongestGap { offset_ns: 201_000_000, phase: PhaseName::Gpu }),
    });
    timeline
}

/// A request that waited for another server, a lock and a disk, and for no GPU.
pub fn retrieval() -> Timeline {
    use Method::Observed;
    let mut timeline = request(
        "/v1/search",
        tiled(&[
            (PhaseName::SocketWait, 80, Observed),
            (PhaseName::Receive, 20, Observed),
            (PhaseName::Cpu, 2_400, Observed),
            (PhaseName::Dependency, 48_000, Observed),
            (PhaseName::Lock, 11_000, Observed),
            (PhaseName::Io, 7_300, Observed),
            (PhaseName::RunQueue, 600, Observed),
            (PhaseName::Unattributed, 1_900, Observed),
            (PhaseName::Send, 140, Observed),
        ]),
    );
    detail(&mut timeline, 4, "held by thread 12377");
    detail(&mut timeline, 7, "waiting for an event");
    timeline.start_unix_ns += 300_000_000;
    timeline.start_monotonic_ns += 300_000_000;
    timeline
}

/// A server error with lost events.
pub fn failed() -> Timeline {
    use Method::{Inferred, Observed};
    let mut timeline = request(
        "/v2/models/bert-large-uncased-whole-word-masking/infer",
        tiled(&[
            (PhaseName::SocketWait, 210, Observed),
            (PhaseName::Receive, 700, Inferred),
            (PhaseName::Unattributed, 90, Observed),
        ]),
    );
    timeline.service = "tritonserver".into();
    timeline.status = Some(500);
    timeline.outcome = Some(Outcome::ServerError);
    timeline.start_unix_ns += 400_000_000;
    timeline.start_monotonic_ns += 400_000_000;
    timeline.tcp_retransmits = 2;
    timeline.complete = false;
    timeline.incomplete = vec!["events lost in the ring", "payload beyond the capture length"];
    timeline.gpu = Some(GpuSummary { failed_calls: 1, ..GpuSummary::default() });
    timeline
}

/// A client that went away before the first byte of an answer.
pub fn cancelled() -> Timeline {
    let parts = [(PhaseName::SocketWait, 30_000_000, Method::Observed)];
    let mut timeline = request("/v1/embeddings", tiled(&parts));
    timeline.status = None;
    timeline.outcome = Some(Outcome::Cancelled);
    timeline
}

/// A request that is open for `ms` milliseconds.
pub fn open(ms: u64) -> Timeline {
    let mut timeline = request(
        "/v1/chat/completions",
        tiled(&[
            (PhaseName::SocketWait, 300, Method::Observed),
            (PhaseName::Receive, 50, Method::Observed),
            (PhaseName::Kernel, ms * 1_000 - 350, Method::SyncBounded),
        ]),
    );
    timeline.status = None;
    timeline.outcome = None;
    timeline.open = true;
    timeline
}

/// Bytes that try to take over the terminal.
pub fn hostile() -> Timeline {
    let mut timeline =
        request("/a\x1b[2J\x1b]0;owned\x07\r\nok 200\u{202e}gpj.\u{200b}\u{301}", Vec::new());
    timeline.method = "GET\x1b[31m".into();
    timeline.service = "bad\nname\u{9b}31m".into();
    timeline
}
