//! What arrives at an OpenTelemetry collector is what the JSON lines of the same run say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use collector::{
    Behaviour, Collector, faults,
    read::{Sent, attributes},
};
use common::{Needs, env};
use e2e::child::Guard;
use e2e::client::Client;
use e2e::raw::Raw;
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::timeline::Timeline;
use e2e::tracer::{Traced, Tracer};

const PLANS: [&str; 6] = [
    "--plan",
    "h2d:65536,k:20:20000,sync:stream,d2h:4096,resp:500",
    "--plan",
    "chunks:5:300000",
    "--plan",
    "healthz",
];

/// Everything about one request that both ways of telling have.
fn same(sent: &Sent, phases: &[&Sent], timeline: &Timeline) {
    assert_eq!(sent.trace_id(), timeline.trace_id);
    assert_eq!(sent.parent_id(), timeline.parent_span_id.clone().unwrap_or_default());
    assert_eq!(sent.resource["service.name"], timeline.service);
    assert_eq!(sent.resource["process.pid"], timeline.pid.to_string());
    let said = &sent.attributes;
    assert_eq!(said["http.request.method"], timeline.method);
    assert_eq!(said["http.route"], timeline.route);
    assert_eq!(said["http.response.status_code"], timeline.status.unwrap().to_string());
    assert_eq!(said["spanprobe.arrival"], timeline.arrival);
    assert_eq!(said["spanprobe.complete"], timeline.complete.to_string());
    assert_eq!(said["spanprobe.start_monotonic_ns"], timeline.start_monotonic_ns.to_string());
    assert_eq!(said["http.request.size"], timeline.request_bytes.to_string());
    assert_eq!(said["http.response.size"], timeline.response_bytes.to_string());
    let start = sent.span.start_time_unix_nano;
    assert_eq!(sent.span.end_time_unix_nano - start, timeline.duration_ns);
    assert_eq!(phases.len(), timeline.phases.len());
    for (one, phase) in phases.iter().zip(&timeline.phases) {
        assert_eq!(one.span.name, phase.phase);
        assert_eq!(one.span.start_time_unix_nano - start, phase.offset_ns);
        let length = one.span.end_time_unix_nano - one.span.start_time_unix_nano;
        assert_eq!(length, phase.duration_ns);
        assert_eq!(one.attributes["spanprobe.method"], phase.method);
        assert_eq!(one.attributes["spanprobe.upper_ns"], phase.upper_ns.to_string());
    }
    assert_eq!(sent.span.links.len(), timeline.links.len());
    for (one, link) in sent.span.links.iter().zip(&timeline.links) {
        let said = attributes(&one.attributes);
        assert_eq!(said["spanprobe.step.id"], link.step_id.to_string());
        assert_eq!(said["spanprobe.evidence"], link.evidence);
        assert_eq!(said["spanprobe.confidence"], link.confidence.to_string());
    }
    let events = sent.span.events.iter();
    let first = events.clone().find(|event| event.name == "spanprobe.first_chunk");
    assert_eq!(
        first.map(|event| event.time_unix_nano - start),
        timeline.chunks.as_ref().map(|chunks| chunks.first_offset_ns)
    );
    if let Some(gpu) = &timeline.gpu {
        assert_eq!(said["spanprobe.gpu.launches"], gpu.launches.to_string());
        assert_eq!(said["spanprobe.gpu.busy_upper_ns"], gpu.busy_upper_ns.to_string());
    }
}

/// Every timeline of the run, and nothing else, has come, whole.
fn all_the_same(collector: &Collector, traced: &Traced) {
    let spans = collector.look(|all| all.spans());
    let mut children: BTreeMap<String, Vec<&Sent>> = BTreeMap::new();
    let mut requests = BTreeMap::new();
    for sent in &spans {
        match sent.span.kind {
            2 => drop(requests.insert(sent.id(), sent)),
            _ => children.entry(sent.parent_id()).or_default().push(sent),
        }
    }
    for timeline in &traced.timelines {
        let sent = requests.remove(&timeline.span_id).expect("a span for each request");
        let mut phases = children.remove(&timeline.span_id).unwrap_or_default();
        let time = |one: &&Sent| (one.span.start_time_unix_nano, one.span.end_time_unix_nano);
        phases.sort_by_key(time);
        same(sent, &phases, timeline);
    }
    assert!(requests.is_empty() && children.is_empty(), "{requests:?} {children:?}");
}

#[test]
fn spans_are_the_json_lines_of_the_run() {
    let Some(env) = env(Needs::Driver) else { return };
    for http in [false, true] {
        let scratch = Scratch::new("otlp").unwrap();
        let collector = if http {
            Collector::http(Behaviour::Takes)
        } else {
            Collector::grpc(Behaviour::Takes)
        };
        let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
        let (pid, events) = (server.pid().to_string(), scratch.file("events.jsonl"));
        let args =
            ["--pid", &pid, "--otlp", &collector.endpoint(), "--events", events.to_str().unwrap()];
        let vars = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", if http { "http/protobuf" } else { "grpc" }),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=serving"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
        ];
        let tracer = Tracer::run_with(&env, &scratch, &args, &vars).unwrap();
        let requests = [&["--requests", "60", "--connections", "4"][..], &PLANS].concat();
        Client::run(&env, &scratch, &server.addr(), &requests).unwrap().all_right().unwrap();
        let mut called = Raw::connect(server.port()).unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\
            traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n";
        called.send(request).unwrap();
        called.response().unwrap();
        let traced = tracer.stop().unwrap();
        assert_eq!(traced.timelines.len(), 61);
        assert!(traced.timelines.iter().any(|timeline| !timeline.links.is_empty()));
        assert!(traced.timelines.iter().any(|timeline| timeline.chunks.is_some()));
        assert!(traced.err.contains("61 requests sent, none dropped"), "{}", traced.err);
        all_the_same(&collector, &traced);
        collector.look(|all| {
            let spans = all.spans();
            let child = spans.iter().find(|sent| sent.parent_id() == "00f067aa0ba902b7");
            assert_eq!(child.unwrap().trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
            assert_eq!(spans[0].resource["deployment.environment.name"], "test");
            let header = |(name, value): &(String, String)| name == "x-team" && value == "serving";
            assert!(all.headers.iter().any(header), "{:?}", all.headers);
            let service = &traced.timelines[0].service;
            let counted = all.distributions(service, "http.server.request.duration");
            let health = traced.timelines.iter().filter(|t| t.route == "/healthz").count() as u64;
            assert_eq!(counted.iter().map(|(_, n, _)| n).sum::<u64>(), 61 - health);
            // The event log came both ways.
            let file = std::fs::read_to_string(&events).unwrap();
            assert_eq!(all.log_lines().len(), file.lines().count(), "{file}");
            assert!(file.contains("\"process-start\""), "{file}");
        });
    }
}

#[test]
fn a_collector_that_is_not_there_holds_nothing_up() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("no-collector").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let pid = server.pid().to_string();
    for endpoint in [faults::refused(), faults::silent(), faults::resetting()] {
        let args = ["--pid", &pid, "--otlp", &endpoint];
        let tracer = Tracer::run(&env, &scratch, &args).unwrap();
        let requests = ["--requests", "20", "--plan", "resp:100"];
        Client::run(&env, &scratch, &server.addr(), &requests).unwrap().all_right().unwrap();
        let traced = tracer.stop().unwrap();
        assert_eq!(traced.timelines.len(), 20);
        assert!(traced.err.contains("0 requests sent, dropped: "), "{}", traced.err);
    }
}

#[test]
fn settings_that_make_no_sense_end_it_at_once() {
    let Some(env) = env(Needs::Nothing) else { return };
    for (endpoint, variable, why) in [
        ("https://collector:4317", ("X", ""), "TLS is not supported"),
        ("", ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"), "OTEL_EXPORTER_OTLP_PROTOCOL"),
    ] {
        let mut command = Command::new(&env.spanprobe);
        command.args(["run", "--cuda", "--beside", "--otlp", endpoint]).env(variable.0, variable.1);
        let mut guard = Guard::spawn("spanprobe", &mut command).unwrap();
        let code = guard.wait(Duration::from_secs(30)).unwrap().code();
        assert_eq!(code, Some(1), "{}", guard.err());
        assert!(guard.err().contains(why), "{}", guard.err());
    }
}
