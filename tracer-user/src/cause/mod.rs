//! Why a request took its time: who waited for whom.
//!
//! Threads' times off the processor, the calls in which they wait, and the wakes between them are
//! kept for as long as a request may need them. From these come *edges* (a thread was woken because
//! another meant it to), *items* of work (from being handed something to its completion), the
//! *order* in which items are given to requests, and the *walk* backwards from a response along who
//! waited for whom.

mod edge;
mod history;
mod item;
mod objects;
mod order;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use tracer_ebpf::wire::sched::OTHER_END;

pub use edge::{Edge, Refusal};
pub use item::{End, Item};
pub use order::Owner;
pub use walk::{Note, Path, Request, Segment};

use edge::{edge, may_be_handed};
use history::{Call, Thread};
use item::{Change, Items, Mark};
use objects::Objects;
use order::{LegMark, Order};

use crate::{
    intake::event::{
        Cuda, Direction, Event, IoCall, ProcFact, Process, Sched, SchedCall, Sleep, Socket,
        Timeout, WaitCall, What,
    },
    stream::{Exchange, Role},
};

/// Records of all threads that are kept; beyond, the older half of the time is forgotten.
const MAX_RECORDS: usize = 1_000_000;
/// Threads that are kept.
const MAX_THREADS: usize = 65_536;
/// Marks that may wait; beyond, what comes is dropped and counted.
const MAX_MARKS: usize = 1_000_000;
/// A call tells of itself when it returns, mostly within this time of what it tells, ns.
const TOLD_NS: u64 = 250_000_000;
/// Futex addresses whose waiters are remembered, and how long, ns.
const MAX_ADDRESSES: usize = 65_536;
const WAITED_NS: u64 = 10_000_000_000;
/// Waiters of one address that are told apart.
const MAX_WAITERS: usize = 8;
/// Requests over which a process's way of sharing them among threads is judged.
const SHARING_WINDOW: u32 = 256;
/// Of these, one in so many that moved between threads that both read requests makes it one whose
/// threads share everything.
const SHARING_ONE_IN: u32 = 10;
/// Outgoing requests of one thread that are remembered.
const MAX_OUTGOING: usize = 4_096;

/// How a process shares requests among its threads.
#[derive(Debug, Default)]
struct Sharing {
    /// Threads that read requests.
    readers: HashSet<u32>,
    seen: u32,
    moved: u32,
}

/// A request that a thread made of another server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// What one exchange has told so far.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    began: bool,
    writes: usize,
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
    waiters: HashMap<(u32, u64), Vec<(u32, u64)>>,
    sharing: HashMap<u32, Sharing>,
    outgoing: HashMap<u32, VecDeque<Outgoing>>,
    /// When a thread last handed something to another.
    hands: HashMap<(u32, u32), u64>,
    /// The thread that last took something out of each pipe, `eventfd` or `socketpair`.
    takers: HashMap<u64, u32>,
    /// Connections on which the process asks.
    asking: HashSet<u64>,
    told: HashMap<u64, Told>,
    changes: Vec<(u64, u64, Change)>,
    records: usize,
    /// What ended before this time has been forgotten for want of room, ns.
    floor_ns: u64,
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
                self.items.thread_ended(*tid, *time_ns, &mut self.changes);
                self.flush_changes();
            }
            What::Process(Process::NewThread { tid: new }) => {
                self.new_thread(*new);
                self.items.born(*pid, *new, *time_ns, *tid);
            }
            What::Process(Process::Fork { child }) => self.new_thread(*child),
            What::Proc(fact) => {
                self.objects.on_fact(fact);
                if let ProcFact::Gone { pid } = fact {
                    self.sharing.remove(pid);
                }
            }
            What::Cuda(cuda) => {
                let began_ns = match cuda {
                    Cuda::Launches(run) => run.first_ns,
                    Cuda::Call(call) => call.enter_ns,
                };
                if self.items.is_worker(*tid) {
                    self.mark(began_ns, *pid, *tid, Mark::Worked);
                }
            }
            What::Process(_) | What::Tcp(_) | What::Loss(_) => {}
        }
    }

    /// The number is a new thread's: what is known of another that had it is not this one's.
    fn new_thread(&mut self, tid: u32) {
        if let Some(old) = self.threads.remove(&tid) {
            self.records -= old.len().min(self.records);
        }
        self.items.forget_thread(tid);
        self.outgoing.remove(&tid);
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
        self.records += 1;
        self.thread(pid, tid).add_sleep(sleep);
    }

    fn add_call(&mut self, pid: u32, tid: u32, call: Call) {
        self.records += 1;
        self.thread(pid, tid).add_call(call);
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
                    self.signalled(at, pid, tid, *object);
                } else if !written {
                    self.takes(tid, *object, *ret);
                    self.returned(pid, tid, &call);
                }
            }
            Sched::EpollCtl { epoll, object, fd, watched } => {
                self.objects.watch(*epoll, *fd, *object, *watched);
            }
            Sched::Yields { first_ns, last_ns, .. } => {
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

    /// The thread put something in: it has completed something, unless it reads requests itself.
    fn signalled(&mut self, time_ns: u64, pid: u32, tid: u32, object: u64) {
        if self.reads_requests(pid, tid) {
            return;
        }
        let taker = self.takers.get(&(object ^ OTHER_END)).or_else(|| self.takers.get(&object));
        let to = taker.copied().unwrap_or(0);
        self.mark(time_ns, pid, tid, Mark::Signalled { to });
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
            self.note_waiter(pid, tid, wait.object, time_ns);
        }
        self.returned(pid, tid, &call);
    }

    fn note_waiter(&mut self, pid: u32, tid: u32, address: u64, time_ns: u64) {
        if self.waiters.len() >= MAX_ADDRESSES {
            self.waiters.clear();
        }
        let list = self.waiters.entry((pid, address)).or_default();
        match list.iter_mut().find(|(waiter, _)| *waiter == tid) {
            Some(waiter) => waiter.1 = time_ns,
            None => {
                if list.len() >= MAX_WAITERS {
                    list.remove(0);
                }
                list.push((tid, time_ns));
            }
        }
    }

    /// Whether the thread itself waited on the address lately.
    fn waits_on(&self, pid: u32, tid: u32, address: u64, time_ns: u64) -> bool {
        self.waiters.get(&(pid, address)).is_some_and(|list| {
            list.iter()
                .any(|(waiter, at)| *waiter == tid && at.saturating_add(WAITED_NS) >= time_ns)
        })
    }

    /// Whether several threads waited on the address.
    fn is_contended(&self, pid: u32, address: u64) -> bool {
        self.waiters.get(&(pid, address)).is_some_and(|list| list.len() > 1)
    }

    /// A call that may have waited has returned: did another thread hand something over?
    fn returned(&mut self, pid: u32, tid: u32, call: &Call) {
        let Some(thread) = self.threads.get(&tid) else { return };
        let Some(sleep) = thread.sleep_before(call.exit_ns).copied() else { return };
        if sleep.out_ns < call.enter_ns {
            return;
        }
        let edge = match edge(&self.objects, (pid, tid), Some(call), &sleep) {
            Ok(edge) => edge,
            Err(_) => {
                self.counts.refused += 1;
                return;
            }
        };
        self.counts.edges += 1;
        let lock = call.call == SchedCall::Futex
            && self.waits_on(edge.pid, edge.tid, call.object, edge.at_ns);
        if lock || !may_be_handed(call) {
            return;
        }
        self.mark(edge.at_ns, edge.pid, edge.tid, Mark::Woke { sleeper: tid });
        if self.reads_requests(pid, tid) {
            return;
        }
        let (object, since_ns) = (call.object, call.enter_ns);
        if self.hands.len() >= MAX_ADDRESSES {
            self.hands.clear();
        }
        self.hands.insert((edge.tid, tid), edge.at_ns);
        let mark = Mark::Handed { from: edge.tid, object, since_ns, confidence: edge.confidence };
        self.mark(edge.at_ns, pid, tid, mark);
    }

    fn mark(&mut self, time_ns: u64, pid: u32, tid: u32, mark: Mark) {
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
            | Socket::Listen { .. } => return,
        };
        let timeout = Timeout::Never;
        self.add_call(pid, tid, Call { enter_ns, exit_ns: time_ns, call, object, ret, timeout });
    }

    /// What is known of an exchange so far; told again and again while it is open.
    pub fn on_exchange(&mut self, exchange: &Exchange) {
        match exchange.role {
            Role::Server => self.on_served(exchange),
            Role::Client => self.on_asked(exchange),
        }
    }

    fn on_served(&mut self, exchange: &Exchange) {
        let reader = exchange.last_read.tid;
        let mut told = self.told.get(&exchange.id).copied().unwrap_or_default();
        if !told.began {
            // While it is open more of it may be read.
            if exchange.open && exchange.writes.is_empty() && exchange.first_write.is_none() {
                self.reads(exchange.pid, reader);
            }
            told.began = true;
            let time_ns = exchange.last_read.exit_ns;
            let exchange_id = exchange.id;
            self.order.leg(LegMark { exchange: exchange_id, reader, time_ns, writer: None });
        }
        let first = exchange.first_write.map_or(reader, |write| write.tid);
        for (at, (enter_ns, exit_ns)) in exchange.writes.iter().enumerate().skip(told.writes) {
            let writer = match (exchange.writers.only(), at) {
                (Some(only), _) => only,
                (None, 0) => first,
                (None, _) => exchange.last_write.map_or(first, |write| write.tid),
            };
            let id = exchange.id;
            if writer != reader {
                let mark = Mark::Replied { exchange: id, reader };
                self.mark(*enter_ns, exchange.pid, writer, mark);
            }
            let leg = |time_ns, writer| LegMark { exchange: id, reader, time_ns, writer };
            self.order.leg(leg(*enter_ns, Some(writer)));
            // Only a stream is owed something after its first write.
            if exchange.sse || exchange.chunks > 1 {
                self.order.leg(leg(*exit_ns, None));
            }
        }
        told.writes = exchange.writes.len();
        if exchange.open {
            self.told.insert(exchange.id, told);
            return;
        }
        self.told.remove(&exchange.id);
        let writer = exchange.last_write.map_or(reader, |write| write.tid);
        self.reads(exchange.pid, reader);
        let sharing = self.sharing(exchange.pid);
        sharing.seen += 1;
        sharing.moved += u32::from(writer != reader && sharing.readers.contains(&writer));
        if sharing.seen > SHARING_WINDOW {
            sharing.seen /= 2;
            sharing.moved /= 2;
        }
    }

    /// The thread reads requests: it is nobody's worker.
    fn reads(&mut self, pid: u32, tid: u32) {
        if self.sharing(pid).readers.insert(tid) {
            self.items.is_master(tid);
        }
    }

    fn sharing(&mut self, pid: u32) -> &mut Sharing {
        let sharing = self.sharing.entry(pid).or_default();
        if sharing.readers.len() >= MAX_WAITERS * 1024 {
            sharing.readers.clear();
        }
        sharing
    }

    fn on_asked(&mut self, exchange: &Exchange) {
        if exchange.open {
            return;
        }
        if self.asking.len() >= MAX_ADDRESSES {
            self.asking.clear();
        }
        self.asking.insert(exchange.conn);
        let from_ns = exchange.first_read.enter_ns;
        let to_ns = exchange.last_write.map_or(exchange.end_ns, |write| write.exit_ns);
        if from_ns == 0 || to_ns < from_ns {
            return;
        }
        let list = self.outgoing.entry(exchange.first_read.tid).or_default();
        if list.len() >= MAX_OUTGOING {
            list.pop_front();
        }
        list.push_back(Outgoing { from_ns, to_ns });
    }

    /// Whether the process's threads share its requests, so that a thread's time says nothing about
    /// a request.
    pub fn shares_threads(&self, pid: u32) -> bool {
        self.sharing.get(&pid).is_some_and(|sharing| {
            sharing.moved > 2 && sharing.moved.saturating_mul(SHARING_ONE_IN) > sharing.seen
        })
    }

    fn flush_changes(&mut self) {
        for (time_ns, id, change) in self.changes.drain(..) {
            self.order.item(time_ns, id, change);
        }
    }

    /// Time has passed: everything up to the watermark has been taken in, and every exchange that
    /// ended `settled_ns` or earlier has been told.
    pub fn advance(&mut self, watermark_ns: u64, settled_ns: u64) {
        self.items.advance(watermark_ns.saturating_sub(TOLD_NS), &mut self.changes);
        self.flush_changes();
        self.order.advance(settled_ns, &self.items);
        if self.records > MAX_RECORDS {
            let middle = self.floor_ns.max(self.oldest_ns());
            let to = middle + (watermark_ns.saturating_sub(middle)) / 2;
            let before = self.records;
            self.forget_before(to);
            self.counts.evicted += (before - self.records) as u64;
            self.floor_ns = to;
        }
    }

    fn oldest_ns(&self) -> u64 {
        let first = |thread: &Thread| thread.calls(0, u64::MAX).next().map(|call| call.exit_ns);
        self.threads.values().filter_map(first).min().unwrap_or(0)
    }

    /// Forgets what ended before this time, ns.
    pub fn forget_before(&mut self, time_ns: u64) {
        for thread in self.threads.values_mut() {
            self.records -= thread.forget_before(time_ns).min(self.records);
        }
        let order = &mut self.order;
        self.items.forget_before(time_ns, |item| order.forget_item(item));
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

    /// What ended before this time has been forgotten although a request may have needed it, ns.
    pub fn floor_ns(&self) -> u64 {
        self.floor_ns
    }

    /// Counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
