//! Is the phase that was made to last the one that is named?

use std::collections::BTreeMap;

use super::verdict::Peers;
use crate::measure::Share;
use crate::timeline::Timeline;

/// How far the excess of one of several stalls may lie from what was injected.
const WITHIN: f64 = 0.2;

/// What was done to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "they say it")]
pub struct Injected {
    pub phase: &'static str,
    pub ns: u64,
}

/// The answer.
#[derive(Debug, Clone, Default)]
pub struct Stalls {
    /// Stalled requests whose largest excesses are what was injected. One without a timeline is
    /// named wrong.
    pub named: Share,
    /// How often each phase, or pair of phases, had the largest excesses.
    pub phases: BTreeMap<String, u64>,
    /// The first that was named wrong, in words.
    pub first_wrong: Option<String>,
}

impl Stalls {
    /// Adds what another run gave.
    pub fn merge(&mut self, other: Self) {
        self.named.good += other.named.good;
        self.named.all += other.named.all;
        for (phase, count) in other.phases {
            *self.phases.entry(phase).or_default() += count;
        }
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
    }
}

/// Whether the largest excesses of a request are the phases injected, in any order. Of several each
/// must have about its own length, so that one does not hide behind the other.
fn is_named(peers: &Peers, timeline: &Timeline, injected: &[Injected]) -> (bool, String) {
    let mut largest = peers.excesses(timeline);
    largest.truncate(injected.len());
    let right = injected.iter().all(|stall| {
        let found = largest.iter().find(|excess| excess.phase == stall.phase && excess.ns > 0.0);
        let near = |ns: f64| (ns / stall.ns as f64 - 1.0).abs() <= WITHIN;
        found.is_some_and(|excess| injected.len() == 1 || near(excess.ns))
    });
    let mut words: Vec<String> = largest.into_iter().map(|excess| excess.phase).collect();
    words.sort_unstable();
    (right, words.join(" + "))
}

/// Judges the stalled requests of a run.
pub fn stalls(peers: &Peers, stalled: &[Option<&Timeline>], injected: &[Injected]) -> Stalls {
    let mut outcome = Stalls::default();
    for timeline in stalled {
        let Some(timeline) = timeline else {
            outcome.named.add(false);
            *outcome.phases.entry("not reported".to_owned()).or_default() += 1;
            continue;
        };
        let (right, words) = is_named(peers, timeline, injected);
        if !right {
            outcome.first_wrong.get_or_insert_with(|| {
                let largest = peers.excesses(timeline);
                let largest = largest.get(..3).unwrap_or(&largest);
                format!("{injected:?} was named {words} ({largest:?}): {timeline:?}")
            });
        }
        outcome.named.add(right);
        *outcome.phases.entry(words).or_default() += 1;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::made;

    const MS: u64 = 1_000_000;

    fn peers() -> Peers {
        let peer = made(0, &[("cpu", 2 * MS), ("kernel", 30 * MS), ("dependency", MS)], &[]);
        Peers::of(&[&peer, &peer])
    }

    fn judged(phases: &[(&str, u64)], injected: &[Injected]) -> Stalls {
        stalls(&peers(), &[Some(&made(0, phases, &[]))], injected)
    }

    const CPU: Injected = Injected { phase: "cpu", ns: 20 * MS };
    const DEPENDENCY: Injected = Injected { phase: "dependency", ns: 20 * MS };

    #[test]
    fn the_injected_phase_is_named() {
        let outcome = judged(&[("cpu", 22 * MS), ("kernel", 31 * MS)], &[CPU]);
        assert_eq!(outcome.named, Share { good: 1, all: 1 });
        assert_eq!(outcome.phases.get("cpu"), Some(&1));
        assert!(outcome.first_wrong.is_none());
    }

    #[test]
    fn another_phase_is_wrong_and_so_is_none() {
        let wrong = judged(&[("cpu", 2 * MS), ("kernel", 50 * MS)], &[CPU]);
        assert_eq!(wrong.named, Share { good: 0, all: 1 });
        assert_eq!(wrong.phases.get("kernel"), Some(&1));
        assert!(wrong.first_wrong.unwrap().contains("was named kernel"));
        // Nothing is longer than it is with the peers.
        assert_eq!(judged(&[("cpu", 2 * MS)], &[CPU]).named.good, 0);
        let missing = stalls(&peers(), &[None], &[CPU]);
        assert_eq!(missing.named, Share { good: 0, all: 1 });
    }

    #[test]
    fn of_two_both_are_named_with_their_lengths() {
        let both = [CPU, DEPENDENCY];
        let named = |phases: &[(&str, u64)]| judged(phases, &both).named.good;
        assert_eq!(named(&[("cpu", 23 * MS), ("dependency", 20 * MS), ("kernel", 30 * MS)]), 1);
        // A third phase outweighs one of them.
        assert_eq!(named(&[("cpu", 22 * MS), ("dependency", 19 * MS), ("kernel", 90 * MS)]), 0);
        // All of it was given to one.
        assert_eq!(named(&[("cpu", 42 * MS), ("dependency", 2 * MS), ("kernel", 30 * MS)]), 0);
        // One is too short.
        assert_eq!(named(&[("cpu", 22 * MS), ("dependency", 15 * MS), ("kernel", 30 * MS)]), 0);
    }

    #[test]
    fn runs_add_up() {
        let mut sum = judged(&[("cpu", 22 * MS)], &[CPU]);
        sum.merge(judged(&[("cpu", 22 * MS), ("send", 40 * MS)], &[CPU]));
        assert_eq!(sum.named, Share { good: 1, all: 2 });
        assert!(sum.first_wrong.is_some());
    }
}
