//! Ids of spans: a timeline's own, and those that follow from them.

use opentelemetry::{SpanId, TraceFlags, TraceId, trace::SpanContext, trace::TraceState};

use crate::mix::{GOLDEN, mix};

/// A trace id from 32 hexadecimal digits; none where it is not one, or all zero.
pub fn trace_id(text: &str) -> Option<TraceId> {
    if text.len() != 32 {
        return None;
    }
    Some(TraceId::from_bytes(u128::from_str_radix(text, 16).ok()?.to_be_bytes()))
        .filter(|id| *id != TraceId::INVALID)
}

/// A span id from 16 hexadecimal digits; none where it is not one, or all zero.
pub fn span_id(text: &str) -> Option<SpanId> {
    if text.len() != 16 {
        return None;
    }
    Some(SpanId::from_bytes(u64::from_str_radix(text, 16).ok()?.to_be_bytes()))
        .filter(|id| *id != SpanId::INVALID)
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
    fn only_whole_ids_are_ids() {
        assert!(trace_id("4bf92f3577b34da6a3ce929d0e0e4736").is_some());
        assert!(span_id("00f067aa0ba902b7").is_some());
        for bad in ["", "0", "+0000000000000001", "zz", "0000000000000000"] {
            assert_eq!(span_id(bad), None, "{bad}");
        }
        assert_eq!(trace_id(&"0".repeat(32)), None);
        assert_eq!(trace_id("é"), None);
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
