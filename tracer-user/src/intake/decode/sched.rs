//! Records of the scheduler, of waits, and of what threads wake each other with.

use std::mem::offset_of;

use tracer_ebpf::wire::{
    Header,
    sched::{
        Call, EpollCtl, NO_TIMEOUT, OffCpu, SOME_TIMEOUT, Signal, Sleep as WireSleep, WAKER_LEFT,
        Wait, YIELDS_GO_ON, Yields,
    },
};

use super::{
    super::event::{Direction, Sched, Sleep, SleepState, Timeout, WaitCall, Waker},
    DecodeError,
    fields::Fields,
};

const EPOLL_CTL_DEL: u32 = 2;

/// Every call, in the order of its number.
const CALLS: [Call; 18] = [
    Call::None,
    Call::Futex,
    Call::FutexWaitv,
    Call::EpollWait,
    Call::Poll,
    Call::Select,
    Call::Sleep,
    Call::Yield,
    Call::IoUring,
    Call::Read,
    Call::Write,
    Call::Accept,
    Call::Connect,
    Call::Close,
    Call::Exit,
    Call::Other,
    Call::Shutdown,
    Call::Clone,
];

impl Fields<'_> {
    pub(super) fn off_cpu(&self) -> Result<Sched, DecodeError> {
        self.exactly(size_of::<OffCpu>())?;
        let at = offset_of!(OffCpu, sleep);
        let out_ns = self.u64(at + offset_of!(WireSleep, out_ns))?;
        Ok(Sched::OffCpu(self.sleep(at, out_ns)?))
    }

    pub(super) fn wait(&self) -> Result<Sched, DecodeError> {
        self.exactly(size_of::<Wait>())?;
        let at = offset_of!(Wait, sleep);
        let out_ns = self.u64(at + offset_of!(WireSleep, out_ns))?;
        let sleep = if out_ns == 0 { None } else { Some(self.sleep(at, out_ns)?) };
        Ok(Sched::Wait(WaitCall {
            call: self.call_kind(offset_of!(Wait, call))?,
            enter_ns: self.u64(offset_of!(Wait, enter_ns))?,
            object: self.u64(offset_of!(Wait, object))?,
            timeout: match self.u64(offset_of!(Wait, timeout_ns))? {
                NO_TIMEOUT => Timeout::Never,
                SOME_TIMEOUT => Timeout::Some,
                ns => Timeout::After(ns),
            },
            ret: self.i64(offset_of!(Wait, ret))?,
            futex_op: self.u32(offset_of!(Wait, arg))?,
            sleep,
        }))
    }

    pub(super) fn yields(&self, header: &Header) -> Result<Sched, DecodeError> {
        self.exactly(size_of::<Yields>())?;
        Ok(Sched::Yields {
            first_ns: self.u64(offset_of!(Yields, first_ns))?,
            last_ns: self.u64(offset_of!(Yields, last_ns))?,
            count: self.u64(offset_of!(Yields, count))?,
            goes_on: header.flags & YIELDS_GO_ON != 0,
        })
    }

    pub(super) fn signal(&self) -> Result<Sched, DecodeError> {
        self.exactly(size_of::<Signal>())?;
        Ok(Sched::Signal {
            object: self.u64(offset_of!(Signal, object))?,
            enter_ns: self.u64(offset_of!(Signal, enter_ns))?,
            ret: self.i64(offset_of!(Signal, ret))?,
            direction: match self.u8(offset_of!(Signal, written))? {
                0 => Direction::In,
                1 => Direction::Out,
                value => {
                    return Err(DecodeError::Field { field: "written", value: value.into() });
                }
            },
        })
    }

    pub(super) fn epoll_ctl(&self) -> Result<Sched, DecodeError> {
        self.exactly(size_of::<EpollCtl>())?;
        Ok(Sched::EpollCtl {
            epoll: self.u64(offset_of!(EpollCtl, epoll))?,
            object: self.u64(offset_of!(EpollCtl, object))?,
            fd: self.i32(offset_of!(EpollCtl, fd))?,
            watched: self.u32(offset_of!(EpollCtl, op))? != EPOLL_CTL_DEL,
        })
    }

    fn call_kind(&self, at: usize) -> Result<Call, DecodeError> {
        let value = self.u8(at)?;
        let call = CALLS.get(usize::from(value)).copied();
        call.ok_or(DecodeError::Field { field: "call", value: value.into() })
    }

    fn sleep(&self, at: usize, out_ns: u64) -> Result<Sleep, DecodeError> {
        let woken_ns = self.u64(at + offset_of!(WireSleep, woken_ns))?;
        let flags = self.u8(at + offset_of!(WireSleep, waker_flags))?;
        let waker = Waker {
            pid: self.u32(at + offset_of!(WireSleep, waker_tgid))?,
            tid: self.u32(at + offset_of!(WireSleep, waker_tid))?,
            call: self.call_kind(at + offset_of!(WireSleep, waker_call))?,
            left: flags & WAKER_LEFT != 0,
            object: self.u64(at + offset_of!(WireSleep, waker_object))?,
        };
        Ok(Sleep {
            out_ns,
            woken_ns: (woken_ns != 0).then_some(woken_ns),
            in_ns: self.u64(at + offset_of!(WireSleep, in_ns))?,
            state: match self.u16(at + offset_of!(WireSleep, state))? {
                0 => SleepState::Preempted,
                1 => SleepState::Interruptible,
                2 => SleepState::Uninterruptible,
                _ => SleepState::Other,
            },
            waker: (woken_ns != 0).then_some(waker),
        })
    }
}
