//! Why a request took its time: who waited for whom.
//!
//! Threads' times off the processor, the calls in which they wait, and the wakes between them are
//! kept for as long as a request may need them. From these come *edges* (a thread was woken because
//! another meant it to), *items* of work (from being handed something to its completion), the
//! *order* in which items are given to requests, and the *walk* backwards from a response along who
//! waited for whom.

mod carrier;
mod edge;
mod history;
mod item;
mod objects;
mod order;
mod producer;
mod requests;
mod spin;
pub mod story;
#[cfg(test)]
mod tests;
mod waiters;
mod walk;

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use tracer_ebpf::wire::sched::OTHER_END;

pub use carrier::Carrier;
pub use edge::{Edge, Refusal};
pub use item::{End, Item};
pub use order::Owner;
pub use walk::{Note, Path, Request, Segment};

use edge::{edge, may_be_handed};
use history::{Call, Thread};
use item::{Change, Items, Mark};
use objects::Objects;
use order::{FOLLOWED, Order};
use requests::{Sharing, Told};
use spin::{Led, Spins};
use waiters::Waiters;

use crate::intake::event::{
    Cuda, Direction, Event, IoCall, ProcFact, Process, Sched, SchedCall, Sleep, Socket, Timeout,
    WaitCall, What,
};

/// Records of all threads that are kept, about 60 bytes each; beyond, the older half of the time is
/// forgotten.
const MAX_RECORDS: usize = 262_144;
/// Threads that are kept.
const MAX_THREADS: usize = 65_536;
/// Marks that may wait; beyond, what comes is dropped and counted.
const MAX_MARKS: usize = 1_000_000;
/// A call tells of itself when it returns, mostly within this time of what it tells, ns.
const TOLD_NS: u64 = 250_000_000;
/// Objects and pairs of threads that are remembered.
const MAX_ADDRESSES: usize = 65_536;
/// Processes that are remembered.
const MAX_PROCESSES: usize = 4_096;
/// How long it is remembered that a thread handed something to another, ns.
const WAITED_NS: u64 = 10_000_000_000;
/// A request that a thread made of another server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// Counters of this room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records let go before their time for want of room.
    pub evicted: u64,
    /// Wakes that were edges.
    pub edges: u64,
    /// Wakes that were not.
    pub refused: u64,
}

/// Who waited for whom, in every process.
#[derive(Debug, Default)]
pub struct Causes {
    threads: HashMap<u32, Thread>,
    objects: Objects,
    items: Items,
    order: Order,
    /// Threads that waited on a futex address lately: those that wait and wake on one pass a lock
    /// between them, not work.
    waiters: Waiters,
    spins: Spins,
    sharing: HashMap<u32, Sharing>,
    outgoing: HashMap<u32, VecDeque<Outgoing>>,
    /// When a thread last handed something to another.
    hands: HashMap<(u32, u32), u64>,
    /// Threads that ever did.
    handing: HashSet<u32>,
    /// The thread that last took something out of each pipe, `eventfd` or `socketpair`.
    takers: HashMap<u64, u32>,
    /// The thread that last put something in, with its process.
    putters: HashMap<u64, (u32, u32)>,
    /// Connections on which the process asks.
    asking: HashSet<u64>,
    told: HashMap<u64, Told>,
    /// Short names of processes.
    names: HashMap<u32, String>,
    changes: Vec<(u64, u64, Change)>,
    records: usize,
    /// What ended before this time has been forgotten for want of room, ns.
    floor_ns: u64,
    /// How much longer than requests need them threads' records are kept, ns.
    kept_ns: u64,
    now_ns: u64,
    counts: Counts,
}

impl Causes {
    /// Takes in an event.
    pub fn on_event(&mut self, event: &Event) {
        self.now_ns = self.now_ns.max(event.time_ns);
        let Event { time_ns, pid, tid, what } = event;
        match what {
            What::Sched(sched) => self.on_sched(*time_ns, *pid, *tid, sched),
            What::Socket(socket) => self.on_socket(*time_ns, *pid, *tid, socket),
            What::Process(Process::Exit { .. }) => {
                if let Some(thread) = self.threads.get_mut(tid) {
                    thread.ended = true;
                }
                self.no_reader(*pid, *tid);
                self.mark(*time_ns, *pid, *tid, Mark::Exited);
            }
            What::Process(Process::NewThread { tid: new }) => {
                self.new_thread(*pid, *new);
                self.items.born(*pid, *new, *time_ns, *tid);
            }
            What::Process(Process::Fork { child }) => self.new_thread(*child, *child),
            What::Proc(fact) => {
                self.objects.on_fact(fact);
                if let ProcFact::Target { pid, comm, .. } = fact {
                    self.call_process(*pid, comm);
                }
                if let ProcFact::Gone { pid } | ProcFact::Paused { pid } = fact {
                    self.process_gone(*time_ns, *pid);
                }
            }
            What::Cuda(cuda) => {
                let (enter_ns, exit_ns) = match cuda {
                    Cuda::Launches(run) => (run.first_ns, run.last_ns),
                    Cuda::Call(call) => (call.enter_ns, *time_ns),
                };
                self.spins.in_driver(*tid, enter_ns, exit_ns);
                if self.items.is_worker(*tid) {
                    self.mark(enter_ns, *pid, *tid, Mark::Worked { exit_ns });
                }
            }
            What::Process(_) | What::Tcp(_) | What::Loss(_) => {}
        }
    }

    fn call_process(&mut self, pid: u32, comm: &str) {
        if self.names.len() >= MAX_PROCESSES && !self.names.contains_key(&pid) {
            self.names.clear();
        }
        self.names.insert(pid, comm.to_owned());
    }

    /// A process in words: its number, and its name where that is known.
    fn name_of(&self, pid: u32) -> String {
        match self.names.get(&pid) {
            Some(name) => format!("process {pid} ({name})"),
            None => format!("process {pid}"),
        }
    }

    /// The number is a new thread's: what is known of another that had it is not this one's.
    fn new_thread(&mut self, pid: u32, tid: u32) {
        if let Some(old) = self.threads.remove(&tid) {
            self.records -= old.len().min(self.records);
        }
        self.items.forget_thread(tid);
        self.spins.forget_thread(tid);
        self.outgoing.remove(&tid);
        self.no_reader(pid, tid);
    }

    fn no_reader(&mut self, pid: u32, tid: u32) {
        if let Some(sharing) = self.sharing.get_mut(&pid) {
            sharing.readers.remove(&tid);
        }
    }

    fn process_gone(&mut self, time_ns: u64, pid: u32) {
        self.sharing.remove(&pid);
        self.mark(time_ns, pid, 0, Mark::Gone);
        for thread in self.threads.values_mut().filter(|thread| thread.pid == pid) {
            thread.ended = true;
        }
    }

    fn thread(&mut self, pid: u32, tid: u32) -> &mut Thread {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.counts.evicted += self.records as u64;
            self.threads.clear();
            self.records = 0;
            self.floor_ns = self.now_ns;
        }
        self.threads.entry(tid).or_insert_with(|| Thread::new(pid))
    }

    fn add_sleep(&mut self, pid: u32, tid: u32, sleep: Sleep) {
        let added = self.thread(pid, tid).add_sleep(sleep);
        self.records += usize::from(added);
    }

    fn add_call(&mut self, pid: u32, tid: u32, call: Call) {
        self.thread(pid, tid).add_call(call);
        self.records += 1;
    }

    fn on_sched(&mut self, time_ns: u64, pid: u32, tid: u32, sched: &Sched) {
        match sched {
            Sched::OffCpu(sleep) => self.add_sleep(pid, tid, *sleep),
            Sched::Wait(wait) => self.on_wait(time_ns, pid, tid, wait),
            Sched::Signal { object, enter_ns, ret, direction } => {
                self.objects.know(*object);
                let written = *direction == Direction::Out;
                let call = Call {
                    enter_ns: *enter_ns,
                    exit_ns: time_ns,
                    call: if written { SchedCall::Write } else { SchedCall::Read },
                    object: *object,
                    ret: *ret,
                    timeout: Timeout::Never,
                };
                self.add_call(pid, tid, call);
                if written && *ret > 0 {
                    // What it wakes runs before the call returns.
                    let at = if *enter_ns == 0 { time_ns } else { *enter_ns };
                    self.puts(pid, tid, *object);
                    self.signalled((at, time_ns), pid, tid, *object);
                } else if !written {
                    self.takes(tid, *object, *ret);
                    if let Some((_, from)) = self.putter(*object).filter(|_| *ret > 0) {
                        self.mark(time_ns, pid, tid, Mark::Took { from });
                    }
                    self.returned(pid, tid, &call);
                }
            }
            Sched::EpollCtl { epoll, object, fd, watched } => {
                self.objects.watch(*epoll, *fd, *object, *watched);
            }
            Sched::Yields { first_ns, last_ns, goes_on, .. } => {
                self.spins.note((pid, tid), (*first_ns, *last_ns), time_ns, *goes_on);
                if *goes_on {
                    return;
                }
                let call = Call {
                    enter_ns: *first_ns,
                    exit_ns: *last_ns,
                    call: SchedCall::Yield,
                    object: 0,
                    ret: 0,
                    timeout: Timeout::Never,
                };
                self.add_call(pid, tid, call);
            }
        }
    }

    /// The thread takes out what others put in.
    fn takes(&mut self, tid: u32, object: u64, ret: i64) {
        if self.takers.len() >= MAX_ADDRESSES {
            self.takers.clear();
        }
        if ret > 0 {
            self.takers.insert(object, tid);
        }
    }

    /// The thread puts something in for others to take.
    fn puts(&mut self, pid: u32, tid: u32, object: u64) {
        if self.putters.len() >= MAX_ADDRESSES {
            self.putters.clear();
        }
        self.putters.insert(object, (pid, tid));
    }

    /// The thread that put in what a thread takes out of an end.
    fn putter(&self, object: u64) -> Option<(u32, u32)> {
        self.putters.get(&(object ^ OTHER_END)).or_else(|| self.putters.get(&object)).copied()
    }

    /// The thread put something in: it has completed something, unless it reads requests itself.
    fn signalled(&mut self, (time_ns, exit_ns): (u64, u64), pid: u32, tid: u32, object: u64) {
        if self.reads_requests(pid, tid) {
            return;
        }
        let taker = self.takers.get(&(object ^ OTHER_END)).or_else(|| self.takers.get(&object));
        let to = taker.copied().unwrap_or(0);
        self.mark(time_ns, pid, tid, Mark::Signalled { to, exit_ns });
    }

    fn reads_requests(&self, pid: u32, tid: u32) -> bool {
        self.sharing.get(&pid).is_some_and(|sharing| sharing.readers.contains(&tid))
    }

    fn on_wait(&mut self, time_ns: u64, pid: u32, tid: u32, wait: &WaitCall) {
        if let Some(sleep) = wait.sleep {
            self.add_sleep(pid, tid, sleep);
        }
        let call = Call {
            enter_ns: wait.enter_ns,
            exit_ns: time_ns,
            call: wait.call,
            object: wait.object,
            ret: wait.ret,
            timeout: wait.timeout,
        };
        self.add_call(pid, tid, call);
        if wait.call == SchedCall::Futex {
            self.waiters.note(pid, tid, wait.object, time_ns);
        }
        self.returned(pid, tid, &call);
    }

    /// A call that may have waited has returned: did another thread hand something over?
    fn returned(&mut self, pid: u32, tid: u32, call: &Call) {
        let Some(thread) = self.threads.get(&tid) else { return };
        let Some(sleep) = thread.sleep_before(call.exit_ns).copied() else { return };
        if sleep.out_ns < call.enter_ns {
            return;
        }
        let edge = edge(&self.objects, (pid, tid), Some(call), &sleep);
        let passed_on = edge == Err(Refusal::PassedOn);
        let put = passed_on.then(|| self.putter(call.object).zip(sleep.woken_ns)).flatten();
        let edge = match (edge, put) {
            (Ok(edge), _) => edge,
            (_, Some(((pid, tid), at_ns))) => {
                Edge { pid, tid, at_ns, object: call.object, confidence: 1.0 }
            }
            (Err(_), None) => {
                self.counts.refused += 1;
                return;
            }
        };
        self.counts.edges += 1;
        let lock = call.call == SchedCall::Futex
            && self.waiters.waits_on(edge.pid, edge.tid, call.object, edge.at_ns);
        if lock || !may_be_handed(call) {
            return;
        }
        self.mark(edge.at_ns, edge.pid, edge.tid, Mark::Woke { sleeper: tid });
        if self.reads_requests(pid, tid) {
            return;
        }
        let (object, since_ns) = (call.object, call.enter_ns);
        let alone = call.call == SchedCall::Futex && self.waiters.is_own(pid, tid, object);
        let taken_ns = match call.call {
            _ if alone => edge.at_ns,
            SchedCall::Read => call.exit_ns,
            _ => sleep.in_ns,
        };
        if self.hands.len() >= MAX_ADDRESSES {
            self.hands.clear();
        }
        self.hands.insert((edge.tid, tid), edge.at_ns);
        if self.handing.len() >= MAX_ADDRESSES {
            self.handing.clear();
        }
        self.handing.insert(edge.tid);
        let mark = Mark::Handed {
            from: edge.tid,
            object,
            since_ns,
            taken_ns,
            alone,
            confidence: edge.confidence,
        };
        self.mark(edge.at_ns, pid, tid, mark);
    }

    fn mark(&mut self, time_ns: u64, pid: u32, tid: u32, mark: Mark) {
        // Nothing lies in the future, whatever a record says.
        let time_ns = time_ns.min(self.now_ns);
        if self.items.waiting() < MAX_MARKS {
            self.items.mark(time_ns, pid, tid, mark);
        } else {
            self.counts.evicted += 1;
        }
    }

    fn on_socket(&mut self, time_ns: u64, pid: u32, tid: u32, socket: &Socket) {
        let (enter_ns, call, object, ret) = match socket {
            Socket::Io(io) => {
                let call = match io.direction {
                    Direction::In => SchedCall::Read,
                    Direction::Out => SchedCall::Write,
                };
                // Whatever stays in the kernel waits for a disk or another socket as well.
                let sendfile = io.call == IoCall::Sendfile;
                (io.enter_ns, call, io.conn, if sendfile { 0 } else { io.ret })
            }
            Socket::Accept { conn, enter_ns, .. } => (*enter_ns, SchedCall::Accept, *conn, 0),
            Socket::Connect { conn, enter_ns, ret, .. } => {
                if self.asking.len() >= MAX_ADDRESSES {
                    self.asking.clear();
                }
                self.asking.insert(*conn);
                (*enter_ns, SchedCall::Connect, *conn, i64::from(*ret))
            }
            Socket::Close { .. }
            | Socket::Dup { .. }
            | Socket::CloseRange { .. }
            | Socket::Shutdown { .. }
            | Socket::Named { .. }
            | Socket::Listen { .. } => return,
        };
        let timeout = Timeout::Never;
        self.add_call(pid, tid, Call { enter_ns, exit_ns: time_ns, call, object, ret, timeout });
    }

    fn flush_changes(&mut self) {
        for (time_ns, id, change) in self.changes.drain(..) {
            self.order.item(time_ns, id, change);
        }
    }

    /// Time has passed: everything up to the watermark has been taken in, and every exchange that
    /// ended `settled_ns` or earlier has been told.
    pub fn advance(&mut self, watermark_ns: u64, settled_ns: u64) {
        let told_ns = watermark_ns.saturating_sub(TOLD_NS);
        self.led(told_ns);
        self.items.advance(told_ns, &mut self.changes);
        self.flush_changes();
        self.order.advance(settled_ns, &self.items);
        if self.records > MAX_RECORDS {
            self.kept_ns = 0;
            // At the end of a session the watermark is far beyond anything that happened.
            let now_ns = watermark_ns.min(self.now_ns);
            let oldest = self.floor_ns.max(self.oldest_ns());
            let to = oldest + now_ns.saturating_sub(oldest) / 2;
            let before = self.records;
            self.forget_before(to);
            self.counts.evicted += (before - self.records) as u64;
            self.floor_ns = to;
        }
    }

    /// Threads that polled go on: were they handed something?
    fn led(&mut self, to_ns: u64) {
        let mut all = Vec::new();
        self.spins.advance(to_ns, &self.threads, &self.objects, |led| all.push(led));
        for Led { pid, tid, streak, edge } in all {
            self.counts.edges += 1;
            if edge.confidence < FOLLOWED {
                continue;
            }
            let (since_ns, taken_ns) = (streak.first_ns, streak.back_ns);
            let (from, confidence) = (edge.tid, edge.confidence);
            let mark = Mark::Polled { from, since_ns, taken_ns, confidence };
            self.mark(edge.at_ns, pid, tid, mark);
        }
    }

    fn oldest_ns(&self) -> u64 {
        let first = |thread: &Thread| thread.calls(0, u64::MAX).next().map(|call| call.exit_ns);
        self.threads.values().filter_map(first).min().unwrap_or(0)
    }

    /// Threads' records are kept this much longer than requests need them, ns, while there is room.
    /// It changes what a story can tell, and no walk.
    pub fn keep_records(&mut self, ns: u64) {
        self.kept_ns = ns;
    }

    /// Forgets what ended before this time, ns.
    pub fn forget_before(&mut self, time_ns: u64) {
        let records_ns = time_ns.saturating_sub(self.kept_ns);
        let records = &mut self.records;
        self.threads.retain(|_, thread| {
            *records -= thread.forget_before(records_ns).min(*records);
            !thread.ended || !thread.is_unknown()
        });
        let threads = &self.threads;
        self.spins.forget_before(records_ns, |tid| threads.contains_key(&tid));
        let order = &mut self.order;
        self.items.forget_before(time_ns, |item| order.forget_item(item));
        self.order.forget_before(time_ns);
        for list in self.outgoing.values_mut() {
            while list.front().is_some_and(|outgoing| outgoing.to_ns < time_ns) {
                list.pop_front();
            }
        }
        self.outgoing.retain(|_, list| !list.is_empty());
    }

    /// The timeline of an exchange has been built.
    pub fn forget_exchange(&mut self, exchange: u64) {
        self.order.forget_exchange(exchange);
    }

    /// The process of a thread of which something is known.
    pub fn process_of(&self, tid: u32) -> Option<u32> {
        self.threads.get(&tid).map(|thread| thread.pid)
    }

    /// What ended before this time has been forgotten although a request may have needed it, ns.
    pub fn floor_ns(&self) -> u64 {
        self.floor_ns
    }

    /// Counters.
    pub fn counts(&self) -> Counts {
        let left_out = self.order.dropped() + self.spins.left_out();
        Counts { evicted: self.counts.evicted + left_out, ..self.counts }
    }
}
