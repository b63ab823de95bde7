//! Ids of spans: a timeline's own, and those that follow from them.

use opentelemetry::{SpanId, TraceFlags, TraceId, trace::SpanContext, trace::TraceState};

use crate::{
    mix::{GOLDEN, mix},
    timeline::ids as timeline,
};

/// A trace id; none where it is zero.
pub fn trace_id(id: timeline::TraceId) -> Option<TraceId> {
    Some(TraceId::from_bytes(id.0.to_be_bytes())).filter(|id| *id != TraceId::INVALID)
}

/// A span id; none where it is zero.
pub fn span_id(id: timeline::SpanId) -> Option<SpanId> {
    Some(SpanId::from_bytes(id.0.to_be_bytes())).filter(|id| *id != SpanId::INVALID)
}

/// The span of a request's phase, from that of the request and the phase's place. Phases of one
/// request never share one.
pub fn phase(parent: SpanId, place: usize) -> SpanId {
    derived(u64::from_be_bytes(parent.to_bytes()), place as u64)
}

/// The span that stands for a GPU step: the same wherever the step is named, so requests of one
/// batch lead to one place.
pub fn step(step_id: u64) -> SpanId {
    derived(0, step_id)
}

/// SplitMix64: for one seed no two places give the same value.
fn derived(seed: u64, place: u64) -> SpanId {
    let z = mix(seed.wrapping_add(place.wrapping_mul(GOLDEN)));
    // Zero is no id. One place in 2⁶⁴ is moved.
    SpanId::from_bytes(if z == 0 { GOLDEN } else { z }.to_be_bytes())
}

/// Where a span is. All are sampled: spanprobe sends every request that it could follow.
pub fn context(trace_id: TraceId, span_id: SpanId) -> SpanContext {
    SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, false, TraceState::NONE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn zero_is_no_id() {
        assert_eq!(trace_id(timeline::TraceId(0)), None);
        assert_eq!(span_id(timeline::SpanId(0)), None);
        let id = trace_id(timeline::TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736));
        assert_eq!(
            id.map(|id| id.to_string()).as_deref(),
            Some("4bf92f3577b34da6a3ce929d0e0e4736")
        );
        let id = span_id(timeline::SpanId(0x00f0_67aa_0ba9_02b7));
        assert_eq!(id.map(|id| id.to_string()).as_deref(), Some("00f067aa0ba902b7"));
    }

    #[test]
    fn derived_ids_differ_and_stay() {
        let parent = SpanId::from_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
        let ids: BTreeSet<_> = (0..10_000).map(|n| phase(parent, n).to_bytes()).collect();
        assert_eq!(ids.len(), 10_000);
        assert_eq!(step(17), step(17));
        assert_ne!(step(17), step(18));
    }
}
