//! What happened, told briefly.

use crate::{
    cause::{Causes, Path, Request},
    intake::event::{
        Direction, Event, Io, IoCall, Process, Sched, SchedCall, Sleep, SleepState, Socket,
        Timeout, WaitCall, Waker, What,
    },
    stream::{Exchange, Role, Stamp},
    timeline::{
        model::{Phase, PhaseName},
        tile::tile,
    },
};

pub(super) const MS: u64 = 1_000_000;
pub(super) const US: u64 = 1_000;

/// The process that serves, and another one.
pub(super) const PID: u32 = 10;
pub(super) const PEER: u32 = 90;
/// Its thread that reads requests.
pub(super) const LOOP: u32 = 11;
/// Its workers.
pub(super) const A: u32 = 21;
pub(super) const B: u32 = 22;

/// Addresses of futexes on which the workers wait.
pub(super) const QUEUE: u64 = 0x7000;
pub(super) const LOCK: u64 = 0x8000;
/// The loop's epoll instance, its descriptor in it, and both ends of its own pipe.
pub(super) const EPOLL: u64 = 500;
pub(super) const PIPE_IN: u64 = 501;

/// Who was current at a wake, in `call` on `object`.
pub(super) fn by(tid: u32, call: SchedCall, object: u64) -> Waker {
    Waker { pid: PID, tid, call, left: false, object }
}

/// A time asleep that a wake ended.
pub(super) fn slept(out_ns: u64, woken_ns: u64, in_ns: u64, waker: Waker) -> Sleep {
    let (woken_ns, waker) = (Some(woken_ns), Some(waker));
    Sleep { out_ns, woken_ns, in_ns, state: SleepState::Interruptible, waker }
}

/// A wait that began when the thread fell asleep.
pub(super) fn wait(call: SchedCall, object: u64, sleep: Sleep) -> WaitCall {
    let futex = call == SchedCall::Futex;
    WaitCall {
        call,
        enter_ns: sleep.out_ns,
        object,
        timeout: Timeout::Never,
        ret: i64::from(!futex),
        futex_op: 0,
        sleep: Some(sleep),
    }
}

/// The room, told what threads of one process do.
#[derive(Default)]
pub(super) struct World {
    pub(super) causes: Causes,
}

impl World {
    pub(super) fn tell(&mut self, time_ns: u64, tid: u32, what: What) {
        self.causes.on_event(&Event { time_ns, pid: PID, tid, what });
    }

    /// The same of a thread of another process.
    pub(super) fn tell_of(&mut self, (pid, tid): (u32, u32), time_ns: u64, what: What) {
        self.causes.on_event(&Event { time_ns, pid, tid, what });
    }

    /// A wait that returned as soon as the thread ran again.
    pub(super) fn waited(&mut self, tid: u32, wait: WaitCall) {
        let exit_ns = wait.sleep.map_or(wait.enter_ns, |sleep| sleep.in_ns);
        self.tell(exit_ns, tid, What::Sched(Sched::Wait(wait)));
    }

    pub(super) fn off_cpu(&mut self, tid: u32, sleep: Sleep) {
        self.tell(sleep.in_ns, tid, What::Sched(Sched::OffCpu(sleep)));
    }

    /// Bytes go through a pipe or `eventfd`, for a microsecond.
    pub(super) fn signal(&mut self, enter_ns: u64, tid: u32, object: u64, direction: Direction) {
        let signal = Sched::Signal { object, enter_ns, ret: 1, direction };
        self.tell(enter_ns + US, tid, What::Sched(signal));
    }

    /// Bytes go through a socket, for a microsecond.
    pub(super) fn moved(&mut self, enter_ns: u64, tid: u32, conn: u64, direction: Direction) {
        let call = if direction == Direction::In { IoCall::Read } else { IoCall::Write };
        let io = Io {
            conn,
            fd: 5,
            call,
            direction,
            enter_ns,
            ret: 100,
            requested: 100,
            peek: false,
            data: bytes::Bytes::new(),
        };
        self.tell(enter_ns + US, tid, What::Socket(Socket::Io(io)));
    }

    pub(super) fn born(&mut self, time_ns: u64, by: u32, tid: u32) {
        self.tell(time_ns, by, What::Process(Process::NewThread { tid }));
    }

    pub(super) fn exits(&mut self, time_ns: u64, tid: u32) {
        self.tell(time_ns, tid, What::Process(Process::Exit { last: false }));
    }

    /// Everything that was told has had its time.
    pub(super) fn settle(&mut self) {
        self.causes.advance(u64::MAX / 2, u64::MAX / 2);
    }

    /// The phases of a request up to its last write, as far as this room tells them: each with its
    /// end, ms, and its words.
    pub(super) fn phases(&self, exchange: &Exchange) -> Vec<(PhaseName, f64, String)> {
        let path = self.path(exchange, None);
        let from = exchange.last_read.exit_ns;
        let to = exchange.last_write.map_or(exchange.end_ns, |write| write.enter_ns);
        let short = |phase: Phase| {
            let end = from + phase.offset_ns + phase.duration_ns;
            (phase.phase, end as f64 / MS as f64, phase.detail.into_owned())
        };
        tile(from, to, &path.stretches).into_iter().map(short).collect()
    }

    pub(super) fn path(&self, exchange: &Exchange, own_thread: Option<u32>) -> Path {
        let from_ns = exchange.last_read.exit_ns;
        let request = Request { exchange, end_ns: exchange.end_ns, from_ns, own_thread };
        self.causes.walk(&request, true)
    }
}

/// A request read by the loop; its read took a microsecond, like each write.
pub(super) fn request(id: u64, read_ns: u64) -> Exchange {
    let stamp = Stamp { enter_ns: read_ns - US, exit_ns: read_ns, tid: LOOP };
    let mut exchange = Exchange {
        id,
        conn: 1_000 + id,
        pid: PID,
        role: Role::Server,
        local: None,
        peer: None,
        seq_on_conn: 0,
        protocol: "http/1.1",
        method: "GET".into(),
        route: "/".into(),
        status: None,
        trace_parent: None,
        established_ns: None,
        accepted_ns: None,
        arrived_ns: None,
        first_read: stamp,
        last_read: stamp,
        first_write: None,
        last_write: None,
        writes: Default::default(),
        readers: Default::default(),
        writers: Default::default(),
        request_bytes: 100,
        response_bytes: 0,
        sse: false,
        chunks: 0,
        chunk_times_ns: Vec::new(),
        last_chunk_ns: None,
        longest_gap: None,
        tcp_rtt_ns: None,
        retransmits: 0,
        early_response: false,
        open: true,
        outcome: None,
        end_inferred: false,
        incomplete: Vec::new(),
        end_ns: read_ns,
    };
    exchange.readers.insert(LOOP);
    exchange
}

/// The same, read by another thread.
pub(super) fn read_by(tid: u32, mut exchange: Exchange) -> Exchange {
    exchange.first_read.tid = tid;
    exchange.last_read.tid = tid;
    exchange.readers = Default::default();
    exchange.readers.insert(tid);
    exchange
}

/// The same with one more write of the response.
pub(super) fn wrote(mut exchange: Exchange, tid: u32, enter_ns: u64) -> Exchange {
    let stamp = Stamp { enter_ns, exit_ns: enter_ns + US, tid };
    exchange.first_write.get_or_insert(stamp);
    exchange.last_write = Some(stamp);
    exchange.writes.push((stamp.enter_ns, stamp.exit_ns));
    exchange.writers.insert(tid);
    exchange.end_ns = stamp.exit_ns;
    exchange
}

/// The same, over.
pub(super) fn closed(mut exchange: Exchange) -> Exchange {
    exchange.open = false;
    exchange
}
