//! What a call may have waited for, and second thoughts about it.
//!
//! A call is told when it returns. Calls of other threads that had begun earlier and return later
//! may have put work before what a thread waited for: then a wait that was named is told again,
//! undivided.

use std::collections::BTreeMap;

use super::facts::Root;
use super::op::{Class, StreamKey};
use super::out::{Method, Out, Wait, WaitPhase};
use super::proc::{At, Env, Proc};
use super::stream::StreamId;

/// How long named waits can be told again, ns: as long as timelines wait.
const KEEP_NS: u64 = 2_000_000_000;
const OVERLAPPED: &str = "work enqueued by an overlapping call of another thread came before";

/// By stream: what was entered before the instant (ns), and whether the call, record or wait looked
/// at may itself be behind other streams.
type Reached = BTreeMap<StreamId, (u64, bool)>;

fn widen(reached: &mut Reached, more: Reached) {
    for (id, (until_ns, is_root)) in more {
        let mine = reached.entry(id).or_insert((until_ns, is_root));
        *mine = (mine.0.max(until_ns), mine.1 || is_root);
    }
}

/// What a thread may have waited for.
#[derive(Clone, Debug, Default)]
pub(super) struct Outlook {
    classes: u8,
    pub(super) unseen: bool,
    /// Streams looked at.
    reached: Reached,
    /// All streams of the context were meant, those not seen yet too.
    pub(super) whole: bool,
}

impl Outlook {
    /// Nothing is outstanding, seen or unseen.
    pub(super) fn is_idle(&self) -> bool {
        self.classes == 0 && !self.unseen
    }

    /// Nothing was seen to be outstanding.
    pub(super) fn is_blank(&self) -> bool {
        self.classes == 0
    }

    pub(super) fn add(&mut self, class: Class) {
        self.classes |= class as u8;
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.classes |= other.classes;
        self.unseen |= other.unseen;
        self.whole |= other.whole;
        widen(&mut self.reached, other.reached);
    }

    /// Named where all is of one kind.
    pub(super) fn phase(&self) -> WaitPhase {
        match self.classes {
            _ if self.unseen => WaitPhase::Gpu,
            1 => WaitPhase::H2d,
            2 => WaitPhase::Kernel,
            4 => WaitPhase::D2h,
            _ => WaitPhase::Gpu,
        }
    }
}

/// A named wait, and where it looked.
#[derive(Clone, Debug)]
pub(super) struct Named {
    wait: Wait,
    reached: Reached,
    whole: bool,
}

impl Proc {
    /// What calls that look there may have waited for since that instant: what is outstanding, and
    /// what other threads' calls proved complete in the meantime.
    pub(super) fn outlook(&self, roots: &[Root], since_ns: u64) -> Outlook {
        let unseen = self.recent.forgot_since(since_ns);
        let mut outlook = Outlook { unseen, ..Outlook::default() };
        let mut work: Vec<(StreamId, u64, bool)> =
            roots.iter().map(|(id, until_ns)| (*id, *until_ns, true)).collect();
        while let Some((id, until_ns, is_root)) = work.pop() {
            let before = outlook.reached.get(&id).copied();
            let now = before.map_or((until_ns, is_root), |(until, root)| {
                (until.max(until_ns), root || is_root)
            });
            if before == Some(now) {
                continue;
            }
            outlook.reached.insert(id, now);
            self.look(id, now, since_ns, &mut outlook, &mut work);
        }
        // Work of streams that are gone since may have been waited for too.
        for op in self.recent.all_since(since_ns) {
            if self.streams.get(op.stream).is_none() {
                outlook.add(op.class);
            }
        }
        if let Some(unplaced) = self.streams.find(StreamKey::Unknown)
            && self.streams.get(unplaced).is_some_and(|stream| !stream.ops().is_empty())
        {
            outlook.unseen = true;
        }
        outlook
    }

    /// Adds what one stream holds, and where to look next.
    fn look(
        &self,
        id: StreamId,
        (until_ns, is_root): (u64, bool),
        since_ns: u64,
        outlook: &mut Outlook,
        work: &mut Vec<(StreamId, u64, bool)>,
    ) {
        let Some(stream) = self.streams.get(id) else {
            outlook.unseen = true;
            return;
        };
        let mut last_ns = None;
        for op in stream.ops().iter().take_while(|op| op.enqueue_first_ns < until_ns) {
            outlook.add(op.class());
            outlook.unseen |= op.lost;
            last_ns = last_ns.max(Some(op.exit_ns.unwrap_or(until_ns)));
        }
        for op in self.recent.ops_since(id, since_ns).filter(|op| op.enqueue_ns < until_ns) {
            outlook.add(op.class);
            outlook.unseen |= op.lost;
            last_ns = last_ns.max(Some(op.exit_ns));
        }
        let passed = self.recent.marks_since(id, since_ns);
        for mark in stream.marks().iter().chain(passed).filter(|mark| mark.enter_ns < until_ns) {
            match mark.source {
                Some((source, _, until_ns)) => work.push((source, until_ns, true)),
                None => outlook.unseen = true,
            }
        }
        last_ns = last_ns.max(stream.last_action_ns.filter(|_| stream.is_legacy()));
        if !is_root && last_ns.is_none() {
            return;
        }
        outlook.unseen |= !self.streams.was_clean(id, &self.contexts, since_ns);
        // Before the legacy default stream's last operation may lie what was entered before that had
        // returned; a synchronise, query or record on it may itself be behind everything.
        let reach_ns = match last_ns {
            Some(last_ns) if !is_root => last_ns.saturating_add(1).min(until_ns),
            _ => until_ns,
        };
        for peer in self.streams.possible_peers(id, &self.contexts) {
            work.push((peer, reach_ns, false));
        }
    }

    /// Remembers a wait that was named.
    pub(super) fn remember(&mut self, wait: &Wait, outlook: Outlook, env: &Env<'_>) {
        let old = |first: &Named| first.wait.exit_ns.saturating_add(KEEP_NS) < wait.exit_ns;
        while self.named.len() >= env.limits.named.max(1) || self.named.front().is_some_and(old) {
            self.named.pop_front();
        }
        let Outlook { reached, whole, .. } = outlook;
        // A streak without success is told late.
        let place = self.named.partition_point(|named| named.wait.exit_ns <= wait.exit_ns);
        self.named.insert(place, Named { wait: wait.clone(), reached, whole });
    }

    /// A call by `at.tid`, entered at `at.enter_ns`, has put something on a stream: what was said
    /// of the time in which it went on is judged again.
    pub(super) fn reconsider(
        &mut self,
        at: &At,
        id: StreamId,
        class: Option<Class>,
        env: &mut Env<'_>,
    ) {
        self.retract(at, env);
        let overlaps = |named: &Named| named.wait.exit_ns > at.enter_ns;
        if !self.named.back().is_some_and(overlaps) {
            return;
        }
        // Waits are remembered in the order in which they ended.
        let recent = self.named.iter().rev().take_while(|named| overlaps(named));
        let seen_ns = self.streams.get(id).map_or(0, |stream| stream.seen_ns);
        let peers = self.streams.possible_peers(id, &self.contexts);
        let concerned = recent.filter(|named| {
            // A stream that was not known then was not looked at.
            let late = seen_ns >= named.wait.exit_ns
                && (named.whole || peers.iter().any(|peer| named.reached.contains_key(peer)));
            let until = named.reached.get(&id);
            let reached = late || until.is_some_and(|until| at.enter_ns < until.0);
            named.wait.tid != at.tid && reached
        });
        let ends: Vec<(u32, u64, u64, WaitPhase)> = concerned
            .map(|named| {
                let wait = &named.wait;
                (wait.tid, wait.enter_ns, wait.exit_ns, wait.phase)
            })
            .collect();
        for (tid, enter_ns, exit_ns, phase) in ends {
            let mut outlook = self.outlook(&[(id, at.exit_ns.max(at.enter_ns + 1))], enter_ns);
            if let Some(class) = class {
                outlook.add(class);
            }
            if outlook.phase() != phase && !outlook.is_idle() {
                self.undivide(tid, exit_ns, env);
            } else if let Some(named) = self.named_mut(tid, exit_ns) {
                // Behind this one there may be others that are told later still.
                widen(&mut named.reached, outlook.reached);
            }
        }
    }

    fn named_mut(&mut self, tid: u32, exit_ns: u64) -> Option<&mut Named> {
        let found = |named: &&mut Named| named.wait.tid == tid && named.wait.exit_ns == exit_ns;
        self.named.iter_mut().rev().find(found)
    }

    fn undivide(&mut self, tid: u32, exit_ns: u64, env: &mut Env<'_>) {
        let found = |named: &Named| named.wait.tid == tid && named.wait.exit_ns == exit_ns;
        let Some(place) = self.named.iter().rposition(found) else { return };
        let Some(Named { mut wait, .. }) = self.named.remove(place) else { return };
        wait.phase = WaitPhase::Gpu;
        wait.method = match wait.method {
            Method::Direct if wait.steps.is_empty() => Method::Estimated,
            Method::Direct => Method::SyncBounded,
            method => method,
        };
        wait.detail = OVERLAPPED;
        env.counters.waits_told_again += 1;
        env.out.push(Out::Wait(wait));
    }
}
