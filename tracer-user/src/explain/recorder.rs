//! The flight recorder: what the last hour's requests were like, and what happened beside them.

use std::collections::{BTreeMap, VecDeque};

use compact_str::{CompactString, format_compact};

use super::sample::{SLOT_NS, Slot};
use crate::{
    export::route::{RouteClass, route_class, route_label},
    happening::Happening,
    timeline::model::Timeline,
};

/// How far back it reaches at most, ns.
const HOUR_NS: u64 = 3_600_000_000_000;
/// Routes that are told apart; requests of further ones count as `other`.
const MAX_ROUTES: usize = 64;
/// Samples of all routes together, some hundred bytes each; beyond, the oldest ten seconds go.
const MAX_SAMPLES: usize = 60_000;
/// Lines of the event log.
const MAX_HAPPENINGS: usize = 1_024;
/// Name of everything beyond [`MAX_ROUTES`].
const OTHER: &str = "other";

/// Service, and method with route.
pub type RouteKey = (CompactString, CompactString);

/// What is held, for those who watch over memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Routes.
    pub routes: usize,
    /// Samples.
    pub samples: usize,
    /// Lines of the event log.
    pub happenings: usize,
    /// Stretches of ten seconds let go before their time for want of room.
    pub evicted: u64,
}

/// The last hour, in bounded memory.
#[derive(Debug, Default)]
pub struct FlightRecorder {
    pub(super) routes: BTreeMap<RouteKey, VecDeque<Slot>>,
    pub(super) happenings: VecDeque<Happening>,
    samples: usize,
    evicted: u64,
    /// When the first request ended, or what was let go for want of room did, ns.
    pub(super) from_ns: Option<u64>,
}

impl FlightRecorder {
    /// Takes a request that has ended. Health checks and scrapes are left out.
    pub fn add(&mut self, timeline: &Timeline) {
        if route_class(&timeline.route) == RouteClass::Health {
            return;
        }
        let end_ns = timeline.start_monotonic_ns.saturating_add(timeline.duration_ns);
        self.from_ns.get_or_insert(end_ns);
        let key = self.key(timeline);
        let slots = self.routes.entry(key).or_default();
        let number = end_ns / SLOT_NS;
        let at = slots.partition_point(|slot| slot.number < number);
        if slots.get(at).is_none_or(|slot| slot.number != number) {
            slots.insert(at, Slot::new(number));
        }
        if let Some(slot) = slots.get_mut(at) {
            self.samples += slot.add(timeline);
        }
        while self.samples > MAX_SAMPLES {
            self.evict();
        }
    }

    fn key(&self, timeline: &Timeline) -> RouteKey {
        let key = (
            timeline.service.clone(),
            format_compact!("{} {}", timeline.method, route_label(&timeline.route)),
        );
        if self.routes.len() < MAX_ROUTES || self.routes.contains_key(&key) {
            key
        } else {
            (OTHER.into(), OTHER.into())
        }
    }

    /// Takes a line of the event log.
    pub fn happened(&mut self, happening: &Happening) {
        if self.happenings.len() >= MAX_HAPPENINGS {
            self.happenings.pop_front();
        }
        self.happenings.push_back(happening.clone());
    }

    /// Time has passed: forgets what is older than an hour.
    pub fn advance(&mut self, now_ns: u64) {
        let oldest = now_ns.saturating_sub(HOUR_NS) / SLOT_NS;
        let samples = &mut self.samples;
        self.routes.retain(|_, slots| {
            while slots.front().is_some_and(|slot| slot.number < oldest) {
                let gone = slots.pop_front().map_or(0, |slot| slot.samples.len());
                *samples = samples.saturating_sub(gone);
            }
            !slots.is_empty()
        });
    }

    /// Lets the oldest ten seconds of all go.
    fn evict(&mut self) {
        let oldest = self.routes.values().filter_map(|slots| Some(slots.front()?.number)).min();
        let Some(oldest) = oldest else {
            self.samples = 0;
            return;
        };
        self.evicted += 1;
        self.from_ns = Some((oldest + 1).saturating_mul(SLOT_NS));
        self.advance((oldest + 1).saturating_mul(SLOT_NS).saturating_add(HOUR_NS));
    }

    /// What is held.
    pub fn held(&self) -> Held {
        Held {
            routes: self.routes.len(),
            samples: self.samples,
            happenings: self.happenings.len(),
            evicted: self.evicted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::tests::request;

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut recorder = FlightRecorder::default();
        for n in 0..400_000_u64 {
            let route = format!("/route-{}", ["a", "b"].repeat(n as usize % 100).join("-"));
            recorder.add(&request(&route, n * 5_000_000, &[]));
        }
        let held = recorder.held();
        assert!(held.samples <= MAX_SAMPLES && held.routes <= MAX_ROUTES + 1, "{held:?}");
        assert!(held.evicted > 0, "{held:?}");
        (0..2_000).for_each(|n| {
            let kind = crate::happening::Kind::Loss;
            recorder.happened(&Happening::new(n, kind, "x"));
        });
        assert_eq!(recorder.held().happenings, MAX_HAPPENINGS);
    }

    #[test]
    fn what_is_older_than_an_hour_is_forgotten() {
        let mut recorder = FlightRecorder::default();
        recorder.add(&request("/a", 1, &[]));
        recorder.add(&request("/a", HOUR_NS, &[]));
        recorder.advance(HOUR_NS + 2 * SLOT_NS);
        assert_eq!(recorder.held().samples, 1);
        recorder.advance(3 * HOUR_NS);
        assert_eq!(recorder.held().routes, 0);
    }

    #[test]
    fn the_sample_is_fair_and_counts_are_exact() {
        let mut recorder = FlightRecorder::default();
        // All in one slot: durations from 1 to 5,000 µs.
        for n in 1..=5_000_u64 {
            let mut timeline = request("/a", 1, &[]);
            timeline.duration_ns = n * 1_000;
            recorder.add(&timeline);
        }
        let slot = &recorder.routes.values().next().expect("one route")[0];
        assert_eq!((slot.requests, slot.max_ns), (5_000, 5_000_000));
        let mut values: Vec<_> = slot.samples.iter().map(|s| (s.duration_ns, 1.0)).collect();
        let median = super::super::sample::quantile(&mut values, 0.5);
        assert!((1_500_000..3_500_000).contains(&median), "{median}");
        assert_eq!(slot.slowest[0].duration_ns, 5_000_000);
    }
}
