//! What the GPU room found, kept until the requests that it may belong to are closed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::gpu::{Failure, OpDone, Out, Step, Subject, Wait};

/// What is kept of one process at most.
const MAX_OPS: usize = 262_144;
const MAX_WAITS: usize = 65_536;
const MAX_STEPS: usize = 65_536;
const MAX_FAILURES: usize = 4_096;

/// GPU work of one process.
#[derive(Default)]
pub struct Work {
    /// By thread and entry of the enqueuing call: one thread's work in a stretch of time is one
    /// range.
    ops: BTreeMap<(u32, u64, u64), OpDone>,
    op_keys: HashMap<u64, (u32, u64, u64)>,
    op_order: VecDeque<u64>,
    /// By end and thread: a thread's waits do not overlap, so that names one.
    waits: BTreeMap<(u64, u32), Wait>,
    /// The same names, by thread and end.
    by_thread: BTreeSet<(u32, u64)>,
    steps: HashMap<u64, Step>,
    step_order: VecDeque<u64>,
    failures: VecDeque<Failure>,
    evicted: u64,
}

impl Work {
    /// Takes a finding in; the pid in it is this process's.
    pub fn add(&mut self, out: Out) {
        match out {
            Out::Op(op) => self.add_op(op),
            Out::Step(step) => {
                self.step_order.push_back(step.id);
                self.steps.insert(step.id, step);
            }
            Out::Wait(wait) => {
                // One that is told again, when its name is taken back, replaces the first.
                self.by_thread.insert((wait.tid, wait.exit_ns));
                self.waits.insert((wait.exit_ns, wait.tid), wait);
            }
            Out::Refine(refine) => match refine.subject {
                Subject::Op(id) => {
                    let found = self.op_keys.get(&id).and_then(|key| self.ops.get_mut(key));
                    if let Some(op) = found {
                        op.method = refine.method;
                        op.lower_ns = refine.lower_ns;
                        op.upper_ns = refine.upper_ns;
                    }
                }
                Subject::Step(id) => {
                    if let Some(step) = self.steps.get_mut(&id) {
                        step.method = refine.method;
                        step.lower_ns = refine.lower_ns;
                        step.upper_ns = refine.upper_ns;
                    }
                }
            },
            Out::Failure(failure) => self.failures.push_back(failure),
        }
        self.cap();
    }

    fn add_op(&mut self, op: OpDone) {
        let key = (op.op.tid, op.op.enqueue_first_ns, op.op.id);
        self.op_keys.insert(op.op.id, key);
        self.op_order.push_back(op.op.id);
        self.ops.insert(key, op);
    }

    fn cap(&mut self) {
        while self.ops.len() > MAX_OPS {
            self.drop_op();
            self.evicted += 1;
        }
        while self.waits.len() > MAX_WAITS {
            self.drop_wait();
            self.evicted += 1;
        }
        while self.steps.len() > MAX_STEPS {
            self.drop_step();
            self.evicted += 1;
        }
        while self.failures.len() > MAX_FAILURES {
            self.failures.pop_front();
            self.evicted += 1;
        }
    }

    fn drop_op(&mut self) {
        if let Some(key) = self.op_order.pop_front().and_then(|id| self.op_keys.remove(&id)) {
            self.ops.remove(&key);
        }
    }

    fn drop_wait(&mut self) {
        if let Some(((exit_ns, tid), _)) = self.waits.pop_first() {
            self.by_thread.remove(&(tid, exit_ns));
        }
    }

    fn drop_step(&mut self) {
        if let Some(id) = self.step_order.pop_front() {
            self.steps.remove(&id);
        }
    }

    /// Forgets what ended before this time, ns.
    pub fn forget_before(&mut self, time_ns: u64) {
        while let Some(id) = self.op_order.front() {
            let found = self.op_keys.get(id).and_then(|key| self.ops.get(key));
            if found.is_some_and(|op| op.latest_end_ns >= time_ns) {
                break;
            }
            self.drop_op();
        }
        while self.waits.first_key_value().is_some_and(|((exit_ns, _), _)| *exit_ns < time_ns) {
            self.drop_wait();
        }
        while let Some(id) = self.step_order.front() {
            if self.steps.get(id).is_some_and(|step| step.fact.exit_ns >= time_ns) {
                break;
            }
            self.drop_step();
        }
        while self.failures.front().is_some_and(|failure| failure.exit_ns < time_ns) {
            self.failures.pop_front();
        }
    }

    /// Work that the thread enqueued from `from_ns` to `to_ns`.
    pub fn ops_of(&self, tid: u32, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &OpDone> {
        let range = if from_ns <= to_ns {
            self.ops.range((tid, from_ns, 0)..=(tid, to_ns, u64::MAX))
        } else {
            self.ops.range((tid, 0, 0)..(tid, 0, 0))
        };
        range.map(|(_, op)| op)
    }

    /// Waits of the thread that ended from `from_ns` to `to_ns`, in order.
    pub fn waits_of(&self, tid: u32, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &Wait> {
        let to_ns = to_ns.max(from_ns);
        let names = self.by_thread.range((tid, from_ns)..=(tid, to_ns));
        names.filter_map(|(tid, exit_ns)| self.waits.get(&(*exit_ns, *tid)))
    }

    /// Waits of any thread that ended from `from_ns` to `to_ns`, in the order of their ends.
    pub fn waits(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &Wait> {
        let to_ns = to_ns.max(from_ns);
        self.waits.range((from_ns, 0)..=(to_ns, u32::MAX)).map(|(_, wait)| wait)
    }

    /// A step that is still kept.
    pub fn step(&self, id: u64) -> Option<&Step> {
        self.steps.get(&id)
    }

    /// Failed calls of the thread in a stretch of time.
    pub fn failures_of(&self, tid: u32, from_ns: u64, to_ns: u64) -> usize {
        let within = |failure: &&Failure| {
            failure.tid == tid && failure.enter_ns >= from_ns && failure.exit_ns <= to_ns
        };
        self.failures.iter().filter(within).count()
    }

    /// Findings dropped for want of room before their time.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}
