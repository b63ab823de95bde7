//! A surge, a hang, a quiet day.
#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use crate::timeline::model::{
    Arrival, Method, Now, Outcome, Phase, PhaseName, SpanId, Timeline, TraceId,
};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// A request that ended at a time, with these phases.
pub fn request(route: &str, end_ns: u64, phases: &[(PhaseName, u64)]) -> Timeline {
    let mut offset_ns = 0;
    let phases: Vec<Phase> = phases
        .iter()
        .map(|(phase, ns)| {
            let phase = Phase {
                phase: *phase,
                offset_ns,
                duration_ns: *ns,
                method: Method::Observed,
                lower_ns: *ns,
                upper_ns: *ns,
                detail: "".into(),
            };
            offset_ns += ns;
            phase
        })
        .collect();
    Timeline {
        container: None,
        pod: None,
        nvml: None,
        schema: 1,
        trace_id: TraceId(end_ns.into()),
        span_id: SpanId(end_ns),
        parent_span_id: None,
        service: "server".into(),
        pid: 7,
        protocol: "http/1.1",
        method: "POST".into(),
        route: route.into(),
        status: Some(200),
        outcome: Some(Outcome::Ok),
        open: false,
        peer: None,
        arrival: Arrival::Socket,
        start_unix_ns: end_ns.saturating_sub(offset_ns),
        start_monotonic_ns: end_ns.saturating_sub(offset_ns),
        duration_ns: offset_ns,
        now: None,
        request_bytes: 100,
        response_bytes: 100,
        phases,
        chunks: None,
        links: Vec::new(),
        gpu: None,
        tcp_rtt_ns: None,
        tcp_retransmits: 0,
        complete: true,
        incomplete: Vec::new(),
    }
}

fn state(now_ns: u64) -> State<'static> {
    State { now_ns, ..State::default() }
}

/// Ten minutes at ten requests per second; in the last two the queue is long.
fn surge() -> FlightRecorder {
    let mut recorder = FlightRecorder::default();
    for n in 0..6_000_u64 {
        let queue = if n < 4_800 { MS } else { 50 * MS + n % 7 * MS };
        let phases = [(PhaseName::Queue, queue), (PhaseName::Cpu, 5 * MS)];
        recorder.add(&request("/infer", 1_000 * S + n * 100 * MS, &phases));
    }
    recorder
}

#[test]
fn the_phase_that_grew_is_named() {
    let why = surge().why(600 * S, &state(1_600 * S));
    let route = &why.traffic.routes[0];
    assert_eq!(route.phase.as_ref().expect("a phase").phase, "queue");
    assert!((1_100..=1_300).contains(&route.now.requests), "{:?}", route.now);
    assert_eq!(route.now.requests + route.before.requests, 6_000);
    assert!((9.0..11.0).contains(&route.now.per_second), "{:?}", route.now);
    assert!(route.now.p50_ns > 50 * MS && route.before.p50_ns < 7 * MS);
    let said = why.answer.join("\n");
    assert!(said.contains("rose from") && said.contains("`queue`"), "{said}");
    assert_eq!(route.slowest.len(), 3);
}

#[test]
fn a_steady_service_has_nothing_that_stands_out() {
    let mut recorder = FlightRecorder::default();
    for n in 0..6_000_u64 {
        let phases = [(PhaseName::Kernel, 5 * MS + n % 10 * MS / 10)];
        recorder.add(&request("/infer", 1_000 * S + n * 100 * MS, &phases));
    }
    let why = recorder.why(600 * S, &state(1_600 * S));
    assert_eq!(why.answer, ["nothing stands out"]);
}

#[test]
fn a_stuck_request_comes_first() {
    let mut open = request("/infer", 1_600 * S, &[(PhaseName::Gpu, 60 * S)]);
    open.open = true;
    open.now = Some(Now {
        tid: 45,
        state: "blocked".to_owned(),
        call: "cuStreamSynchronize".to_owned(),
        for_ns: Some(59 * S),
        detail: "waits for the GPU".to_owned(),
        confidence: 1.0,
    });
    let state = State { open: &[open], ..state(1_600 * S) };
    let why = surge().why(600 * S, &state);
    assert!(why.answer[0].contains("thread 45 is blocked in cuStreamSynchronize"), "{why:?}");
    assert_eq!((why.queue.open, why.queue.waiting), (1, 0));
}

#[test]
fn an_empty_recorder_answers_too() {
    let why = FlightRecorder::default().why(600 * S, &state(5 * S));
    assert_eq!(why.answer, ["no request has ended lately, and none is open"]);
    assert_eq!(why.known_ns, 0);
    let text = serde_json::to_string(&why).expect("JSON");
    assert_eq!(serde_json::from_str::<Why>(&text).expect("read back"), why);
}

#[test]
fn health_checks_are_no_traffic() {
    let mut recorder = FlightRecorder::default();
    recorder.add(&request("/healthz", 1_000 * S, &[]));
    assert!(recorder.why(600 * S, &state(1_001 * S)).traffic.routes.is_empty());
}
