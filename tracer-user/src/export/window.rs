//! The last seconds of timeline time.

use std::collections::VecDeque;

use crate::timeline::model::Timeline;

use super::summary::{Limits, Summary};

/// Length of a slice, ns.
const SLICE_NS: u64 = 2_000_000_000;
/// Slices kept.
const SLICES: u64 = 5;
/// Routes told apart.
const ROUTES: usize = 32;
/// Length of a slot of the rate, ns.
const SLOT_NS: u64 = 100_000_000;
/// Slots of the rate: one second, and the slot that has just begun.
const SLOTS: u64 = 11;

/// What a window and its parts keep.
const LIMITS: Limits = Limits { routes: ROUTES, slowest: 3, phase_percentiles: false };

/// Summary of the last 8 to 10 seconds.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Slices by the number of their time, oldest first.
    slices: VecDeque<(u64, Summary)>,
    first_ns: Option<u64>,
    now_ns: u64,
}

impl Window {
    /// Moves on to `now_ns` (`CLOCK_MONOTONIC`); older than a slice's worth of slices is dropped.
    pub fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.first_ns.get_or_insert(now_ns);
        let oldest = self.oldest();
        while self.slices.front().is_some_and(|(slice, _)| *slice < oldest) {
            self.slices.pop_front();
        }
    }

    /// Adds a request that ended at `end_ns`; one that ended before the window counts as oldest.
    pub fn add(&mut self, timeline: &Timeline, end_ns: u64) {
        self.advance(end_ns);
        let slice = (end_ns / SLICE_NS).max(self.oldest());
        let at = self.slices.partition_point(|(known, _)| *known < slice);
        if self.slices.get(at).is_none_or(|(known, _)| *known != slice) {
            self.slices.insert(at, (slice, Summary::new(LIMITS)));
        }
        if let Some((_, summary)) = self.slices.get_mut(at) {
            summary.add(timeline);
        }
    }

    /// All slices together.
    pub fn merged(&self) -> Summary {
        let mut all = Summary::new(LIMITS);
        for (_, summary) in &self.slices {
            all.merge(summary);
        }
        all
    }

    /// Time that the window covers, ns; at least one second.
    pub fn covered_ns(&self) -> u64 {
        let start = self.first_ns.unwrap_or(0).max(self.oldest() * SLICE_NS);
        self.now_ns.saturating_sub(start).max(1_000_000_000)
    }

    fn oldest(&self) -> u64 {
        (self.now_ns / SLICE_NS).saturating_sub(SLICES - 1)
    }
}

/// Requests that ended in the last second.
#[derive(Debug, Default)]
pub(super) struct Rate {
    slots: [u32; SLOTS as usize],
    newest: u64,
}

impl Rate {
    /// Moves on to `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        let slot = now_ns / SLOT_NS;
        for passed in 0..slot.saturating_sub(self.newest).min(SLOTS) {
            if let Some(count) = self.slots.get_mut(((slot - passed) % SLOTS) as usize) {
                *count = 0;
            }
        }
        self.newest = self.newest.max(slot);
    }

    /// Counts a request that ended at `end_ns`, or now where it comes late.
    pub fn count(&mut self, end_ns: u64) {
        self.advance(end_ns);
        if let Some(count) = self.slots.get_mut((self.newest % SLOTS) as usize) {
            *count = count.saturating_add(1);
        }
    }

    /// In the last second.
    pub fn per_second(&self) -> u32 {
        self.slots.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}
