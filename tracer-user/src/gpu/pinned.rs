//! Host memory that the driver page-locked, and managed memory.
//!
//! Only what was allocated or registered under trace is known. A copy's host side is `Some(true)`
//! where it lies wholly in page-locked memory, `Some(false)` where it touches managed memory, else
//! unknown: memory from before attach may be either.

use std::collections::BTreeMap;

/// Kind of a known range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Pinned,
    Managed,
}

/// One range.
#[derive(Clone, Copy, Debug)]
struct Range {
    /// Address behind it.
    end: u64,
    memory: Memory,
    /// Return of the call that made it, ns.
    since_ns: u64,
}

/// Known ranges of one process, by start address, disjoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, Range>);

impl Ranges {
    /// Adds a range; what it overlaps is stale and goes. Answers false where the cap is reached.
    pub(super) fn insert(
        &mut self,
        (start, bytes): (u64, u64),
        memory: Memory,
        since_ns: u64,
        cap: usize,
    ) -> bool {
        let Some(end) = start.checked_add(bytes) else { return true };
        if start == 0 || bytes == 0 {
            return true;
        }
        let behind = self.0.range(..end).rev().take_while(|(_, range)| range.end > start);
        for stale in behind.map(|(start, _)| *start).collect::<Vec<u64>>() {
            self.0.remove(&stale);
        }
        if self.0.len() >= cap {
            return false;
        }
        self.0.insert(start, Range { end, memory, since_ns });
        true
    }

    /// The range that starts there is freed, by a call entered at `enter_ns`. (Another thread may
    /// have been given the address anew before that call returned.)
    pub(super) fn remove(&mut self, start: u64, enter_ns: u64) {
        if self.0.get(&start).is_some_and(|range| range.since_ns <= enter_ns) {
            self.0.remove(&start);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// What is known of `bytes` from `start` on, for a call entered at `enter_ns`.
    pub(super) fn lookup(&self, (start, bytes): (u64, u64), enter_ns: u64) -> Option<bool> {
        let end = start.checked_add(bytes.max(1))?;
        let (range_start, range) = self.0.range(..end).next_back()?;
        match range.memory {
            _ if range.since_ns > enter_ns => None,
            Memory::Managed if range.end > start => Some(false),
            Memory::Pinned if *range_start <= start && range.end >= end => Some(true),
            _ => None,
        }
    }
}
