//! Which phase makes a request slower than its peers?
//!
//! The *excess* of a phase is a request's time in it beyond the phase's median among the peers; the
//! phase *named* is the one with the largest. Every request has a largest excess, be it of a few
//! microseconds: a *verdict* is given only where one stands out of what that phase does anyway.

use std::collections::{BTreeMap, BTreeSet};

use crate::measure::{Share, at, sorted};
use crate::timeline::Timeline;

/// An excess stands out when it is so many times the phase's own spread (99th percentile − median)
/// among the peers, …
const SPREADS: f64 = 5.0;
/// … and no less than this, ns: below it lies what a machine with two cores does by itself.
const LEAST_NS: f64 = 5e6;

/// What a phase does among the peers, ns.
#[derive(Debug, Clone, Copy, Default)]
struct Usual {
    median: f64,
    spread: f64,
}

/// Requests that nothing was done to: what others are compared with.
#[derive(Debug, Clone, Default)]
pub struct Peers(BTreeMap<String, Usual>);

/// How much longer than its peers a request was in a phase.
#[derive(Debug, Clone, PartialEq)]
pub struct Excess {
    /// The phase.
    pub phase: String,
    /// Beyond the median, ns; below it where negative.
    pub ns: f64,
}

fn names<'a>(timelines: impl Iterator<Item = &'a Timeline>) -> BTreeSet<&'a str> {
    timelines.flat_map(|timeline| &timeline.phases).map(|phase| phase.phase.as_str()).collect()
}

impl Peers {
    /// Learns what each phase does among these. A phase that a request has not took it no time.
    pub fn of(timelines: &[&Timeline]) -> Self {
        let usual = |name: &str| {
            let times = sorted(timelines.iter().map(|timeline| timeline.time_in(name) as f64));
            let median = at(&times, 0.5);
            Usual { median, spread: at(&times, 0.99) - median }
        };
        let names = names(timelines.iter().copied());
        Self(names.into_iter().map(|name| (name.to_owned(), usual(name))).collect())
    }

    fn usual(&self, phase: &str) -> Usual {
        self.0.get(phase).copied().unwrap_or_default()
    }

    /// The excess of each phase of a request, largest first.
    pub fn excesses(&self, timeline: &Timeline) -> Vec<Excess> {
        let mut excesses: Vec<Excess> = names(std::iter::once(timeline))
            .into_iter()
            .map(|name| Excess {
                phase: name.to_owned(),
                ns: timeline.time_in(name) as f64 - self.usual(name).median,
            })
            .collect();
        excesses.sort_by(|one, other| other.ns.total_cmp(&one.ns));
        excesses
    }

    /// The largest excess that stands out; `None` where none does.
    pub fn verdict(&self, timeline: &Timeline) -> Option<Excess> {
        self.excesses(timeline)
            .into_iter()
            .find(|excess| excess.ns > (SPREADS * self.usual(&excess.phase).spread).max(LEAST_NS))
    }
}

/// Verdicts on requests that nothing was done to.
#[derive(Debug, Clone, Default)]
pub struct FalseVerdicts {
    /// Requests with a verdict, of all.
    pub given: Share,
    /// How often each phase was named.
    pub phases: BTreeMap<String, u64>,
    /// The first, in words.
    pub first: Option<String>,
}

impl FalseVerdicts {
    /// Adds what another run gave.
    pub fn merge(&mut self, other: Self) {
        self.given.good += other.given.good;
        self.given.all += other.given.all;
        for (phase, count) in other.phases {
            *self.phases.entry(phase).or_default() += count;
        }
        self.first = self.first.take().or(other.first);
    }
}

/// Judges each of these by what the other half of them does: every second one in the order of their
/// starts, so that a machine which is slow for a while is slow for both halves.
pub fn false_verdicts(timelines: &[&Timeline]) -> FalseVerdicts {
    let mut ordered = timelines.to_vec();
    ordered.sort_by_key(|timeline| timeline.start_monotonic_ns);
    let half = |which: usize| -> Vec<&Timeline> {
        ordered.iter().skip(which).step_by(2).copied().collect()
    };
    let mut outcome = FalseVerdicts::default();
    for (judged, others) in [(half(0), half(1)), (half(1), half(0))] {
        let peers = Peers::of(&others);
        for timeline in judged {
            let verdict = peers.verdict(timeline);
            outcome.given.add(verdict.is_some());
            let Some(Excess { phase, ns }) = verdict else { continue };
            outcome.first.get_or_insert_with(|| {
                format!("{phase} for an excess of {:.1} ms: {timeline:?}", ns / 1e6)
            });
            *outcome.phases.entry(phase).or_default() += 1;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::made;

    const MS: u64 = 1_000_000;

    /// A hundred peers whose `cpu` lies between 1 and 2 ms and whose `lock` is almost always 0.
    fn hundred() -> Vec<Timeline> {
        (0..100)
            .map(|n| made(n * 10 * MS, &[("cpu", MS + n * 10_000), ("kernel", 3 * MS)], &[]))
            .collect()
    }

    fn of(timelines: &[Timeline]) -> Vec<&Timeline> {
        timelines.iter().collect()
    }

    #[test]
    fn the_largest_excess_is_named_not_the_largest_phase() {
        let peers = hundred();
        let peers = Peers::of(&of(&peers));
        let slow = made(0, &[("cpu", 9 * MS), ("kernel", 10 * MS), ("send", MS)], &[]);
        let excesses = peers.excesses(&slow);
        let order: Vec<&str> = excesses.iter().map(|excess| excess.phase.as_str()).collect();
        assert_eq!(order, ["cpu", "kernel", "send"]);
        assert!((excesses[0].ns - 7.51e6).abs() < 1e4, "{excesses:?}");
    }

    #[test]
    fn phases_of_one_name_are_summed() {
        let peers = hundred();
        let peers = Peers::of(&of(&peers));
        let slow = made(0, &[("lock", 4 * MS), ("cpu", 6 * MS), ("lock", 4 * MS)], &[]);
        assert_eq!(peers.excesses(&slow)[0], Excess { phase: "lock".to_owned(), ns: 8e6 });
    }

    #[test]
    fn a_verdict_needs_five_spreads_and_five_milliseconds() {
        let mut peers = hundred();
        for (n, peer) in (0..).zip(&mut peers) {
            // The spread of `queue` is 2 ms.
            *peer = made(n, &[("queue", if n > 90 { 2 * MS } else { 0 }), ("cpu", MS)], &[]);
        }
        let peers = Peers::of(&of(&peers));
        assert_eq!(peers.verdict(&made(0, &[("queue", 9 * MS)], &[])), None);
        assert_eq!(peers.verdict(&made(0, &[("queue", 11 * MS)], &[])).unwrap().phase, "queue");
        assert_eq!(peers.verdict(&made(0, &[("cpu", 5 * MS)], &[])), None);
        // What stands out counts, though `queue` has the larger excess.
        let both = made(0, &[("queue", 9 * MS), ("cpu", 7 * MS)], &[]);
        assert_eq!(peers.verdict(&both).unwrap().phase, "cpu");
    }

    #[test]
    fn peers_alike_give_no_verdict_and_an_odd_one_does() {
        let mut peers = hundred();
        assert_eq!(false_verdicts(&of(&peers)).given, Share { good: 0, all: 100 });
        peers[40] = made(400 * MS, &[("cpu", MS), ("dependency", 8 * MS)], &[]);
        let found = false_verdicts(&of(&peers));
        assert_eq!(found.given, Share { good: 1, all: 100 });
        assert_eq!(found.phases.get("dependency"), Some(&1));
        assert!(found.first.unwrap().starts_with("dependency"));
    }

    #[test]
    fn nothing_is_judged_by_nothing() {
        assert_eq!(false_verdicts(&[]).given, Share::default());
    }
}
