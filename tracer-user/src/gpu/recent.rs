//! What was completed lately: for answers that come late, and for waits that began before.

use std::collections::VecDeque;

use super::event::Record;
use super::op::{Class, OpDone};
use super::out::{Step, Subject};
use super::stream::{Mark, StreamId};

/// How long completed operations are kept for a late answer, ns: as long as timelines wait.
const KEEP_NS: u64 = 2_000_000_000;

/// A completed operation that later answers may narrow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub(super) stream: StreamId,
    id: u64,
    tid: u32,
    pub(super) class: Class,
    pub(super) enqueue_ns: u64,
    pub(super) exit_ns: u64,
    pub(super) end_ns: u64,
    /// The latest end so far: calls may be told late.
    told_ns: u64,
    pub(super) lower_ns: u64,
    pub(super) upper_ns: u64,
    pub(super) lost: bool,
}

impl Completed {
    pub(super) fn of(stream: StreamId, done: &OpDone) -> Self {
        Self {
            stream,
            id: done.op.id,
            tid: done.op.tid,
            class: done.op.class(),
            enqueue_ns: done.op.enqueue_first_ns,
            exit_ns: done.op.exit_ns.unwrap_or(done.latest_end_ns),
            end_ns: done.latest_end_ns,
            told_ns: done.latest_end_ns,
            lower_ns: done.lower_ns,
            upper_ns: done.upper_ns,
            lost: done.op.lost,
        }
    }

    /// What a refinement of it speaks of.
    pub(super) fn subject(&self) -> Subject {
        Subject::Op { id: self.id, tid: self.tid, enqueue_ns: self.enqueue_ns }
    }

    /// Whether it was enqueued between two records.
    pub(super) fn lies_between(&self, start: &Record, end: &Record) -> bool {
        self.enqueue_ns >= start.exit_ns && self.exit_ns <= end.enter_ns
    }
}

/// A completed step that later answers may narrow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported {
    pub(super) stream: StreamId,
    pub(super) id: u64,
    pub(super) first_ns: u64,
    /// The last enqueue had returned, ns.
    pub(super) last_ns: u64,
    pub(super) at_ns: u64,
    pub(super) lower_ns: u64,
    pub(super) upper_ns: u64,
}

/// A lower bound that was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lowered {
    pub(super) subject: Subject,
    /// Thread that asked.
    pub(super) tid: u32,
    /// The operation had ended, ns.
    pub(super) end_ns: u64,
    pub(super) upper_ns: u64,
}

/// What was completed lately, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    pub(super) ops: VecDeque<Completed>,
    pub(super) steps: VecDeque<Reported>,
    /// Lower bounds given.
    lowered: VecDeque<Lowered>,
    /// Waits for events that were passed: when, on which stream.
    marks: VecDeque<(u64, StreamId, Mark)>,
    /// Of what was completed before, nothing is known any more, ns.
    forgotten_ns: u64,
}

impl Recent {
    pub(super) fn push(&mut self, op: Completed, cap: usize) {
        let old = |first: &Completed| first.end_ns.saturating_add(KEEP_NS) < op.end_ns;
        while self.ops.len() >= cap.max(1) || self.ops.front().is_some_and(old) {
            if let Some(gone) = self.ops.pop_front() {
                self.forgotten_ns = self.forgotten_ns.max(gone.end_ns);
            }
        }
        let told_ns = self.ops.back().map_or(0, |last| last.told_ns).max(op.end_ns);
        self.ops.push_back(Completed { told_ns, ..op });
    }

    /// A wait for an event was passed.
    pub(super) fn push_mark(&mut self, stream: StreamId, mark: Mark, now_ns: u64, cap: usize) {
        let old = |first: &(u64, StreamId, Mark)| first.0.saturating_add(KEEP_NS) < now_ns;
        while self.marks.len() >= cap.max(1) || self.marks.front().is_some_and(old) {
            if let Some((gone_ns, ..)) = self.marks.pop_front() {
                self.forgotten_ns = self.forgotten_ns.max(gone_ns);
            }
        }
        let told_ns = self.marks.back().map_or(0, |last| last.0).max(now_ns);
        self.marks.push_back((told_ns, stream, mark));
    }

    /// What was completed on the stream after that instant.
    pub(super) fn ops_since(&self, id: StreamId, at_ns: u64) -> impl Iterator<Item = &Completed> {
        self.all_since(at_ns).filter(move |op| op.stream == id)
    }

    /// What was completed after that instant.
    pub(super) fn all_since(&self, at_ns: u64) -> impl Iterator<Item = &Completed> {
        let after = self.ops.iter().rev().take_while(move |op| op.told_ns > at_ns);
        after.filter(move |op| op.end_ns > at_ns)
    }

    /// Waits for events that were passed on the stream after that instant.
    pub(super) fn marks_since(&self, id: StreamId, at_ns: u64) -> impl Iterator<Item = &Mark> {
        let after = self.marks.iter().rev().take_while(move |mark| mark.0 > at_ns);
        after.filter(move |mark| mark.1 == id).map(|mark| &mark.2)
    }

    /// A lower bound was given.
    pub(super) fn push_lowered(&mut self, lowered: Lowered, cap: usize) {
        let old = |first: &Lowered| first.end_ns.saturating_add(KEEP_NS) < lowered.end_ns;
        while self.lowered.len() >= cap.max(1) || self.lowered.front().is_some_and(old) {
            self.lowered.pop_front();
        }
        self.lowered.push_back(lowered);
    }

    /// Takes the lower bounds that a call of that thread, entered then, contradicts.
    pub(super) fn take_lowered(&mut self, tid: u32, enter_ns: u64) -> Vec<Lowered> {
        if self.lowered.back().is_none_or(|last| last.end_ns <= enter_ns) {
            return Vec::new();
        }
        let taken = |lowered: &Lowered| lowered.tid != tid && lowered.end_ns > enter_ns;
        let (taken, kept): (Vec<Lowered>, Vec<Lowered>) = self.lowered.drain(..).partition(taken);
        self.lowered = kept.into();
        taken
    }

    /// Whether something completed after that instant is no longer kept.
    pub(super) fn forgot_since(&self, at_ns: u64) -> bool {
        self.forgotten_ns > at_ns
    }

    /// `exit_ns`: the last of its enqueuing calls had returned.
    pub(super) fn push_step(&mut self, stream: StreamId, step: &Step, exit_ns: u64, cap: usize) {
        let now_ns = step.fact.exit_ns;
        let old = |first: &Reported| first.at_ns.saturating_add(KEEP_NS) < now_ns;
        while self.steps.len() >= cap.max(1) || self.steps.front().is_some_and(old) {
            self.steps.pop_front();
        }
        self.steps.push_back(Reported {
            stream,
            id: step.id,
            first_ns: step.first_enqueue_ns,
            last_ns: exit_ns,
            at_ns: now_ns,
            lower_ns: step.lower_ns,
            upper_ns: step.upper_ns,
        });
    }

    pub(super) fn clear(&mut self) {
        self.forgotten_ns = self.ops.back().map_or(self.forgotten_ns, |op| op.end_ns);
        self.ops.clear();
        self.marks.clear();
        self.lowered.clear();
        self.steps.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.ops.len() + self.steps.len() + self.marks.len() + self.lowered.len()
    }
}
