//! Driver calls → operations, steps, waits, and bounds for what the device did.
//!
//! The host sees when work was enqueued and which calls prove that it is complete; everything here
//! follows from these two and from NVIDIA's rules of synchronisation. Nothing is claimed that they
//! do not prove: unknown state (from before attach, after a loss) only ever widens bounds and
//! leaves waits undivided.
//!
//! Synchronous, without I/O and clock: events in, findings out. Bounded by [`Limits`].
//!
//! | file | holds |
//! |---|---|
//! | `decode` | what a call means: argument positions |
//! | `proc`, `life`, `mark`, `launch` | a process, and what calls do to it |
//! | `context`, `stream`, `event`, `graph`, `pinned`, `names` | state by handle |
//! | `facts` | what a returned call proves; steps |
//! | `wait`, `streak` | time inside calls that block, and between queries; phases |
//! | `outlook` | what a call may have waited for |
//! | `bounds`, `elapsed` | bounds; `cuEventElapsedTime` |
//! | `recent` | what was completed lately |
//! | `op`, `out`, `limits` | data |

mod bounds;
mod context;
mod decode;
mod elapsed;
mod event;
mod facts;
mod graph;
mod launch;
mod life;
mod limits;
mod mark;
mod names;
mod op;
mod out;
mod outlook;
mod pinned;
mod proc;
mod recent;
mod since;
mod streak;
mod stream;
#[cfg(test)]
mod tests;
mod wait;

use std::collections::BTreeMap;

use crate::intake::event::{Cuda, Event, ProcFact, Process, Socket, What};

pub use context::Ctx;
pub use graph::Nodes;
pub use limits::{Counters, Limits};
pub use op::{Kinds, Op, OpDone, OpKind, StreamKey};
pub use out::{Fact, Failure, Method, Out, Refine, Step, Subject, Wait, WaitPhase};

use limits::Ids;
use proc::{Env, Proc};

/// GPU work that is enqueued and not proven complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Operations.
    pub ops: u64,
    /// Entry of the first one's enqueue, ns of `CLOCK_MONOTONIC`; 0 where there is none.
    pub first_enqueue_ns: u64,
    /// Their kinds.
    pub kinds: Kinds,
}

/// The room: all processes.
#[derive(Debug, Default)]
pub struct Gpu {
    procs: BTreeMap<u32, Proc>,
    limits: Limits,
    counters: Counters,
    ids: Ids,
}

impl Gpu {
    /// An empty room.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Takes in one event; findings are appended to `out`.
    pub fn on_event(&mut self, event: &Event, out: &mut Vec<Out>) {
        let Event { time_ns, pid, tid, what } = event;
        match what {
            What::Cuda(Cuda::Call(call)) => {
                self.counters.calls += 1;
                self.with(*pid, *time_ns, out, |proc, env| proc.on_call(*tid, *time_ns, call, env));
            }
            What::Cuda(Cuda::Launches(run)) => {
                self.counters.launch_records += 1;
                self.with(*pid, *time_ns, out, |proc, env| proc.on_launches(*tid, run, env));
            }
            What::Socket(Socket::Io(_) | Socket::Accept { .. } | Socket::Connect { .. }) => {
                self.with_known(*pid, out, |proc, env| proc.on_socket(*tid, *time_ns, env))
            }
            What::Socket(_) | What::Tcp(_) | What::Sched(_) => {}
            What::Process(process) => self.on_process(*time_ns, *pid, *tid, process, out),
            What::Proc(ProcFact::Gone { pid } | ProcFact::Paused { pid }) => {
                self.end(*pid, *time_ns, out);
            }
            What::Proc(_) => {}
            // A kernel program that was skipped may have been one of the driver's probes.
            What::Loss(losses) if losses.cuda > 0 || losses.recursion > 0 => {
                self.counters.losses += 1;
                let pids: Vec<u32> = self.procs.keys().copied().collect();
                for pid in pids {
                    self.with_known(pid, out, |proc, env| proc.on_loss(*time_ns, env));
                }
            }
            What::Loss(_) => {}
        }
    }

    fn on_process(
        &mut self,
        now_ns: u64,
        pid: u32,
        tid: u32,
        process: &Process,
        out: &mut Vec<Out>,
    ) {
        match process {
            // A context does not survive a fork, and a new program begins without one.
            Process::Exec | Process::Exit { last: true } => self.end(pid, now_ns, out),
            Process::Fork { child } => self.end(*child, now_ns, out),
            Process::Exit { last: false } => {
                self.with_known(pid, out, |proc, env| proc.end_thread(tid, now_ns, env));
            }
            Process::NewThread { tid: new } => {
                self.with_known(pid, out, |proc, env| proc.on_new_thread(*new, now_ns, env));
            }
            Process::MapExec => {}
        }
    }

    /// The session is over: everything outstanding is given up.
    pub fn finish(&mut self, now_ns: u64, out: &mut Vec<Out>) {
        let pids: Vec<u32> = self.procs.keys().copied().collect();
        for pid in pids {
            self.end(pid, now_ns, out);
        }
    }

    /// GPU work that the thread enqueued at `since_ns` or later and that no fact has proven
    /// complete yet.
    pub fn outstanding(&self, pid: u32, tid: u32, since_ns: u64) -> Outstanding {
        let mut found = Outstanding::default();
        let Some(proc) = self.procs.get(&pid) else { return found };
        for (_, stream) in proc.streams.iter() {
            for op in stream.ops() {
                if op.tid != tid || op.enqueue_last_ns < since_ns {
                    continue;
                }
                if found.ops == 0 || op.enqueue_first_ns < found.first_enqueue_ns {
                    found.first_enqueue_ns = op.enqueue_first_ns;
                }
                found.ops += 1;
                found.kinds.insert(op.kind);
            }
        }
        found
    }

    /// Name of a function, as its module has it, where it was looked up under trace.
    pub fn name_of(&self, pid: u32, function: u64) -> Option<&str> {
        self.procs.get(&pid)?.names.get(function)
    }

    /// Totals since the session began.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Entries held in all tables, for the agent's own report and for tests of the caps.
    pub fn held(&self) -> usize {
        self.procs.values().map(Proc::held).sum()
    }

    /// Works on a process, which is made where it is new.
    fn with(
        &mut self,
        pid: u32,
        now_ns: u64,
        out: &mut Vec<Out>,
        work: impl FnOnce(&mut Proc, &mut Env<'_>),
    ) {
        if !self.procs.contains_key(&pid) {
            if self.procs.len() >= self.limits.processes {
                let stalest = self.procs.iter().min_by_key(|(_, proc)| proc.used_ns);
                if let Some(stale) = stalest.map(|(pid, _)| *pid) {
                    self.counters.processes_evicted += 1;
                    self.end(stale, now_ns, out);
                }
            }
            self.procs.insert(pid, Proc::new(pid));
        }
        self.with_known(pid, out, work);
    }

    fn with_known(
        &mut self,
        pid: u32,
        out: &mut Vec<Out>,
        work: impl FnOnce(&mut Proc, &mut Env<'_>),
    ) {
        let Some(proc) = self.procs.get_mut(&pid) else { return };
        let Self { limits, counters, ids, .. } = self;
        work(proc, &mut Env { out, limits, counters, ids });
    }

    fn end(&mut self, pid: u32, now_ns: u64, out: &mut Vec<Out>) {
        self.with_known(pid, out, |proc, env| proc.end(now_ns, env));
        self.procs.remove(&pid);
    }
}
