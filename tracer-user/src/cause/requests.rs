//! What this room is told of requests, and what it says of whole ones.

use foldhash::HashSet;

use super::{Causes, MAX_ADDRESSES, MAX_PROCESSES, Outgoing, item::Mark, order::LegMark};
use crate::{
    intake::event::SleepState,
    stream::{Exchange, Role},
};

/// Threads of one process that read requests and are remembered.
const MAX_READERS: usize = 8_192;
/// Requests over which a process's way of sharing them among threads is judged.
const SHARING_WINDOW: u32 = 256;
/// Of these, one in so many that moved between threads that both read requests makes it one whose
/// threads share everything.
const SHARING_ONE_IN: u32 = 10;
/// Outgoing requests of one thread that are remembered.
const MAX_OUTGOING: usize = 4_096;
/// Open requests of which it is remembered what was told.
const MAX_TOLD: usize = 262_144;

/// How a process shares requests among its threads.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Threads that read requests.
    pub(super) readers: HashSet<u32>,
    seen: u32,
    moved: u32,
}

/// What one exchange has told so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    began: bool,
    writes: usize,
}

impl Causes {
    /// What is known of an exchange so far; told again and again while it is open.
    pub fn on_exchange(&mut self, exchange: &Exchange) {
        match exchange.role {
            Role::Server => self.on_served(exchange),
            Role::Client => self.on_asked(exchange),
        }
    }

    fn on_served(&mut self, exchange: &Exchange) {
        let (reader, now_ns) = (exchange.last_read.tid, self.now_ns);
        let mut told = self.told.get(&exchange.id).copied().unwrap_or_default();
        if !told.began {
            // While it is open more of it may be read.
            if exchange.open && exchange.writes.is_empty() && exchange.first_write.is_none() {
                self.reads(exchange.pid, reader);
            }
            told.began = true;
            let time_ns = exchange.last_read.exit_ns.min(now_ns);
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
                let mark = Mark::Replied { exchange: id, reader, exit_ns: *exit_ns };
                self.mark(*enter_ns, exchange.pid, writer, mark);
            }
            let leg = |time_ns: u64, writer| LegMark {
                exchange: id,
                reader,
                time_ns: time_ns.min(now_ns),
                writer,
            };
            self.order.leg(leg(*enter_ns, Some(writer)));
            // Only a stream is owed something after its first write.
            if exchange.sse || exchange.chunks > 1 {
                self.order.leg(leg(*exit_ns, None));
            }
        }
        told.writes = exchange.writes.len();
        if exchange.open {
            if self.told.len() < MAX_TOLD || self.told.contains_key(&exchange.id) {
                self.told.insert(exchange.id, told);
            }
            return;
        }
        self.told.remove(&exchange.id);
        // After the last write of a stream something would seem to be owed still.
        if exchange.sse || exchange.chunks > 1 || exchange.writes.is_empty() {
            self.order.over(exchange.end_ns.min(now_ns), exchange.id);
        }
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
        self.sharing(pid).readers.insert(tid);
        self.items.is_master(tid);
    }

    fn sharing(&mut self, pid: u32) -> &mut Sharing {
        if self.sharing.len() >= MAX_PROCESSES && !self.sharing.contains_key(&pid) {
            self.sharing.clear();
        }
        let sharing = self.sharing.entry(pid).or_default();
        if sharing.readers.len() >= MAX_READERS {
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

    /// Whether a request that has ended is known for good: one thread read it and answered it,
    /// between the two it waited for nobody, and it never handed anything to another. To be asked
    /// when it ends.
    pub fn ran_through(&self, exchange: &Exchange) -> bool {
        let (reader, writer) = (exchange.readers.only(), exchange.writers.only());
        let Some((tid, write)) =
            reader.filter(|_| reader == writer).zip(exchange.last_write.as_ref())
        else {
            return false;
        };
        let Some(thread) = self.threads.get(&tid).filter(|thread| !thread.is_unknown()) else {
            return false;
        };
        let mut sleeps = thread.sleeps(exchange.last_read.exit_ns, write.enter_ns);
        !self.handing.contains(&tid)
            && sleeps.all(|sleep| sleep.state == SleepState::Preempted)
            && self.spins.before(tid, write.enter_ns).is_none()
    }
}
