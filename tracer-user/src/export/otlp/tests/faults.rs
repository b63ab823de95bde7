//! Collectors that refuse, are silent, slow, reset connections, or reject: nothing waits for them,
//! and what is lost is counted.

use crate::timeline::model::TraceId;
use std::time::{Duration, Instant};

use collector::{Behaviour, Collector, faults};

use super::{both, open};
use crate::{
    export::{
        otlp::{MAX_REQUESTS, Signal},
        tests::samples,
    },
    happening::{Happening, Kind},
    timeline::model::Timeline,
};

/// As many requests as the queue holds three times.
const MANY: usize = 3 * MAX_REQUESTS;

fn many() -> Vec<Timeline> {
    vec![samples::cancelled(); MANY]
}

/// Requests that were sent, and that were dropped for any reason.
fn became(counts: &crate::export::otlp::Counts) -> (u64, u64) {
    let of = counts.of(Signal::Traces);
    let sent = of.sent.load(std::sync::atomic::Ordering::Relaxed);
    (sent, of.dropped().iter().map(|(_, n)| n).sum())
}

#[test]
fn collectors_that_are_none_cost_no_time_and_the_loss_is_counted() {
    for (what, endpoint) in [
        ("refused", faults::refused()),
        ("silent", faults::silent()),
        ("resetting", faults::resetting()),
    ] {
        for http in [false, true] {
            let mut otlp = open(&endpoint, http, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "700")]);
            let counts = otlp.counts();
            let many = many();
            let began = Instant::now();
            otlp.take(&many);
            otlp.happened(&[Happening::new(1, Kind::Loss, "x")]);
            let taking = began.elapsed();
            // Two exports' time passes and nothing is taken: this is told while it runs.
            while became(&counts).1 <= (MANY - MAX_REQUESTS) as u64 {
                std::thread::yield_now();
                assert!(began.elapsed() < Duration::from_secs(60), "{what}: nothing was given up");
            }
            let ending = Instant::now();
            let lines = otlp.finish();
            let ending = ending.elapsed();
            // If it waited, it would wait for each batch: 24 of them, 0.7 s each.
            assert!(taking < Duration::from_secs(8), "{what}: taking took {taking:?}");
            assert!(ending < Duration::from_secs(8), "{what}: ending took {ending:?}");
            assert_eq!(became(&counts), (0, MANY as u64), "{what}, http {http}: {lines:?}");
            assert!(lines.iter().any(|line| line.contains("traces are dropped")), "{lines:?}");
            assert!(lines.iter().any(|line| line.contains("0 requests sent")), "{lines:?}");
            assert!(lines.iter().any(|line| line.contains("logs dropped")), "{what}: {lines:?}");
        }
    }
}

#[test]
fn a_collector_that_comes_back_gets_everything() {
    for (collector, http) in both(Behaviour::UnavailableFirst(3)) {
        let mut otlp = open(&collector.endpoint(), http, &[("OTEL_METRICS_EXPORTER", "none")]);
        let counts = otlp.counts();
        otlp.take(&[samples::embedding(), samples::stream()]);
        collector.wait("both requests", |all| (all.traces.len() == 1).then_some(()));
        otlp.finish();
        assert_eq!(became(&counts), (2, 0));
        assert_eq!(collector.look(|all| all.refused), 3);
    }
}

#[test]
fn a_slow_collector_gets_what_fits_and_the_rest_is_counted() {
    for (collector, http) in both(Behaviour::Slow(Duration::from_millis(300))) {
        let mut otlp = open(&collector.endpoint(), http, &[("OTEL_METRICS_EXPORTER", "none")]);
        let counts = otlp.counts();
        otlp.take(&many());
        let lines = otlp.finish();
        let (sent, dropped) = became(&counts);
        assert_eq!(sent + dropped, MANY as u64, "{lines:?}");
        assert!(sent > 0 && dropped >= (MANY - MAX_REQUESTS) as u64, "{sent} {dropped}");
        let requests = collector.look(|all| {
            let spans = all.spans();
            spans.iter().filter(|sent| sent.span.kind == 2).count()
        });
        // One that was cut off by the end may have arrived.
        assert!(requests as u64 >= sent, "{requests} {sent}");
    }
}

#[test]
fn what_is_refused_for_good_is_not_sent_again() {
    for (collector, http) in both(Behaviour::Refuses) {
        let only = [("OTEL_METRICS_EXPORTER", "none"), ("OTEL_LOGS_EXPORTER", "none")];
        let mut otlp = open(&collector.endpoint(), http, &only);
        let counts = otlp.counts();
        otlp.take(&[samples::embedding()]);
        collector.wait("a request", |all| (all.refused > 0).then_some(()));
        let lines = otlp.finish();
        assert_eq!(became(&counts), (0, 1), "{lines:?}");
        assert_eq!(collector.look(|all| all.refused), 1);
    }
}

#[test]
fn what_is_rejected_in_part_is_counted() {
    for (collector, http) in both(Behaviour::Rejects(4)) {
        let only = [("OTEL_METRICS_EXPORTER", "none"), ("OTEL_LOGS_EXPORTER", "none")];
        let mut otlp = open(&collector.endpoint(), http, &only);
        otlp.take(&[samples::embedding()]);
        let lines = otlp.finish();
        let wanted = "otlp: 1 requests sent, dropped: rejected 4";
        assert!(lines.iter().any(|line| line == wanted), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("too many")), "{lines:?}");
    }
}

#[test]
fn memory_is_bounded_by_phases_too() {
    let endpoint = faults::silent();
    let mut otlp = open(&endpoint, false, &[]);
    let counts = otlp.counts();
    let phase = samples::embedding().phases.remove(0);
    let long = samples::request("/x", vec![phase; 1_000]);
    otlp.take(&vec![long; 200]);
    let queued = 65_536 / 1_000;
    let waiting = counts.of(Signal::Traces).queue_full.load(std::sync::atomic::Ordering::Relaxed);
    // What the thread has already taken out may be followed by as much again.
    assert!(waiting >= 200 - 2 * queued, "{waiting}");
    drop(otlp);
}

#[test]
fn what_has_no_id_is_counted_and_not_sent() {
    let collector = Collector::grpc(Behaviour::Takes);
    let mut otlp = open(&collector.endpoint(), false, &[]);
    let mut bad = samples::embedding();
    bad.trace_id = TraceId(0);
    otlp.take(&[bad, samples::embedding()]);
    let lines = otlp.finish();
    let wanted = "otlp: 1 requests sent, dropped: unsendable 1";
    assert!(lines.iter().any(|line| line == wanted), "{lines:?}");
}
