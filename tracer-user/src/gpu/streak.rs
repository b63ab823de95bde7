//! Streaks of NOT_READY queries: a thread that asks again and again waits.
//!
//! A streak ends with a success, with any other call of the driver by the thread (but not the ones
//! that switch the context), with a system call on a socket, or with a gap of [`STREAK_GAP_NS`]; it
//! may be about several events and streams at once.
//!
//! The kernel half keeps repeated NOT_READY answers of one object to itself: only the first is
//! told, and the answer that ends the streak tells when the last of them was asked. A streak
//! without such an answer is therefore known by its first query alone, and not reported.

use crate::intake::event::Api;

use super::decode::Target;
use super::facts::{Reach, Root};
use super::out::Method;
use super::outlook::Outlook;
use super::proc::{At, Env, Proc};
use super::wait::NOTABLE_NS;

/// Longest time between two queries of a streak, ns: longer than any sleep of a polling loop seen,
/// shorter than what a person would call idle.
const STREAK_GAP_NS: u64 = 100_000_000;
/// Targets remembered per streak.
const STREAK_TARGETS: usize = 16;
const UNFINISHED: &str = "queries without success";

/// NOT_READY answers that the kernel half kept to itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unsent {
    /// Entry of the last query, ns.
    pub(super) last_ns: u64,
    pub(super) count: u64,
}

/// NOT_READY answers in a row.
#[derive(Clone, Debug)]
pub(super) struct Streak {
    api: Api,
    first_ns: u64,
    last_ns: u64,
    queries: u64,
    targets: Vec<Root>,
    outlook: Outlook,
}

impl Streak {
    fn new(api: Api, first_ns: u64) -> Self {
        let (queries, targets) = (0, Vec::new());
        Self { api, first_ns, last_ns: first_ns, queries, targets, outlook: Outlook::default() }
    }
}

impl Proc {
    /// A query said that all is done.
    pub(super) fn on_ready(&mut self, at: &At, target: Target, unsent: Unsent, env: &mut Env<'_>) {
        let reach = self.reach(at, target, true, env);
        self.note_floor(&reach, unsent.last_ns, env);
        let streak = self.take_streak(at, unsent, env);
        if streak.is_none() && at.exit_ns - at.enter_ns < NOTABLE_NS {
            // It did not wait.
            self.prove_reach(at, &reach, env);
            return;
        }
        let enter_ns = streak.as_ref().map_or(at.enter_ns, |s| s.first_ns.min(at.enter_ns));
        let mut outlook = self.outlook(&reach.may, enter_ns);
        outlook.unseen |= reach.unknown;
        if let Some(streak) = streak {
            outlook.merge(streak.outlook);
        }
        let steps = self.prove_reach(at, &reach, env);
        self.completion_wait(at, enter_ns, outlook, steps, env);
    }

    /// The streak that a query continues.
    fn take_streak(&mut self, at: &At, unsent: Unsent, env: &mut Env<'_>) -> Option<Streak> {
        let thread = self.threads.get_mut(&at.tid)?;
        let busy_ns = thread.busy_ns;
        // Asked since the thread did something else: part of this streak.
        let asked = (unsent.count > 0 && unsent.last_ns >= busy_ns && unsent.last_ns < at.enter_ns)
            .then_some(unsent.last_ns);
        let mut streak = match (thread.streak.take(), asked) {
            (Some(streak), _) => streak,
            (None, Some(asked_ns)) => Streak::new(at.api, asked_ns),
            (None, None) => return None,
        };
        streak.last_ns = streak.last_ns.max(asked.unwrap_or(0));
        if at.enter_ns.saturating_sub(streak.last_ns) <= STREAK_GAP_NS {
            return Some(streak);
        }
        self.unfinished_wait(at.tid, &streak, env);
        None
    }

    fn note_floor(&mut self, reach: &Reach, at_ns: u64, env: &Env<'_>) {
        if let Some((id, behind_ns)) = reach.behind
            && let Some(stream) = self.streams.get_mut(id)
            && at_ns > behind_ns
        {
            stream.not_ready(behind_ns, at_ns, env.limits.floors);
        }
    }

    /// A query said that not all is done.
    pub(super) fn on_not_ready(&mut self, at: &At, target: Target, env: &mut Env<'_>) {
        let reach = self.reach(at, target, false, env);
        self.note_floor(&reach, at.enter_ns, env);
        let streak = self.take_streak(at, Unsent::default(), env);
        let mut streak = streak.unwrap_or_else(|| Streak::new(at.api, at.enter_ns));
        streak.api = at.api;
        streak.last_ns = streak.last_ns.max(at.exit_ns);
        streak.queries += 1;
        streak.outlook.unseen |= reach.unknown;
        // A stream by itself, an event by its position in it.
        let roots = reach.may.iter().map(|(id, until)| (*id, reach.behind.map_or(0, |_| *until)));
        for root in roots {
            if streak.targets.contains(&root) {
                continue;
            }
            if streak.targets.len() < STREAK_TARGETS {
                streak.outlook.merge(self.outlook(&reach.may, at.enter_ns));
                streak.targets.push(root);
            } else {
                streak.outlook.unseen = true;
            }
        }
        if let Some(thread) = self.threads.get_mut(&at.tid) {
            thread.streak = Some(streak);
        }
    }

    /// The thread did something else: a streak of queries is over.
    pub(super) fn end_streak(&mut self, tid: u32, env: &mut Env<'_>) {
        let streak = self.threads.get_mut(&tid).and_then(|thread| thread.streak.take());
        if let Some(streak) = streak {
            self.unfinished_wait(tid, &streak, env);
        }
    }

    fn unfinished_wait(&mut self, tid: u32, streak: &Streak, env: &mut Env<'_>) {
        if streak.queries < 2 || streak.last_ns - streak.first_ns < NOTABLE_NS {
            return;
        }
        // Other threads may have added to what it waited for since the first query.
        let now: Vec<Root> = streak.targets.iter().map(|(id, _)| (*id, streak.last_ns)).collect();
        let mut outlook = streak.outlook.clone();
        outlook.merge(self.outlook(&now, streak.first_ns));
        let at = At {
            tid,
            api: streak.api,
            per_thread: false,
            enter_ns: streak.first_ns,
            exit_ns: streak.last_ns,
        };
        self.wait(&at, outlook, Method::Estimated, Vec::new(), UNFINISHED, env);
    }
}
