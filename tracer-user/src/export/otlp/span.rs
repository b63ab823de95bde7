//! A timeline as spans: one for the request, one below it for each phase.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceId,
    trace::{Event, Link, SpanKind, Status},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::{attributes, attributes::int, ids};
use crate::export::route::route_label;
use crate::timeline::model::{self as timeline, Outcome, Phase, Timeline};

/// Phases sent of one request; where it has more, the longest.
pub const MAX_PHASES: usize = 256;
/// Links of one request: OpenTelemetry's own limit.
pub const MAX_LINKS: usize = 128;

/// What spans need beside the timeline.
pub struct Maker {
    /// Who says so.
    pub scope: InstrumentationScope,
    /// The trace in which GPU steps have their ids: one for each run, since step ids begin anew.
    pub steps: TraceId,
}

impl Maker {
    /// For a run with this seed.
    pub fn new(seed: u128) -> Self {
        let scope = InstrumentationScope::builder("spanprobe")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Self { scope, steps: TraceId::from_bytes(seed.max(1).to_be_bytes()) }
    }

    /// The spans of a request, its own first. None where its ids are no ids.
    pub fn spans(&self, timeline: &Timeline) -> Option<Vec<SpanData>> {
        let trace_id = ids::trace_id(timeline.trace_id)?;
        let span_id = ids::span_id(timeline.span_id)?;
        let phases = longest(&timeline.phases);
        let mut spans = Vec::with_capacity(1 + phases.len());
        spans.push(self.request(timeline, trace_id, span_id, phases.len()));
        spans.extend(
            phases
                .into_iter()
                .map(|(place, phase)| self.phase(timeline, phase, trace_id, span_id, place)),
        );
        Some(spans)
    }

    fn request(
        &self,
        timeline: &Timeline,
        trace_id: TraceId,
        span_id: SpanId,
        phases: usize,
    ) -> SpanData {
        let parent = timeline.parent_span_id.and_then(ids::span_id);
        let mut attributes = attributes::request(timeline, MAX_LINKS);
        attributes.push(KeyValue::new("spanprobe.phases.count", int(timeline.phases.len() as u64)));
        let left_out = timeline.phases.len().saturating_sub(phases);
        if left_out > 0 {
            attributes.push(KeyValue::new("spanprobe.phases.left_out", int(left_out as u64)));
        }
        SpanData {
            span_context: ids::context(trace_id, span_id),
            parent_span_id: parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: parent.is_some(),
            span_kind: SpanKind::Server,
            name: name(timeline),
            start_time: at(timeline.start_unix_ns, 0),
            end_time: at(timeline.start_unix_ns, timeline.duration_ns),
            attributes,
            dropped_attributes_count: 0,
            events: events(timeline),
            links: self.links(timeline),
            status: status(timeline),
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn phase(
        &self,
        timeline: &Timeline,
        phase: &Phase,
        trace_id: TraceId,
        parent: SpanId,
        place: usize,
    ) -> SpanData {
        let mut attributes = vec![
            KeyValue::new("spanprobe.phase", phase.phase.as_str()),
            KeyValue::new("spanprobe.method", phase.method.as_str()),
            KeyValue::new("spanprobe.lower_ns", int(phase.lower_ns)),
            KeyValue::new("spanprobe.upper_ns", int(phase.upper_ns)),
        ];
        if !phase.detail.is_empty() {
            attributes.push(KeyValue::new("spanprobe.detail", attributes::cut(&phase.detail)));
        }
        let end_ns = phase.offset_ns.saturating_add(phase.duration_ns);
        SpanData {
            span_context: ids::context(trace_id, ids::phase(parent, place)),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: Cow::Borrowed(phase.phase.as_str()),
            start_time: at(timeline.start_unix_ns, phase.offset_ns),
            end_time: at(timeline.start_unix_ns, end_ns),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn links(&self, timeline: &Timeline) -> SpanLinks {
        let link = |link: &timeline::Link| {
            let context = ids::context(self.steps, ids::step(link.step_id));
            Link::new(context, attributes::step(link), 0)
        };
        let mut links = SpanLinks::default();
        links.links = timeline.links.iter().take(MAX_LINKS).map(link).collect();
        let dropped = timeline.links.len().saturating_sub(MAX_LINKS);
        links.dropped_count = u32::try_from(dropped).unwrap_or(u32::MAX);
        links
    }
}

/// The phases to send with their places, in the order of time.
fn longest(phases: &[Phase]) -> Vec<(usize, &Phase)> {
    let mut all: Vec<_> = phases.iter().enumerate().collect();
    if all.len() > MAX_PHASES {
        all.sort_by_key(|(place, phase)| (std::cmp::Reverse(phase.duration_ns), *place));
        all.truncate(MAX_PHASES);
        all.sort_by_key(|(place, _)| *place);
    }
    all
}

/// `{method} {route}`, as far as they were seen.
fn name(timeline: &Timeline) -> Cow<'static, str> {
    let method = match attributes::method(&timeline.method) {
        "_OTHER" => "HTTP",
        known => known,
    };
    match attributes::path(timeline) {
        None => Cow::Borrowed(method),
        Some(path) => Cow::Owned(format!("{method} {}", attributes::cut(&route_label(path)))),
    }
}

/// Errors are the server's: 5xx, and connections that broke. A client's mistake is none, and a
/// client that goes away neither (the convention for server spans).
fn status(timeline: &Timeline) -> Status {
    match (timeline.outcome, timeline.status) {
        (Some(Outcome::Reset), _) => Status::error("the connection was reset or closed early"),
        (Some(Outcome::ServerError), _) => Status::error(""),
        (_, Some(500..)) => Status::error(""),
        _ => Status::Unset,
    }
}

/// The moments of a streamed response that the timeline knows.
fn events(timeline: &Timeline) -> SpanEvents {
    let mut events = SpanEvents::default();
    let Some(chunks) = &timeline.chunks else { return events };
    if chunks.count > 0 {
        events.events.push(Event::new(
            "spanprobe.first_chunk",
            at(timeline.start_unix_ns, chunks.first_offset_ns),
            vec![KeyValue::new("spanprobe.chunks.count", int(chunks.count))],
            0,
        ));
    }
    if let Some(longest) = &chunks.longest {
        events.events.push(Event::new(
            "spanprobe.longest_gap",
            at(timeline.start_unix_ns, longest.offset_ns),
            vec![
                KeyValue::new("spanprobe.gap_ns", int(chunks.gaps_ns.max)),
                KeyValue::new("spanprobe.phase", longest.phase.as_str()),
            ],
            0,
        ));
    }
    events
}

/// A moment, `offset_ns` after `unix_ns`.
pub fn at(unix_ns: u64, offset_ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(unix_ns.saturating_add(offset_ns))
}
