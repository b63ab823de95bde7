//! Ids of a request's trace and span.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::mix::mix;

/// Id of a trace: 32 hexadecimal digits (W3C Trace Context, section 3.2.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub u128);

/// Id of a span: 16 hexadecimal digits (W3C Trace Context, section 3.2.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for SpanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Ids of a request: the same for the same session and request, on every replay.
pub fn of(seed: [u8; 16], exchange: u64) -> (TraceId, SpanId) {
    let (a, b) = seed.split_at(8);
    let half = |bytes: &[u8]| bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let first = mix(half(a) ^ exchange.wrapping_mul(3).wrapping_add(1));
    let second = mix(half(b) ^ exchange.wrapping_mul(3).wrapping_add(2));
    let span = mix(first ^ second ^ exchange.wrapping_mul(3));
    (TraceId(u128::from(first) << 64 | u128::from(second) | 1), SpanId(span | 1))
}
