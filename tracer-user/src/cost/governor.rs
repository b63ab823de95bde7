//! Costs in, a level out. It sheds where tracing costs too much for long, never for a moment's work,
//! and gives back slowly, and the more slowly the more often giving back was wrong.

use super::Level;

/// What attaching costs is no news: nothing is judged before so much time has passed since, s.
const SETTLING_S: f64 = 5.0;
/// Readings above the limit, one after the other, and the time that they cover together, s, after
/// which more is left out. One reading can be a moment's work: of what the programs cost it holds
/// the tenth of its time that was measured.
const SHED_AFTER: u32 = 2;
const SHED_AFTER_S: f64 = 5.0;
/// Below this part of the limit there may be room for more.
const ROOM: f64 = 0.5;
/// Readings with room, one after the other, after which less is left out.
const RETURN_AFTER: u32 = 6;
/// At most so many, however often it was wrong.
const RETURN_AFTER_AT_MOST: u32 = 384;

/// What tracing cost over a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Seconds of processor time that programs in the kernel and the agent took per second.
    pub cores: f64,
    /// Processors of the machine.
    pub machine: f64,
    /// The time that it covers, s.
    pub over_s: f64,
}

/// What a reading led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing changes.
    Stay,
    /// More is left out from now on.
    Shed(Level),
    /// Less is.
    Return(Level),
}

/// Keeps to a budget.
#[derive(Clone, Copy, Debug)]
pub struct Governor {
    /// Part of the machine's processors, 0 to 1; 0: no budget.
    budget: f64,
    level: Level,
    /// Time since something was attached, s.
    settled_s: f64,
    above: u32,
    above_s: f64,
    with_room: u32,
    return_after: u32,
    /// Something was given back, and it has not been seen yet whether that was right.
    on_trial: bool,
}

impl Governor {
    /// For a budget in percent of the machine's processors; 0: none.
    pub fn new(percent: f64) -> Self {
        Self {
            budget: percent / 100.0,
            level: Level::Everything,
            settled_s: 0.0,
            above: 0,
            above_s: 0.0,
            with_room: 0,
            return_after: RETURN_AFTER,
            on_trial: false,
        }
    }

    /// Whether there is a budget to keep to.
    pub fn has_budget(&self) -> bool {
        self.budget > 0.0
    }

    /// What is left out now.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The budget, in percent of the machine's processors.
    pub fn percent(&self) -> f64 {
        self.budget * 100.0
    }

    /// Judges a reading.
    pub fn judge(&mut self, reading: Reading) -> Verdict {
        let limit = self.budget * reading.machine;
        // A machine without processors, or a reading that is no number, says nothing.
        let says_something = limit > 0.0 && reading.cores.is_finite() && reading.over_s.is_finite();
        if !self.has_budget() || !says_something {
            return Verdict::Stay;
        }
        // A reading counts that began when all was quiet again.
        let settling = self.settled_s < SETTLING_S;
        self.settled_s += reading.over_s.max(0.0);
        if settling {
            return Verdict::Stay;
        }
        if reading.cores > limit {
            self.with_room = 0;
            self.above += 1;
            self.above_s += reading.over_s;
            let sustained = self.above >= SHED_AFTER && self.above_s >= SHED_AFTER_S;
            return if sustained { self.shed() } else { Verdict::Stay };
        }
        (self.above, self.above_s) = (0, 0.0);
        if reading.cores > limit * ROOM {
            self.with_room = 0;
            return Verdict::Stay;
        }
        self.with_room = self.with_room.saturating_add(1);
        if self.level == Level::Everything {
            if self.with_room >= self.return_after {
                // It has fitted for as long as was waited: the next doubt begins anew.
                self.return_after = RETURN_AFTER;
                self.on_trial = false;
            }
            return Verdict::Stay;
        }
        if self.with_room < self.return_after {
            return Verdict::Stay;
        }
        self.with_room = 0;
        self.on_trial = true;
        self.settle();
        self.level = self.level.less();
        Verdict::Return(self.level)
    }

    /// Something is attached now: what that costs does not count.
    pub fn settle(&mut self) {
        self.settled_s = 0.0;
        (self.above, self.above_s) = (0, 0.0);
    }

    fn shed(&mut self) -> Verdict {
        (self.above, self.above_s) = (0, 0.0);
        if std::mem::take(&mut self.on_trial) {
            self.return_after = (self.return_after * 2).min(RETURN_AFTER_AT_MOST);
        }
        let more = self.level.more();
        if more == self.level {
            return Verdict::Stay;
        }
        self.level = more;
        Verdict::Shed(more)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reading(cores: f64) -> Reading {
        Reading { cores, machine: 2.0, over_s: 10.0 }
    }

    /// A governor that has settled.
    fn settled(percent: f64) -> Governor {
        Governor { settled_s: SETTLING_S, ..Governor::new(percent) }
    }

    /// Levels after each of so many readings, where each level costs what `costs` says.
    fn run(percent: f64, costs: [f64; 5], readings: usize) -> Vec<Level> {
        let mut governor = Governor::new(percent);
        (0..readings)
            .map(|_| {
                let cost = costs[usize::from(governor.level().number())];
                governor.judge(reading(cost));
                governor.level()
            })
            .collect()
    }

    #[test]
    fn what_fits_is_left_alone() {
        assert!(run(1.0, [0.019; 5], 100).iter().all(|level| *level == Level::Everything));
    }

    #[test]
    fn without_a_budget_nothing_is_shed() {
        assert!(run(0.0, [2.0; 5], 100).iter().all(|level| *level == Level::Everything));
    }

    #[test]
    fn one_reading_above_is_forgiven_however_far_two_are_not() {
        let mut governor = settled(1.0);
        for cores in [0.021, 1.0] {
            assert_eq!(governor.judge(reading(cores)), Verdict::Stay);
            assert_eq!(governor.judge(reading(0.015)), Verdict::Stay);
        }
        assert_eq!(governor.judge(reading(0.021)), Verdict::Stay);
        assert_eq!(governor.judge(reading(0.041)), Verdict::Shed(Level::Heads));
        assert_eq!(governor.judge(reading(1.0)), Verdict::Stay);
        assert_eq!(governor.judge(reading(1.0)), Verdict::Shed(Level::NoScheduler));
    }

    #[test]
    fn what_lasts_a_moment_is_forgiven_however_often_it_is_measured() {
        let mut governor = settled(1.0);
        let short = Reading { over_s: 1.0, ..reading(1.0) };
        for _ in 0..4 {
            assert_eq!(governor.judge(short), Verdict::Stay);
        }
        assert_eq!(governor.judge(short), Verdict::Shed(Level::Heads));
    }

    #[test]
    fn attaching_is_not_judged() {
        // As it comes: a second with all of the attaching in it, then stretches of ten.
        let mut governor = Governor::new(1.0);
        assert_eq!(governor.judge(Reading { over_s: 1.0, ..reading(0.4) }), Verdict::Stay);
        assert_eq!(governor.judge(reading(0.1)), Verdict::Stay);
        assert_eq!(governor.judge(reading(0.1)), Verdict::Stay);
        assert_eq!(governor.judge(reading(0.1)), Verdict::Shed(Level::Heads));
        governor.settle();
        assert_eq!(governor.judge(reading(0.1)), Verdict::Stay);
        assert_eq!(governor.judge(reading(0.1)), Verdict::Stay);
        assert_eq!(governor.judge(reading(0.1)), Verdict::Shed(Level::NoScheduler));
    }

    #[test]
    fn what_is_given_back_is_attached_first() {
        let mut governor = settled(1.0);
        for _ in 0..2 {
            let _ = governor.judge(reading(0.1));
        }
        while governor.judge(reading(0.001)) == Verdict::Stay {}
        assert_eq!(governor.level(), Level::Everything);
        // The first holds what attaching cost.
        assert_eq!(governor.judge(reading(1.0)), Verdict::Stay);
        assert_eq!(governor.judge(reading(1.0)), Verdict::Stay);
        assert_eq!(governor.judge(reading(1.0)), Verdict::Shed(Level::Heads));
    }

    #[test]
    fn it_settles_where_the_cost_fits() {
        let levels = run(1.0, [0.05, 0.03, 0.015, 0.01, 0.0], 50);
        assert_eq!(levels.last(), Some(&Level::NoScheduler));
    }

    #[test]
    fn what_was_shed_comes_back_when_there_is_room() {
        let mut governor = settled(1.0);
        for _ in 0..2 {
            let _ = governor.judge(reading(0.1));
        }
        for _ in 1..RETURN_AFTER {
            assert_eq!(governor.judge(reading(0.001)), Verdict::Stay);
        }
        assert_eq!(governor.judge(reading(0.001)), Verdict::Return(Level::Everything));
    }

    #[test]
    fn what_is_given_back_in_vain_is_tried_more_and_more_rarely() {
        let levels = run(1.0, [0.1, 0.001, 0.001, 0.001, 0.0], 1_000);
        let changes = levels.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!((4..=22).contains(&changes), "{changes} changes");
    }

    proptest! {
        #[test]
        fn levels_move_by_one_and_end_where_they_must(
            costs in proptest::collection::vec(0.0..0.2_f64, 0..200),
            percent in 0.1..5.0_f64,
        ) {
            let mut governor = Governor::new(percent);
            let mut before = governor.level();
            for cost in costs {
                let verdict = governor.judge(reading(cost));
                let now = governor.level();
                let moved = i16::from(now.number()) - i16::from(before.number());
                let limit = percent / 100.0 * 2.0;
                match verdict {
                    Verdict::Stay => prop_assert_eq!(moved, 0),
                    Verdict::Shed(level) => {
                        prop_assert_eq!((moved, level), (1, now));
                        prop_assert!(cost > limit, "shed within the budget");
                    }
                    Verdict::Return(level) => {
                        prop_assert_eq!((moved, level), (-1, now));
                        prop_assert!(cost <= limit * ROOM, "given back without room");
                    }
                }
                before = now;
            }
            for _ in 0..20 {
                governor.judge(reading(1.0));
            }
            prop_assert_eq!(governor.level(), Level::Nothing);
            for _ in 0..5 * RETURN_AFTER_AT_MOST {
                governor.judge(reading(0.0));
            }
            prop_assert_eq!(governor.level(), Level::Everything);
        }

        #[test]
        fn no_number_upsets_it(
            cores in any::<f64>(), machine in any::<f64>(), over_s in any::<f64>(), p in any::<f64>(),
        ) {
            let mut governor = settled(p);
            governor.judge(Reading { cores, machine, over_s });
        }
    }
}
