//! What holds for any timeline.

use crate::timeline::model::{SpanId, TraceId};
use proptest::prelude::*;

use super::{RUN, open};
use crate::{
    export::{
        otlp::{Round, span},
        tests::props::timeline,
    },
    timeline::model::Timeline,
};

/// With ids that are ids.
fn sendable() -> impl Strategy<Value = Timeline> {
    (timeline(), 1_u128.., 1_u64.., any::<Option<u64>>()).prop_map(
        |(mut timeline, trace_id, span_id, parent)| {
            timeline.trace_id = TraceId(trace_id);
            timeline.span_id = SpanId(span_id);
            timeline.parent_span_id = parent.map(SpanId);
            timeline
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_timeline_gives_bounded_spans(timeline in sendable()) {
        let spans = span::Maker::new(RUN).spans(&timeline).unwrap();
        prop_assert_eq!(spans.len(), 1 + timeline.phases.len().min(span::MAX_PHASES));
        let own = &spans[0];
        for span in &spans {
            prop_assert!(span.span_context.is_valid());
            prop_assert!(span.start_time <= span.end_time);
            prop_assert!(own.span_context.span_id() != span.parent_span_id || span.name != own.name
                || span.parent_span_id != own.parent_span_id);
            for attribute in &span.attributes {
                prop_assert!(attribute.value.as_str().len() < 16_384, "{}", attribute.key);
            }
        }
        let mut ids: Vec<_> = spans.iter().map(|span| span.span_context.span_id().to_bytes()).collect();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), spans.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_timelines_are_sent_and_measured(
        timelines in proptest::collection::vec(prop_oneof![sendable(), timeline()], 0..20),
    ) {
        let collector = collector::Collector::grpc(collector::Behaviour::Takes);
        let mut otlp = open(&collector.endpoint(), false, &[]);
        otlp.take(&timelines);
        let (families, gpus) = (crate::pipeline::Families::default(), Vec::new());
        otlp.round(Round { now_ns: 1, open: &timelines, families, lost: &[], gpus });
        let counts = otlp.counts();
        otlp.finish();
        let of = counts.of(crate::export::otlp::Signal::Traces);
        let sent = of.sent.load(std::sync::atomic::Ordering::Relaxed);
        let dropped: u64 = of.dropped().iter().map(|(_, n)| n).sum();
        prop_assert_eq!(sent + dropped, timelines.len() as u64);
        prop_assert_eq!(dropped, of.unsendable.load(std::sync::atomic::Ordering::Relaxed));
    }
}
