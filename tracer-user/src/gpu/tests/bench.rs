//! Short ways to write events down, and what the room says of them.

use bytes::Bytes;

use super::super::{Gpu, Limits, Method, OpDone, Out, Step, Wait, WaitPhase};
use crate::intake::event::{Api, Call, Cuda, Event, Launches, Losses, What};

pub const PID: u32 = 7;
/// The context that [`fresh`] makes.
pub const CTX: u64 = 0xc0;
pub const PINNED: u64 = 0x7000_0000;
pub const PAGEABLE: u64 = 0x5000_0000;
pub const DEVICE: u64 = 0xd000_0000;
/// A blocking and a non-blocking stream that [`fresh`] makes.
pub const BLOCKING: u64 = 0x51b0;
pub const FREE: u64 = 0x5f00;
/// A third stream, blocking; nobody saw it made where only [`attached`] is used.
pub const OTHER: u64 = 0x5a00;

/// A call by thread 1, of one argument list.
pub fn call(api: Api, enter: u64, exit: u64, args: &[u64]) -> Event {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let call = Call {
        api,
        per_thread: false,
        enter_ns: enter,
        args: all,
        out: None,
        ret: 0,
        payload: Bytes::new(),
    };
    Event { time_ns: exit, pid: PID, tid: 1, what: What::Cuda(Cuda::Call(call)) }
}

/// Launches by thread 1 on a stream.
pub fn launch(first: u64, last: u64, count: u32, stream: u64) -> Event {
    let launches = Launches {
        run: first,
        first_ns: first,
        last_ns: last,
        count,
        stream: Some(stream),
        per_thread: false,
        function: 0xf,
        mixed: false,
        grid: [1; 3],
    };
    Event { time_ns: first, pid: PID, tid: 1, what: What::Cuda(Cuda::Launches(launches)) }
}

/// CUDA events were lost.
pub fn loss(time_ns: u64) -> Event {
    let losses = Losses { cuda: 3, ..Losses::default() };
    Event { time_ns, pid: 0, tid: 0, what: What::Loss(losses) }
}

/// Changes to an event.
pub trait With: Sized {
    fn by(self, tid: u32) -> Self;
    fn out(self, out: u64) -> Self;
    fn ret(self, ret: i32) -> Self;
    fn per_thread(self) -> Self;
    fn payload(self, bytes: &[u8]) -> Self;
    /// A launch of the run that began at that time.
    fn of_run(self, run: u64) -> Self;
}

impl With for Event {
    fn by(mut self, tid: u32) -> Self {
        self.tid = tid;
        self
    }

    fn out(mut self, out: u64) -> Self {
        if let What::Cuda(Cuda::Call(call)) = &mut self.what {
            call.out = Some(out);
        }
        self
    }

    fn ret(mut self, ret: i32) -> Self {
        if let What::Cuda(Cuda::Call(call)) = &mut self.what {
            call.ret = ret;
        }
        self
    }

    fn per_thread(mut self) -> Self {
        match &mut self.what {
            What::Cuda(Cuda::Call(call)) => call.per_thread = true,
            What::Cuda(Cuda::Launches(run)) => run.per_thread = true,
            _ => {}
        }
        self
    }

    fn payload(mut self, bytes: &[u8]) -> Self {
        if let What::Cuda(Cuda::Call(call)) = &mut self.what {
            call.payload = Bytes::copy_from_slice(bytes);
        }
        self
    }

    fn of_run(mut self, run: u64) -> Self {
        if let What::Cuda(Cuda::Launches(launches)) = &mut self.what {
            launches.run = run;
            self.time_ns = run;
        }
        self
    }
}

/// Pinned memory, current context and streams, seen to be made: nothing is unknown. Before time
/// 100.
pub fn fresh() -> Vec<Event> {
    vec![
        call(Api::CtxCreate, 1, 2, &[0x10, 0, 0]).out(CTX),
        call(Api::CtxSetCurrent, 3, 4, &[CTX]).by(2),
        call(Api::MemHostAlloc, 5, 6, &[0x10, 0x10000, 0]).out(PINNED),
        call(Api::StreamCreate, 7, 8, &[0x10, 0]).out(BLOCKING),
        call(Api::StreamCreateWithPriority, 9, 10, &[0x10, 1, 0]).out(FREE),
        call(Api::StreamCreate, 11, 12, &[0x10, 0]).out(OTHER),
    ]
}

pub fn h2d(enter: u64, exit: u64, from: u64) -> Event {
    call(Api::MemcpyHtoD, enter, exit, &[DEVICE, from, 64])
}

pub fn d2h(enter: u64, exit: u64) -> Event {
    call(Api::MemcpyDtoH, enter, exit, &[PAGEABLE, DEVICE, 64])
}

pub fn h2d_async(enter: u64, exit: u64, stream: u64) -> Event {
    call(Api::MemcpyHtoDAsync, enter, exit, &[DEVICE, PINNED, 64, stream])
}

pub fn d2h_async(enter: u64, exit: u64, stream: u64) -> Event {
    call(Api::MemcpyDtoHAsync, enter, exit, &[PINNED, DEVICE, 64, stream])
}

pub fn sync(enter: u64, exit: u64, stream: u64) -> Event {
    call(Api::StreamSynchronize, enter, exit, &[stream])
}

pub fn record(enter: u64, exit: u64, event: u64, stream: u64) -> Event {
    call(Api::EventRecord, enter, exit, &[event, stream])
}

pub fn sync_event(enter: u64, exit: u64, event: u64) -> Event {
    call(Api::EventSynchronize, enter, exit, &[event])
}

pub fn wait_event(enter: u64, exit: u64, stream: u64, event: u64) -> Event {
    call(Api::StreamWaitEvent, enter, exit, &[stream, event])
}

pub fn query(enter: u64, exit: u64, event: u64) -> Event {
    call(Api::EventQuery, enter, exit, &[event])
}

/// All that the room said.
pub struct Heard {
    pub gpu: Gpu,
    pub out: Vec<Out>,
}

/// Runs events through a room that has seen [`fresh`].
pub fn hear(events: Vec<Event>) -> Heard {
    let mut heard = attached(Limits::default(), fresh());
    heard.more(events);
    heard
}

/// Runs events through a room that knows nothing.
pub fn attached(limits: Limits, events: Vec<Event>) -> Heard {
    let mut heard = Heard { gpu: Gpu::new(limits), out: Vec::new() };
    heard.more(events);
    heard
}

impl Heard {
    pub fn more(&mut self, events: Vec<Event>) {
        for event in events {
            self.gpu.on_event(&event, &mut self.out);
        }
    }

    pub fn ops(&self) -> Vec<&OpDone> {
        self.pick(|out| match out {
            Out::Op(op) => Some(op),
            _ => None,
        })
    }

    /// Findings of one sort.
    pub fn pick<'a, T>(&'a self, sort: impl Fn(&'a Out) -> Option<&'a T>) -> Vec<&'a T> {
        self.out.iter().filter_map(sort).collect()
    }

    pub fn op(&self, enqueue: u64) -> Option<&OpDone> {
        self.ops().into_iter().find(|done| done.op.enqueue_first_ns == enqueue)
    }

    pub fn steps(&self) -> Vec<&Step> {
        self.pick(|out| match out {
            Out::Step(step) => Some(step),
            _ => None,
        })
    }

    pub fn waits(&self) -> Vec<&Wait> {
        self.pick(|out| match out {
            Out::Wait(wait) => Some(wait),
            _ => None,
        })
    }

    /// The last word on the wait that ended then.
    pub fn wait(&self, exit: u64) -> Option<&Wait> {
        self.waits().into_iter().rev().find(|wait| wait.exit_ns == exit)
    }

    pub fn phase(&self, exit: u64) -> Option<WaitPhase> {
        self.wait(exit).map(|wait| wait.phase)
    }

    /// Enqueues of the operations that facts have proven complete, in order.
    pub fn proven(&self) -> Vec<u64> {
        let facts = |done: &&OpDone| done.method != Method::Estimated;
        let mut proven: Vec<u64> =
            self.ops().into_iter().filter(facts).map(|done| done.op.enqueue_first_ns).collect();
        proven.sort_unstable();
        proven
    }
}
