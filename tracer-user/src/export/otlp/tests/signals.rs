//! Metrics and the event log.

use collector::{Behaviour, Collector, proto::metrics::v1::metric::Data};

use super::{both, open};
use crate::{
    export::{health::Lost, otlp::Round, tests::samples},
    happening::{Happening, Kind},
    nvml::{
        self, History, Reading, State, Told,
        testing::{gpu, sample, tell},
    },
    pipeline::Families,
    timeline::model::Timeline,
};

#[test]
fn the_event_log_comes_back() {
    for (collector, http) in both(Behaviour::Takes) {
        let mut otlp = open(&collector.endpoint(), http, &[]);
        let mut started = Happening::new(1_000, Kind::ProcessStart, "traced from now on");
        started.pid = Some(12);
        started.service = Some("uvicorn".to_owned());
        otlp.happened(&[started, Happening::new(2_000, Kind::Loss, "3 events lost")]);
        otlp.finish();
        let lines = collector.look(|all| all.log_lines());
        assert_eq!(lines.len(), 2, "{lines:?}");
        let (body, severity, attributes) = &lines[0];
        assert_eq!((body.as_str(), severity.as_str()), ("traced from now on", "INFO"));
        assert_eq!(attributes["process.pid"], "12");
        assert_eq!(attributes["process.executable.name"], "uvicorn");
        assert_eq!(attributes["spanprobe.event"], "process-start");
        assert_eq!(lines[1].1, "WARN");
        let times = collector.look(|all| {
            let logs = &all.logs[0].resource_logs[0].scope_logs[0].log_records;
            logs.iter().map(|record| record.time_unix_nano).collect::<Vec<_>>()
        });
        assert_eq!(times, [1_000, 2_000]);
    }
}

fn healthy() -> Timeline {
    samples::request("/healthz", Vec::new())
}

fn families(socket: u64) -> Families {
    Families { socket, ..Families::default() }
}

#[test]
fn metrics_agree_with_the_timelines() {
    for (collector, http) in both(Behaviour::Takes) {
        let mut otlp = open(&collector.endpoint(), http, &[]);
        otlp.take(&[samples::embedding(), samples::embedding(), samples::failed(), healthy()]);
        let open = [samples::open(2_000), samples::open(500)];
        let lost = Lost { name: "ring full", family: "any", place: "kernel", count: 5 };
        let now_ns = open[0].start_monotonic_ns + 2_000_000_000;
        let mut history = History::default();
        history.take(&Told::Devices(vec![gpu(0)]));
        history.take(&tell(sample("GPU-0", 1, (Reading::Power, State::Value(300_500)), &[])));
        let gpus = nvml::metrics::metrics(&history.snapshot(), now_ns, false);
        let families = families(1_234);
        otlp.round(Round { now_ns, open: &open, families, lost: &[lost], gpus });
        otlp.finish();
        collector.look(|all| {
            let durations = all.distributions("uvicorn", "http.server.request.duration");
            assert_eq!(durations.len(), 1, "health checks are left out: {durations:?}");
            let (labels, count, sum) = &durations[0];
            assert_eq!((*count, labels["http.route"].as_str()), (2, "/v1/embeddings"));
            let expected = 2.0 * samples::embedding().duration_ns as f64 / 1e9;
            assert!((sum - expected).abs() < 1e-9, "{sum} {expected}");
            let phases = all.distributions("uvicorn", "spanprobe.phase.duration");
            let cpu = phases.iter().find(|(labels, ..)| labels["spanprobe.phase"] == "cpu");
            assert_eq!(cpu.map(|(_, count, sum)| (*count, *sum)), Some((2, 0.0138)));
            let failed = all.distributions("tritonserver", "http.server.request.duration");
            assert_eq!(failed[0].0["error.type"], "500");
            let in_flight = all.numbers("uvicorn", "spanprobe.requests_in_flight");
            assert_eq!(in_flight[0].1, "2");
            assert_eq!(all.numbers("uvicorn", "spanprobe.oldest_request_age")[0].1, "2");
            let seen = all.numbers("spanprobe", "spanprobe.events");
            assert!(seen.iter().any(|(l, n)| l["spanprobe.family"] == "socket" && n == "1234"));
            let power = all.numbers("spanprobe", "hw.power");
            let hw_id = power[0].0["hw.id"].as_str();
            assert_eq!((hw_id, power[0].1.as_str(), power.len()), ("GPU-0", "300.5", 1));
            let lost = all.numbers("spanprobe", "spanprobe.events_lost");
            assert_eq!(
                (lost[0].0["spanprobe.where"].as_str(), lost[0].1.as_str()),
                ("kernel", "5")
            );
        });
    }
}

/// Whether every distribution that was sent is cumulative.
fn cumulative(collector: &Collector) -> Vec<i32> {
    let metrics = collector.look(|all| all.all_metrics());
    let kinds = metrics.into_iter().filter_map(|(_, metric)| match metric.data {
        Some(Data::Histogram(histogram)) => Some(histogram.aggregation_temporality),
        _ => None,
    });
    kinds.collect()
}

#[test]
fn sums_are_cumulative_and_sent_again_and_again() {
    let collector = Collector::grpc(Behaviour::Takes);
    let often = [("OTEL_METRIC_EXPORT_INTERVAL", "50")];
    let mut otlp = open(&collector.endpoint(), false, &often);
    otlp.take(&[samples::embedding()]);
    let count = |wanted: u64| {
        collector.wait("a report", |all| {
            let durations = all.distributions("uvicorn", "http.server.request.duration");
            durations.iter().any(|(_, count, _)| *count == wanted).then_some(())
        });
    };
    count(1);
    otlp.take(&[samples::embedding()]);
    count(2);
    otlp.finish();
    assert!(cumulative(&collector).iter().all(|kind| *kind == 2));
}

#[test]
fn names_are_bounded_and_what_is_folded_is_counted() {
    let collector = Collector::grpc(Behaviour::Takes);
    let mut otlp = open(&collector.endpoint(), false, &[("OTEL_TRACES_EXPORTER", "none")]);
    let mut timelines = Vec::new();
    for n in 0..100 {
        timelines.push(samples::request(&format!("/r{n}"), Vec::new()));
        let mut timeline = samples::request("/x", Vec::new());
        timeline.service = format!("service-{n}").into();
        timelines.push(timeline);
    }
    otlp.take(&timelines);
    let (now_ns, families, gpus) = (0, families(0), Vec::new());
    otlp.round(Round { now_ns, open: &[], families, lost: &[], gpus });
    otlp.finish();
    collector.look(|all| {
        assert!(all.traces.is_empty());
        let folded = all.numbers("spanprobe", "spanprobe.label_overflow");
        let of = |label: &str| {
            let found = folded.iter().find(|(labels, _)| labels["spanprobe.label"] == label);
            found.map(|(_, n)| n.parse::<u64>().unwrap())
        };
        assert_eq!(of("route"), Some(36));
        assert_eq!(of("service"), Some(85));
        let other = all.distributions("other", "http.server.request.duration");
        assert_eq!(other.iter().map(|(_, count, _)| count).sum::<u64>(), 85);
        let routes = all.distributions("uvicorn", "http.server.request.duration");
        assert_eq!(routes.iter().map(|(_, count, _)| count).sum::<u64>(), 100);
        assert_eq!(routes.len(), 65);
    });
}
