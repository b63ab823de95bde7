//! A whole trace, read back and compared with the timeline.

use collector::{
    Behaviour, Received,
    proto::trace::v1::{span::SpanKind, status::StatusCode},
    read::{Sent, attributes, hex},
};

use super::{RUN, both, open};
use crate::{
    export::{
        otlp::{ids, span},
        tests::samples,
    },
    timeline::model::{Method, Phase, PhaseName, SpanId, Timeline, TraceId},
};

/// The spans of a request: its own, and those of its phases in the order of time.
fn trace(received: &Received, timeline: &Timeline) -> Option<(Sent, Vec<Sent>)> {
    let mut spans = received.spans();
    spans.retain(|sent| sent.trace_id() == timeline.trace_id.to_string());
    let at = spans.iter().position(|sent| sent.id() == timeline.span_id.to_string())?;
    let own = spans.remove(at);
    spans.retain(|sent| sent.parent_id() == timeline.span_id.to_string());
    spans.sort_by_key(|sent| (sent.span.start_time_unix_nano, sent.span.end_time_unix_nano));
    Some((own, spans))
}

/// Timelines with ids of their own.
fn numbered(timelines: Vec<Timeline>) -> Vec<Timeline> {
    let number = |(n, mut timeline): (usize, Timeline)| {
        timeline.trace_id = TraceId(n as u128 + 1);
        timeline.span_id = SpanId(0x1000 + n as u64);
        timeline
    };
    timelines.into_iter().enumerate().map(number).collect()
}

fn same_times(own: &Sent, phases: &[Sent], timeline: &Timeline) {
    let start = timeline.start_unix_ns;
    assert_eq!(own.span.start_time_unix_nano, start);
    assert_eq!(own.span.end_time_unix_nano, start + timeline.duration_ns);
    assert_eq!(phases.len(), timeline.phases.len());
    for (sent, phase) in phases.iter().zip(&timeline.phases) {
        assert_eq!(sent.span.name, phase.phase.as_str());
        assert_eq!(sent.span.start_time_unix_nano, start + phase.offset_ns);
        assert_eq!(sent.span.end_time_unix_nano, start + phase.offset_ns + phase.duration_ns);
        assert_eq!(sent.span.kind, SpanKind::Internal as i32);
        assert_eq!(sent.attributes["spanprobe.method"], phase.method.as_str());
        assert_eq!(sent.attributes["spanprobe.lower_ns"], phase.lower_ns.to_string());
        assert_eq!(sent.attributes["spanprobe.upper_ns"], phase.upper_ns.to_string());
        let detail = sent.attributes.get("spanprobe.detail").map_or("", String::as_str);
        assert_eq!(detail, phase.detail);
    }
    // They tile.
    for pair in phases.windows(2) {
        assert_eq!(pair[0].span.end_time_unix_nano, pair[1].span.start_time_unix_nano);
    }
}

fn same_links(own: &Sent, timeline: &Timeline) {
    assert_eq!(own.span.links.len(), timeline.links.len());
    for (sent, link) in own.span.links.iter().zip(&timeline.links) {
        assert_eq!(hex(&sent.trace_id), format!("{RUN:032x}"));
        assert_eq!(hex(&sent.span_id), ids::step(link.step_id).to_string());
        let said = attributes(&sent.attributes);
        assert_eq!(said["spanprobe.step.id"], link.step_id.to_string());
        assert_eq!(said["spanprobe.evidence"], link.evidence.as_str());
        assert_eq!(said["spanprobe.confidence"], link.confidence.to_string());
        assert_eq!(said["spanprobe.share"], link.share.to_string());
    }
}

#[test]
fn every_timeline_comes_back_whole() {
    let mut called = samples::retrieval();
    called.pid += 1;
    called.container = Some("c0ffee11".repeat(8));
    called.pod = Some("d9f1c1ee-2f6b-4c3c-9b2e-1d2f3a4b5c6d".to_owned());
    called.parent_span_id = Some(SpanId(0x00f0_67aa_0ba9_02b7));
    let timelines = numbered(vec![
        samples::embedding(),
        samples::stream(),
        called,
        samples::failed(),
        samples::cancelled(),
        samples::hostile(),
    ]);
    for (collector, http) in both(Behaviour::Takes) {
        let mut otlp = open(&collector.endpoint(), http, &[]);
        otlp.take(&timelines);
        let lines = otlp.finish();
        assert!(lines.contains(&"otlp: 6 requests sent, none dropped".to_owned()), "{lines:?}");
        for timeline in &timelines {
            let (own, phases) = collector.look(|all| trace(all, timeline)).unwrap();
            assert_eq!(own.span.kind, SpanKind::Server as i32);
            let parent = timeline.parent_span_id.map(|id| id.to_string());
            assert_eq!(own.parent_id(), parent.unwrap_or_default());
            assert_eq!(own.attributes["spanprobe.complete"], timeline.complete.to_string());
            assert_eq!(own.resource["service.name"], timeline.service);
            assert_eq!(own.resource["process.pid"], timeline.pid.to_string());
            assert_eq!(own.resource["host.name"], "host-a");
            assert_eq!(own.resource.get("container.id"), timeline.container.as_ref());
            assert_eq!(own.resource.get("k8s.pod.uid"), timeline.pod.as_ref());
            assert_eq!(own.resource["telemetry.distro.name"], "spanprobe");
            same_times(&own, &phases, timeline);
            same_links(&own, timeline);
        }
    }
}

#[test]
fn attributes_say_what_the_timeline_knows() {
    let timelines = numbered(vec![samples::embedding(), samples::stream(), samples::failed()]);
    let (collector, http) = &both(Behaviour::Takes)[0];
    let mut otlp = open(&collector.endpoint(), *http, &[]);
    otlp.take(&timelines);
    otlp.finish();
    let own = |n: usize| collector.look(|all| trace(all, &timelines[n])).unwrap().0;
    let check = |sent: &Sent, wanted: &[(&str, &str)]| {
        for (name, value) in wanted {
            assert_eq!(sent.attributes.get(*name).map(String::as_str), Some(*value), "{name}");
        }
    };
    let embedding = own(0);
    assert_eq!(embedding.span.name, "POST /v1/embeddings");
    assert!(embedding.span.status.as_ref().is_none_or(|status| status.code == 0));
    check(
        &embedding,
        &[
            ("http.request.method", "POST"),
            ("http.route", "/v1/embeddings"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("client.address", "10.1.2.3"),
            ("network.peer.port", "51234"),
            ("http.request.size", "1234"),
            ("gen_ai.operation.name", "embeddings"),
            ("spanprobe.arrival", "socket"),
            ("spanprobe.outcome", "ok"),
            ("spanprobe.phase_ns.kernel", "18700000"),
            ("spanprobe.phase_ns.cpu", "6900000"),
            ("spanprobe.steps.id", "[17]"),
            ("spanprobe.steps.evidence", "[same-thread]"),
            ("spanprobe.gpu.launches", "97"),
            ("spanprobe.gpu.h2d.direct.count", "2"),
            ("spanprobe.gpu.top_kernel_launches", "[48,25]"),
        ],
    );
    let stream = own(1);
    check(&stream, &[("spanprobe.chunks.count", "128"), ("spanprobe.arrival", "read")]);
    let events: Vec<_> = stream.span.events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(events, ["spanprobe.first_chunk", "spanprobe.longest_gap"]);
    let start = timelines[1].start_unix_ns;
    assert_eq!(stream.span.events[0].time_unix_nano, start + 38_400_000);
    assert_eq!(stream.span.events[1].time_unix_nano, start + 201_000_000);
    let failed = own(2);
    assert_eq!(failed.span.status.as_ref().unwrap().code, StatusCode::Error as i32);
    check(
        &failed,
        &[
            ("error.type", "500"),
            ("spanprobe.incomplete", "[events lost in the ring,payload beyond the capture length]"),
            ("spanprobe.tcp.retransmits", "2"),
        ],
    );
}

#[test]
fn what_is_cut_is_said() {
    let phase =
        |n: u64| (PhaseName::Cpu, if n.is_multiple_of(10) { 900 } else { n % 7 }, Method::Observed);
    let mut timeline =
        samples::request("/x", samples::tiled(&(0..1_000).map(phase).collect::<Vec<_>>()));
    let link = samples::embedding().links.remove(0);
    timeline.links = vec![link; 200];
    let (collector, http) = &both(Behaviour::Takes)[1];
    let mut otlp = open(&collector.endpoint(), *http, &[]);
    otlp.take(std::slice::from_ref(&timeline));
    otlp.finish();
    let (own, phases) = collector.look(|all| trace(all, &timeline)).unwrap();
    assert_eq!(phases.len(), span::MAX_PHASES);
    assert_eq!(own.attributes["spanprobe.phases.count"], "1000");
    assert_eq!(own.attributes["spanprobe.phases.left_out"], "744");
    assert_eq!((own.span.links.len(), own.span.dropped_links_count), (128, 72));
    assert_eq!(own.attributes["spanprobe.steps.count"], "200");
    // The longest are kept.
    let long = |phase: &Phase| phase.duration_ns == 900_000;
    let kept = phases
        .iter()
        .filter(|sent| sent.span.end_time_unix_nano - sent.span.start_time_unix_nano == 900_000);
    assert_eq!(kept.count(), timeline.phases.iter().filter(|phase| long(phase)).count());
}

#[test]
fn two_requests_of_one_batch_share_a_step() {
    let timelines = numbered(vec![samples::embedding(), samples::embedding()]);
    let (collector, http) = &both(Behaviour::Takes)[0];
    let mut otlp = open(&collector.endpoint(), *http, &[]);
    otlp.take(&timelines);
    otlp.finish();
    let step = |n: usize| {
        let (own, _) = collector.look(|all| trace(all, &timelines[n])).unwrap();
        own.span.links[0].span_id.clone()
    };
    assert_eq!(step(0), step(1));
}

#[test]
fn a_name_that_was_set_is_every_services_name() {
    let (collector, http) = &both(Behaviour::Takes)[0];
    let mut otlp = open(&collector.endpoint(), *http, &[("OTEL_SERVICE_NAME", "chat")]);
    otlp.take(&numbered(vec![samples::embedding(), samples::failed()]));
    otlp.finish();
    let names: Vec<_> = collector
        .look(|all| all.spans().iter().map(|sent| sent.resource["service.name"].clone()).collect());
    assert!(!names.is_empty() && names.iter().all(|name| name == "chat"), "{names:?}");
}
