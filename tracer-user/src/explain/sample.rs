//! Requests of ten seconds: counted exactly, of which the slowest are kept and a fair sample.

use crate::{
    mix::mix,
    timeline::model::{Outcome, PhaseName, Timeline, phase_sums},
};

use super::report::Slow;

/// Length of a slot, ns.
pub const SLOT_NS: u64 = 10_000_000_000;
/// Requests of a slot that are kept, as a fair sample of all.
pub const SAMPLES: usize = 64;
/// The slowest of a slot, which are kept with their ids.
const SLOWEST: usize = 3;
/// Phases that there are.
const PHASES: usize = PhaseName::ALL.len();

/// One request, in little.
#[derive(Clone, Debug)]
pub struct Sample {
    /// How long it took, ns.
    pub duration_ns: u64,
    /// Bytes of the request, head included.
    pub request_bytes: u64,
    /// Time in each phase, µs (up to 71 minutes), in the order of [`PhaseName::ALL`].
    phases_us: [u32; PHASES],
}

impl Sample {
    fn new(timeline: &Timeline) -> Self {
        let phases_us = phase_sums(&timeline.phases)
            .map(|ns| u32::try_from(ns.div_ceil(1_000)).unwrap_or(u32::MAX));
        let Timeline { duration_ns, request_bytes, .. } = *timeline;
        Self { duration_ns, request_bytes, phases_us }
    }

    /// Time in each phase, ns.
    pub fn phases(&self) -> impl Iterator<Item = (PhaseName, u64)> + '_ {
        PhaseName::ALL.into_iter().zip(self.phases_us.iter().map(|us| u64::from(*us) * 1_000))
    }
}

/// Requests of one route that ended in one stretch of [`SLOT_NS`].
#[derive(Clone, Debug)]
pub struct Slot {
    /// Number of the stretch: its begin divided by [`SLOT_NS`].
    pub number: u64,
    /// Requests.
    pub requests: u64,
    /// Those of them that failed or went away.
    pub errors: u64,
    /// Those of them of which something is missing.
    pub incomplete: u64,
    /// Calls of the CUDA driver that failed for them.
    pub failed_calls: u64,
    /// Longest duration, ns.
    pub max_ns: u64,
    /// A fair sample of them.
    pub samples: Vec<Sample>,
    /// The slowest, the slowest first.
    pub slowest: Vec<Slow>,
}

impl Slot {
    /// An empty one.
    pub fn new(number: u64) -> Self {
        Self {
            number,
            requests: 0,
            errors: 0,
            incomplete: 0,
            failed_calls: 0,
            max_ns: 0,
            samples: Vec::new(),
            slowest: Vec::new(),
        }
    }

    /// Adds a request; by how many the kept ones grew.
    pub fn add(&mut self, timeline: &Timeline) -> usize {
        self.requests += 1;
        self.errors += u64::from(!matches!(timeline.outcome, None | Some(Outcome::Ok)));
        self.incomplete += u64::from(!timeline.complete);
        let failed = timeline.gpu.as_ref().map_or(0, |gpu| gpu.failed_calls);
        self.failed_calls = self.failed_calls.saturating_add(u64::from(failed));
        self.max_ns = self.max_ns.max(timeline.duration_ns);
        self.keep_slowest(timeline);
        if self.samples.len() < SAMPLES {
            self.samples.push(Sample::new(timeline));
            return 1;
        }
        // Every request of the slot is kept with the same chance; the same on every replay.
        let at = mix(self.number ^ self.requests.rotate_left(32)) % self.requests;
        if let Some(kept) = usize::try_from(at).ok().and_then(|at| self.samples.get_mut(at)) {
            *kept = Sample::new(timeline);
        }
        0
    }

    fn keep_slowest(&mut self, timeline: &Timeline) {
        let duration_ns = timeline.duration_ns;
        let at = self.slowest.partition_point(|slow| slow.duration_ns >= duration_ns);
        if at < SLOWEST {
            self.slowest.insert(at, Slow::of(timeline));
            self.slowest.truncate(SLOWEST);
        }
    }

    /// How many requests each sample stands for.
    pub fn weight(&self) -> f64 {
        self.requests as f64 / self.samples.len().max(1) as f64
    }
}

/// The smallest value that so much of the weight does not exceed; `part` from 0 to 1. Sorts.
pub fn quantile(values: &mut [(u64, f64)], part: f64) -> u64 {
    values.sort_unstable_by_key(|(value, _)| *value);
    let all: f64 = values.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    for (value, weight) in values.iter() {
        sum += weight;
        if sum >= all * part - 1e-9 {
            return *value;
        }
    }
    values.last().map_or(0, |(value, _)| *value)
}
