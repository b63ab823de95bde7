//! Do the phases say what a request waited for, where the server knows it?
//!
//! A wait is judged by place, not by sum: time of the phase outside the server's own stamps is
//! wrong, and so is time between them that went to another phase.

use std::collections::BTreeMap;

use crate::measure::{Share, Spread};
use crate::oracles::server::Line;
use crate::report::Scenario;
use crate::timeline::Timeline;

/// What may be misplaced: a constant, ns, …
const SLACK_NS: u64 = 1_000_000;
/// … and a part of what the server knows. (Its stamps lie around the wait: a thread that has no core
/// between a stamp and the call makes both differ.)
const SLACK_PART: f64 = 0.05;
/// Requests that must be within that.
const WITHIN: f64 = 0.95;

/// Who was woken and waits for a core still stands between the stamps of the wait.
const WOKEN: &str = "run-queue";

/// Time misplaced, of one question.
#[derive(Debug, Clone, Default)]
struct Misplaced {
    within: Share,
    ns: Vec<u64>,
    first_wrong: Option<String>,
}

/// The answer, by phase.
#[derive(Debug, Clone, Default)]
pub struct Causes(BTreeMap<&'static str, Misplaced>);

/// Time of `phase` outside of `truth`, and of other phases in it. Neither overlaps itself.
fn misplaced(timeline: &Timeline, phase: &str, truth: &[(u64, u64)]) -> u64 {
    let start = timeline.start_monotonic_ns;
    let (mut outside, mut explained) = (0, 0);
    for one in &timeline.phases {
        let (from, to) = (start + one.offset_ns, start + one.offset_ns + one.duration_ns);
        let inside = |stamps: &(u64, u64)| to.min(stamps.1).saturating_sub(from.max(stamps.0));
        let inside: u64 = truth.iter().map(inside).sum();
        if one.phase == phase {
            outside += one.duration_ns.saturating_sub(inside);
            explained += inside;
        } else if one.phase == WOKEN {
            explained += inside;
        }
    }
    outside + total(truth).saturating_sub(explained)
}

fn total(stretches: &[(u64, u64)]) -> u64 {
    stretches.iter().map(|(from, to)| to.saturating_sub(*from)).sum()
}

impl Causes {
    /// Takes in a request.
    pub fn add(&mut self, line: &Line, timeline: &Timeline) {
        let waits = [
            ("queue", line.queued()),
            ("dependency", line.host_spans("dep")),
            ("lock", line.host_spans("lock")),
        ];
        for (phase, truth) in waits {
            if !truth.is_empty() {
                let ns = misplaced(timeline, phase, &truth);
                self.note(phase, total(&truth), ns, line, timeline);
            }
        }
        // Where it ran its plan's work is not stamped apart from what the plan does besides: less
        // is wrong, more is not.
        let cpu = line.cpu_ns();
        if cpu > 0 {
            let missing = cpu.saturating_sub(timeline.time_in("cpu"));
            self.note("cpu", cpu, missing, line, timeline);
        }
    }

    fn note(
        &mut self,
        phase: &'static str,
        truth_ns: u64,
        wrong_ns: u64,
        line: &Line,
        timeline: &Timeline,
    ) {
        let here = self.0.entry(phase).or_default();
        let allowed = SLACK_NS + (truth_ns as f64 * SLACK_PART) as u64;
        let within = wrong_ns <= allowed;
        here.within.add(within);
        here.ns.push(wrong_ns);
        if !within && here.first_wrong.is_none() {
            here.first_wrong =
                Some(format!("{phase}: {wrong_ns} ns misplaced of {line:?}: {timeline:?}"));
        }
    }

    /// Publishes what was found, and demands that most are within their bounds.
    pub fn judge(self, scenario: &mut Scenario) {
        for (phase, found) in self.0 {
            scenario.add_share(&format!("{phase}_right"), found.within);
            let spread = Spread::micros(&found.ns);
            scenario.add_spread(&format!("{phase}_misplaced_us"), spread);
            let before = scenario.failures.len();
            scenario.demand_share(&format!("{phase} where it was"), found.within, WITHIN);
            if scenario.failures.len() > before {
                scenario.failures.extend(found.first_wrong);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::made;

    const MS: u64 = 1_000_000;

    /// Handed over at 10 ms, taken at 30 ms; 40 to 60 ms waited for a lock; 5 ms of CPU.
    fn line() -> Line {
        serde_json::from_value(serde_json::json!({
            "t": "request", "pid": 1, "tid": 2, "loop_tid": 3, "plan": "spin:5000000",
            "hands": [[10 * MS, 2, 30 * MS, 80 * MS]],
            "host": [["lock", 40 * MS, 60 * MS]]
        }))
        .unwrap()
    }

    fn judged(phases: &[(&str, u64)]) -> Vec<(&'static str, u64)> {
        let mut causes = Causes::default();
        causes.add(&line(), &made(10 * MS, phases, &[]));
        causes.0.into_iter().map(|(phase, found)| (phase, found.ns[0])).collect()
    }

    #[test]
    fn waits_where_they_were_are_right() {
        let right =
            judged(&[("queue", 19 * MS), ("run-queue", MS), ("cpu", 10 * MS), ("lock", 20 * MS)]);
        assert_eq!(right, [("cpu", 0), ("lock", 0), ("queue", 0)]);
    }

    #[test]
    fn the_same_sums_elsewhere_are_wrong() {
        // 20 ms each, but the other way round: 10 ms of the lock's time are its own.
        let swapped = judged(&[("lock", 20 * MS), ("cpu", 5 * MS), ("queue", 20 * MS)]);
        assert_eq!(swapped, [("cpu", 0), ("lock", 40 * MS), ("queue", 40 * MS)]);
    }

    #[test]
    fn nothing_said_is_all_misplaced() {
        let silent = judged(&[("unattributed", 60 * MS)]);
        assert_eq!(silent, [("cpu", 5 * MS), ("lock", 20 * MS), ("queue", 20 * MS)]);
    }

    #[test]
    fn too_many_misplaced_fail_the_scenario() {
        let (mut good, mut bad) = (Causes::default(), Causes::default());
        let phases =
            [("queue", 20 * MS), ("cpu", 10 * MS), ("lock", 20 * MS), ("unattributed", MS)];
        good.add(&line(), &made(10 * MS, &phases, &[]));
        bad.add(&line(), &made(10 * MS, &[("unattributed", 60 * MS)], &[]));
        let (mut passed, mut failed) = (Scenario::default(), Scenario::default());
        good.judge(&mut passed);
        assert!(passed.failures.is_empty(), "{:?}", passed.failures);
        assert_eq!(passed.more["queue_right"]["ratio"], 1.0);
        bad.judge(&mut failed);
        // Each with an example.
        assert_eq!(failed.failures.len(), 6, "{:?}", failed.failures);
    }

    #[test]
    fn what_the_server_does_not_know_is_not_judged() {
        let mut causes = Causes::default();
        let line = serde_json::from_value(serde_json::json!({"t": "request"})).unwrap();
        causes.add(&line, &made(0, &[("queue", MS)], &[]));
        assert!(causes.0.is_empty());
    }
}
