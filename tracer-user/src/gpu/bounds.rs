//! Bounds of durations.
//!
//! An operation starts no earlier than the entry of its enqueuing call and than the last instant
//! at which a query said that a position before it was not reached. It ends no later than the
//! return of the first call that proves it complete. That its predecessor was proven complete at
//! some instant says nothing about its own start: the predecessor may have ended long before. So
//! the lower bound of a duration is 0 unless the device's own clock was asked (`elapsed`).

use super::op::{Op, OpDone, StreamKey};
use super::out::{Fact, Method};

/// A completed operation with its bounds.
pub(super) fn completed(
    pid: u32,
    op: Op,
    stream: StreamKey,
    step: u64,
    method: Method,
    (earliest_start_ns, fact): (u64, Fact),
) -> OpDone {
    let upper_ns = fact.exit_ns.saturating_sub(earliest_start_ns);
    let (_, upper_ns, helps) = narrowed((0, upper_ns), (0, op.elapsed.unwrap_or(u64::MAX)));
    let method = if helps { Method::EventElapsed } else { method };
    OpDone {
        pid,
        op,
        stream,
        step: Some(step),
        method,
        earliest_start_ns,
        latest_end_ns: fact.exit_ns,
        lower_ns: 0,
        upper_ns,
    }
}

/// An operation of which no fact is to be had any more.
pub(super) fn given_up(
    pid: u32,
    op: Op,
    stream: StreamKey,
    earliest_start_ns: u64,
    now_ns: u64,
) -> OpDone {
    let latest_end_ns = now_ns.max(earliest_start_ns);
    OpDone {
        pid,
        op,
        stream,
        step: None,
        method: Method::Estimated,
        earliest_start_ns,
        latest_end_ns,
        lower_ns: 0,
        upper_ns: latest_end_ns - earliest_start_ns,
    }
}

/// Old bounds and new ones: lower, upper, and whether the new ones help.
pub(super) fn narrowed(old: (u64, u64), new: (u64, u64)) -> (u64, u64, bool) {
    if new.0 > old.1 {
        // They contradict each other: what the host saw stands.
        return (old.0, old.1, false);
    }
    let upper = old.1.min(new.1);
    let lower = old.0.max(new.0).min(upper);
    (lower, upper, (lower, upper) != old)
}
