//! What the GPU room found, kept until the requests that it may belong to are closed.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    gpu::{Failure, OpDone, Out, Refine, Step, Subject, Wait},
    in_order::{place, up_to},
    room::give_back,
};

/// What is kept of one process at most: about 25 MiB.
const MAX_OPS: usize = 65_536;
const MAX_WAITS: usize = 32_768;
const MAX_STEPS: usize = 32_768;
const MAX_FAILURES: usize = 4_096;

/// GPU work of one process.
#[derive(Default)]
pub struct Work {
    threads: BTreeMap<u32, Thread>,
    ops: usize,
    waits: usize,
    /// In the order of their ids.
    steps: VecDeque<Step>,
    failures: VecDeque<Failure>,
    evicted: u64,
    /// What was enqueued, or waited for, before this time has been let go for want of room, ns.
    floor_ns: u64,
}

/// What one thread enqueued and waited for. All of it comes nearly in order.
#[derive(Default)]
struct Thread {
    /// In the order of the entries of the enqueuing calls.
    ops: VecDeque<OpDone>,
    /// In the order of their ends. A thread's waits do not overlap, so an end names one.
    waits: VecDeque<Wait>,
}

impl Thread {
    fn add_op(&mut self, op: OpDone) {
        let enqueue_ns = op.op.enqueue_first_ns;
        let at = place(&self.ops, |other| other.op.enqueue_first_ns > enqueue_ns);
        self.ops.insert(at, op);
    }

    /// `false` where it replaced one that was told before.
    fn add_wait(&mut self, wait: Wait) -> bool {
        let at = place(&self.waits, |other| other.exit_ns > wait.exit_ns);
        match self.waits.get_mut(at.wrapping_sub(1)).filter(|other| other.exit_ns == wait.exit_ns) {
            Some(told) => *told = wait,
            None => {
                self.waits.insert(at, wait);
                return true;
            }
        }
        false
    }

    fn ops(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &OpDone> {
        let first = up_to(&self.ops, 0, |op| op.op.enqueue_first_ns < from_ns);
        self.ops.range(first..).take_while(move |op| op.op.enqueue_first_ns <= to_ns)
    }

    fn waits(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &Wait> {
        let first = up_to(&self.waits, 0, |wait| wait.exit_ns < from_ns);
        self.waits.range(first..).take_while(move |wait| wait.exit_ns <= to_ns)
    }
}

impl Work {
    /// Takes a finding in; the pid in it is this process's.
    pub fn add(&mut self, out: Out) {
        match out {
            Out::Op(op) => {
                self.ops += 1;
                self.threads.entry(op.op.tid).or_default().add_op(op);
            }
            Out::Step(step) => {
                let at = place(&self.steps, |other| other.id > step.id);
                // Whose they are is asked of the operations.
                let (tids, ops, after) = (Vec::new(), Vec::new(), Vec::new());
                self.steps.insert(at, Step { tids, ops, after, ..step });
            }
            Out::Wait(wait) => {
                // One that is told again, when its name is taken back, replaces the first.
                let thread = self.threads.entry(wait.tid).or_default();
                self.waits += usize::from(thread.add_wait(wait));
            }
            Out::Refine(refine) => self.refine(&refine),
            Out::Failure(failure) => self.failures.push_back(failure),
        }
        self.cap();
    }

    fn refine(&mut self, refine: &Refine) {
        let Refine { method, lower_ns, upper_ns, .. } = *refine;
        match refine.subject {
            Subject::Op { id, tid, enqueue_ns } => {
                let Some(thread) = self.threads.get_mut(&tid) else { return };
                let first = thread.ops.partition_point(|op| op.op.enqueue_first_ns < enqueue_ns);
                if let Some(op) = thread.ops.range_mut(first..).find(|op| op.op.id == id) {
                    (op.method, op.lower_ns, op.upper_ns) = (method, lower_ns, upper_ns);
                }
            }
            Subject::Step(id) => {
                if let Some(step) = self.step_at(id).and_then(|at| self.steps.get_mut(at)) {
                    (step.method, step.lower_ns, step.upper_ns) = (method, lower_ns, upper_ns);
                }
            }
        }
    }

    fn step_at(&self, id: u64) -> Option<usize> {
        self.steps.binary_search_by_key(&id, |step| step.id).ok()
    }

    fn cap(&mut self) {
        while self.ops > MAX_OPS || self.waits > MAX_WAITS {
            self.evict();
        }
        while self.steps.len() > MAX_STEPS
            && let Some(step) = self.steps.pop_front()
        {
            self.evicted += 1;
            self.floor_ns = self.floor_ns.max(step.first_enqueue_ns);
        }
        while self.failures.len() > MAX_FAILURES
            && let Some(failure) = self.failures.pop_front()
        {
            self.evicted += 1;
            self.floor_ns = self.floor_ns.max(failure.exit_ns);
        }
    }

    /// Lets the older eighth of the time go.
    fn evict(&mut self) {
        let begins = |thread: &Thread| {
            let op = thread.ops.front().map(|op| op.op.enqueue_first_ns);
            op.into_iter().chain(thread.waits.front().map(|wait| wait.exit_ns)).min()
        };
        let ends = |thread: &Thread| {
            let op = thread.ops.back().map(|op| op.op.enqueue_first_ns);
            op.into_iter().chain(thread.waits.back().map(|wait| wait.exit_ns)).max()
        };
        let first = self.threads.values().filter_map(begins).min().unwrap_or(0);
        let last = self.threads.values().filter_map(ends).max().unwrap_or(0);
        let to_ns = first.saturating_add(last.saturating_sub(first) / 8);
        let before = self.ops + self.waits;
        self.floor_ns = self.floor_ns.max(to_ns);
        self.forget(|op| op.op.enqueue_first_ns <= to_ns, |wait| wait.exit_ns <= to_ns);
        self.evicted += (before - self.ops - self.waits) as u64;
    }

    fn forget(&mut self, old_op: impl Fn(&OpDone) -> bool, old_wait: impl Fn(&Wait) -> bool) {
        let (ops, waits) = (&mut self.ops, &mut self.waits);
        self.threads.retain(|_, thread| {
            while thread.ops.front().is_some_and(&old_op) {
                thread.ops.pop_front();
                *ops -= 1;
            }
            while thread.waits.front().is_some_and(&old_wait) {
                thread.waits.pop_front();
                *waits -= 1;
            }
            give_back(&mut thread.ops);
            give_back(&mut thread.waits);
            !thread.ops.is_empty() || !thread.waits.is_empty()
        });
    }

    /// Forgets what ended before this time, ns.
    pub fn forget_before(&mut self, time_ns: u64) {
        self.forget(|op| op.latest_end_ns < time_ns, |wait| wait.exit_ns < time_ns);
        while self.steps.front().is_some_and(|step| step.fact.exit_ns < time_ns) {
            self.steps.pop_front();
        }
        give_back(&mut self.steps);
        while self.failures.front().is_some_and(|failure| failure.exit_ns < time_ns) {
            self.failures.pop_front();
        }
    }

    /// Work that the thread enqueued from `from_ns` to `to_ns`.
    pub fn ops_of(&self, tid: u32, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &OpDone> {
        self.threads.get(&tid).into_iter().flat_map(move |thread| thread.ops(from_ns, to_ns))
    }

    /// Waits of the thread that ended from `from_ns` to `to_ns`, in order.
    pub fn waits_of(&self, tid: u32, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &Wait> {
        self.threads.get(&tid).into_iter().flat_map(move |thread| thread.waits(from_ns, to_ns))
    }

    /// Waits of any thread that ended from `from_ns` to `to_ns`, in the order of their ends.
    pub fn waits(&self, from_ns: u64, to_ns: u64) -> Vec<&Wait> {
        let all = self.threads.values().flat_map(|thread| thread.waits(from_ns, to_ns));
        let mut waits: Vec<&Wait> = all.collect();
        waits.sort_by_key(|wait| (wait.exit_ns, wait.tid));
        waits
    }

    /// A step that is still kept.
    pub fn step(&self, id: u64) -> Option<&Step> {
        self.steps.get(self.step_at(id)?)
    }

    /// Failed calls of the thread in a stretch of time.
    pub fn failures_of(&self, tid: u32, from_ns: u64, to_ns: u64) -> usize {
        let within = |failure: &&Failure| {
            failure.tid == tid && failure.enter_ns >= from_ns && failure.exit_ns <= to_ns
        };
        self.failures.iter().filter(within).count()
    }

    /// What was enqueued, or waited for, before this time has been let go for want of room, ns.
    pub fn floor_ns(&self) -> u64 {
        self.floor_ns
    }

    /// Findings dropped for want of room before their time.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}
