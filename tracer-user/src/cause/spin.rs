//! The end of a streak of polls: whose work ended it?
//!
//! A thread that polls memory is woken by nobody. But what it polls for came between its last look
//! but one and its last; whoever put it there was at work then. Where two threads that reach the
//! same memory hand things to each other that way, that one begins to poll in turn: one streak
//! begins where the other ends. Exactly one such thread makes an edge, several make none.

use std::collections::{BTreeSet, VecDeque};

use foldhash::HashMap;

use super::{edge::Edge, history::Thread, objects::Objects};
use crate::{in_order::place, intake::event::SleepState, room::give_back};

/// A thread that polls runs no longer than this between two polls, ns: the kernel half ends the
/// streak otherwise. So its last look in vain lies no further before its last poll.
const PAUSE_NS: u64 = 200_000;
/// How long a thread may go on running after it has handed something over, ns.
const SOON_NS: u64 = 1_000_000;
/// Whoever worked for less between two streaks only looked elsewhere as well, ns.
const LEAST_WORK_NS: u64 = 10_000;
/// A thread without a streak this long does not poll: it asks for a lock again after a yield or two,
/// ns.
const LEAST_STREAK_NS: u64 = 20_000;
/// How soon after its last poll a thread that was off the processor had left it, ns.
const LEFT_NS: u64 = 50_000;
/// Confidence in an edge from a thread that did all its work while this one polled, and in one from
/// a thread that was at work before: that may have ended for another.
const IN_TURN: f64 = 0.95;
const BUSY_BEFORE: f64 = 0.8;
/// Threads that poll.
const MAX_POLLERS: usize = 256;
/// Streaks of one thread that are remembered.
const MAX_STREAKS: usize = 1_024;
/// Ends of streaks that may wait to be looked into.
const MAX_ENDS: usize = 16_384;
/// Ends that are looked into within one second.
const MAX_PER_SECOND: u32 = 10_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Why the end of a streak is no edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unled {
    /// It has not been looked into: it goes on, or there were too many.
    NotLooked,
    /// It ended in a call of the GPU's driver, which polls for the GPU.
    Driver,
    /// No thread that reaches the same memory began to poll then.
    Nobody,
    /// Several did.
    Several,
}

impl Unled {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotLooked => "its end has not been looked into",
            Self::Driver => "in a call of the GPU's driver",
            Self::Nobody => "no thread that reaches the same memory began to poll as it ended",
            Self::Several => "several threads that reach the same memory began to poll as it ended",
        }
    }
}

/// A streak of polls.
#[derive(Clone, Copy, Debug)]
pub struct Streak {
    /// The first poll, ns.
    pub first_ns: u64,
    /// The last, ns.
    pub last_ns: u64,
    /// When the thread went on, as far as is known: not before this, ns.
    pub back_ns: u64,
    /// And not after this, ns.
    until_ns: u64,
    ended: bool,
    /// Who ended it.
    pub led: Result<Edge, Unled>,
}

#[derive(Debug, Default)]
struct Poller {
    pid: u32,
    /// In the order of time; they do not overlap.
    streaks: VecDeque<Streak>,
    /// Calls of the GPU's driver that were long enough for a streak: entry and return, ns.
    driver: VecDeque<(u64, u64)>,
}

impl Poller {
    fn at(&mut self, first_ns: u64) -> Option<&mut Streak> {
        let at = self.streaks.binary_search_by_key(&first_ns, |streak| streak.first_ns).ok()?;
        self.streaks.get_mut(at)
    }

    fn is_in_driver(&self, streak: &Streak) -> bool {
        let first = self.driver.partition_point(|(_, exit_ns)| *exit_ns < streak.last_ns);
        let call = self.driver.get(first);
        call.is_some_and(|(enter_ns, _)| *enter_ns <= streak.first_ns)
    }
}

/// A streak that has ended for good, and who ended it.
#[derive(Clone, Copy, Debug)]
pub struct Led {
    /// Process of the thread that polled.
    pub pid: u32,
    /// That thread.
    pub tid: u32,
    /// Its streak.
    pub streak: Streak,
    /// Who ended it.
    pub edge: Edge,
}

/// Streaks of every thread that polls.
#[derive(Debug, Default)]
pub struct Spins {
    pollers: HashMap<u32, Poller>,
    /// Ends that wait: when it can have been handed something at the earliest, thread, first poll.
    ends: BTreeSet<(u64, u32, u64)>,
    /// The second in which ends were last looked into, and how many.
    second: (u64, u32),
    left_out: u64,
}

impl Spins {
    /// A thread has polled, and this was told at `told_ns`.
    pub fn note(
        &mut self,
        (pid, tid): (u32, u32),
        (first_ns, last_ns): (u64, u64),
        told_ns: u64,
        goes_on: bool,
    ) {
        if last_ns < first_ns {
            return;
        }
        if !self.pollers.contains_key(&tid) {
            // One that only lets others go first is none.
            if last_ns.saturating_sub(first_ns) < LEAST_STREAK_NS {
                return;
            }
            if self.pollers.len() >= MAX_POLLERS {
                self.left_out += 1;
                return;
            }
        }
        let poller = self.pollers.entry(tid).or_default();
        poller.pid = pid;
        let until_ns = last_ns.saturating_add(PAUSE_NS).min(told_ns.max(last_ns));
        let led = Err(Unled::NotLooked);
        let streak = Streak { first_ns, last_ns, back_ns: last_ns, until_ns, ended: !goes_on, led };
        match poller.at(first_ns) {
            Some(known) if known.last_ns <= last_ns => *known = streak,
            Some(_) => return,
            None => {
                let at = place(&poller.streaks, |other| other.first_ns > first_ns);
                poller.streaks.insert(at, streak);
            }
        }
        if poller.streaks.len() > MAX_STREAKS {
            poller.streaks.pop_front();
        }
        if goes_on {
            return;
        }
        if self.ends.len() < MAX_ENDS {
            self.ends.insert((last_ns.saturating_sub(PAUSE_NS), tid, first_ns));
        } else {
            self.left_out += 1;
        }
    }

    /// The thread was in a call of the GPU's driver: what it polled for there nobody handed to it.
    pub fn in_driver(&mut self, tid: u32, enter_ns: u64, exit_ns: u64) {
        if exit_ns.saturating_sub(enter_ns) < LEAST_STREAK_NS {
            return;
        }
        let Some(poller) = self.pollers.get_mut(&tid) else { return };
        if poller.driver.len() >= MAX_STREAKS {
            poller.driver.pop_front();
        }
        poller.driver.push_back((enter_ns, exit_ns));
    }

    /// Looks into the ends of which everything has been told up to a time, ns; `out` is told each
    /// that somebody led.
    pub fn advance(
        &mut self,
        to_ns: u64,
        threads: &HashMap<u32, Thread>,
        objects: &Objects,
        mut out: impl FnMut(Led),
    ) {
        while let Some((time_ns, tid, first_ns)) =
            self.ends.first().copied().filter(|(time_ns, ..)| *time_ns <= to_ns)
        {
            self.ends.pop_first();
            let second = time_ns / SECOND_NS;
            if self.second.0 != second {
                self.second = (second, 0);
            }
            if self.second.1 >= MAX_PER_SECOND {
                self.left_out += 1;
                continue;
            }
            let Some(poller) = self.pollers.get_mut(&tid) else { continue };
            let pid = poller.pid;
            let Some(mut judged) = poller.at(first_ns).copied() else { continue };
            if let Some(back_ns) = threads.get(&tid).and_then(|thread| back(thread, &judged)) {
                judged.back_ns = back_ns;
                judged.until_ns = back_ns;
            }
            judged.led = if poller.is_in_driver(&judged) {
                Err(Unled::Driver)
            } else {
                self.second.1 += 1;
                self.leader((pid, tid), &judged, threads, objects)
            };
            if let Ok(edge) = judged.led {
                judged.back_ns = judged.back_ns.max(edge.at_ns);
                out(Led { pid, tid, streak: judged, edge });
            }
            if let Some(streak) = self.pollers.get_mut(&tid).and_then(|p| p.at(first_ns)) {
                *streak = judged;
            }
        }
    }

    /// The one thread that ended its work, and began to poll, as the streak ended.
    fn leader(
        &self,
        (pid, tid): (u32, u32),
        streak: &Streak,
        threads: &HashMap<u32, Thread>,
        objects: &Objects,
    ) -> Result<Edge, Unled> {
        let mut found = Err(Unled::Nobody);
        for (other, poller) in &self.pollers {
            if *other == tid || poller.pid != pid && !objects.share_memory(pid, poller.pid) {
                continue;
            }
            let Some(edge) = threads.get(other).and_then(|thread| leads(streak, poller, thread))
            else {
                continue;
            };
            if found.is_ok() {
                return Err(Unled::Several);
            }
            found = Ok(Edge { tid: *other, ..edge });
        }
        found
    }

    /// The last streak of a thread that began before a time, ns.
    pub fn before(&self, tid: u32, time_ns: u64) -> Option<&Streak> {
        let streaks = &self.pollers.get(&tid)?.streaks;
        let after = streaks.partition_point(|streak| streak.first_ns < time_ns);
        streaks.get(after.checked_sub(1)?)
    }

    /// A thread's number may be somebody else's from now on.
    pub fn forget_thread(&mut self, tid: u32) {
        self.pollers.remove(&tid);
    }

    /// Forgets what ended before this time, ns; of threads that `lives` says to live, not what may
    /// still go on.
    pub fn forget_before(&mut self, time_ns: u64, lives: impl Fn(u32) -> bool) {
        self.pollers.retain(|tid, poller| {
            let old = poller.streaks.partition_point(|streak| streak.back_ns < time_ns);
            poller.streaks.drain(..old.min(poller.streaks.len().saturating_sub(1)));
            let old = poller.driver.partition_point(|(_, exit_ns)| *exit_ns < time_ns);
            poller.driver.drain(..old);
            give_back(&mut poller.streaks);
            give_back(&mut poller.driver);
            let last = poller.streaks.back();
            last.is_some_and(|last| last.back_ns >= time_ns || !last.ended && lives(*tid))
        });
    }

    /// Threads, streaks and ends for which there was no room.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Streaks held.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.pollers.values().map(|poller| poller.streaks.len()).sum::<usize>() + self.ends.len()
    }
}

/// When a thread went on that was off the processor at its last poll, for long enough to be told.
fn back(thread: &Thread, streak: &Streak) -> Option<u64> {
    let mut sleeps = thread.sleeps(streak.last_ns, streak.last_ns.saturating_add(LEFT_NS));
    let left = sleeps
        .find(|sleep| sleep.state == SleepState::Preempted && sleep.out_ns >= streak.last_ns)?;
    Some(left.in_ns)
}

/// Whether a thread was at work as another one's streak ended, and began to poll right behind that.
fn leads(streak: &Streak, poller: &Poller, thread: &Thread) -> Option<Edge> {
    // What was there at its first look would have made no streak.
    let earliest_ns = streak.last_ns.saturating_sub(PAUSE_NS).max(streak.first_ns);
    let at = poller.streaks.partition_point(|own| own.first_ns < earliest_ns);
    let next = poller.streaks.get(at)?;
    let before = at.checked_sub(1).and_then(|at| poller.streaks.get(at));
    let off_ns = |from_ns: u64, to_ns: u64| -> u64 {
        let off = thread.sleeps(from_ns, to_ns);
        off.map(|sleep| sleep.in_ns.min(to_ns).saturating_sub(sleep.out_ns.max(from_ns)))
            .fold(0, u64::saturating_add)
    };
    let late_ns = next.first_ns.saturating_sub(streak.until_ns);
    // Records of times that cannot be may overlap.
    let ran_ns = late_ns.saturating_sub(off_ns(streak.until_ns, next.first_ns));
    if ran_ns > SOON_NS {
        return None;
    }
    let woken_ns = thread
        .sleep_before(next.first_ns)
        .filter(|sleep| sleep.state != SleepState::Preempted && sleep.in_ns <= next.first_ns)
        .map_or(0, |sleep| sleep.in_ns);
    let polled_ns = before.map_or(0, |own| own.last_ns);
    let asleep = woken_ns.max(polled_ns) >= streak.until_ns;
    let here_ns = next.first_ns.min(streak.until_ns);
    let span_ns = here_ns.saturating_sub(earliest_ns);
    let away = span_ns > 0 && off_ns(earliest_ns, here_ns) >= span_ns;
    if asleep || away || next.first_ns.saturating_sub(polled_ns) < LEAST_WORK_NS {
        return None;
    }
    let began_ns = before.map_or(woken_ns, |own| own.back_ns);
    let in_turn = began_ns.saturating_add(PAUSE_NS) >= streak.first_ns;
    Some(Edge {
        pid: poller.pid,
        tid: 0,
        // At the latest: it had left what it had before it looked for an answer.
        at_ns: here_ns,
        // Memory has no number.
        object: 0,
        confidence: if in_turn { IN_TURN } else { BUSY_BEFORE },
    })
}
