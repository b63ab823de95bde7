//! The scheduler's word on the targets' threads, the calls in which they wait, and what wakes them.
//!
//! A thread's time off the processor is one record, made when it runs again: when it left, when and
//! by whom it was woken, when it came back. Where it was inside a call that waits, the call's record
//! carries it.

use super::Header;
use crate::assert_size;

/// What a thread is, or was last, in: the call it sleeps in, or the call from which it wakes others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Call {
    /// No call that is followed, or nothing known (a thread that is not traced).
    None = 0,
    /// `futex(2)`, `futex_wait`, `futex_wake`, `futex_requeue`; object: the (first) address.
    Futex = 1,
    /// `futex_waitv(2)`; object: the first address of the list.
    FutexWaitv = 2,
    /// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`; object: the epoll instance.
    EpollWait = 3,
    /// `poll`, `ppoll`; object: the first descriptor's open description, 0 where it is unknown.
    Poll = 4,
    /// `select`, `pselect6`; no object.
    Select = 5,
    /// `nanosleep`, `clock_nanosleep`; no object.
    Sleep = 6,
    /// `sched_yield`; no object.
    Yield = 7,
    /// `io_uring_enter`; no object.
    IoUring = 8,
    /// A call that takes bytes in; object: the open description.
    Read = 9,
    /// A call that puts bytes out; object: the open description.
    Write = 10,
    /// `accept`, `accept4`; object: the listener's open description.
    Accept = 11,
    /// `connect`; object: the open description.
    Connect = 12,
    /// `close`, `dup2`, `dup3`, `close_range`: the files that they let go are released, and those
    /// who wait for them woken, in the call or right after it ([`WAKER_LEFT`]); object: the open
    /// description, 0 for a range.
    Close = 13,
    /// The thread is ending.
    Exit = 14,
    /// Another call that is followed.
    Other = 15,
    /// `shutdown`; object: the open description.
    Shutdown = 16,
    /// `clone`, `clone3`, `fork`, `vfork`: the thread begins (the new thread's first record).
    Clone = 17,
}

/// [`OffCpu`], [`Wait`]: the waker had already left its call (deferred release of files).
pub const WAKER_LEFT: u8 = 1;

/// Time off the processor. All times ns of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sleep {
    /// Switched out; 0: no such time (in [`Wait`]: the thread did not leave the processor and no
    /// wake was seen, or an [`OffCpu`] of its own tells). Where the switch out was not seen, the
    /// wake: a new thread's first record, and that of a thread which slept when tracing began. All
    /// three times are the wake where it came while the thread was still about to sleep.
    pub out_ns: u64,
    /// Woken (`sched_waking`); 0 where it was not: it was preempted, or the wake was not seen.
    pub woken_ns: u64,
    /// Switched in.
    pub in_ns: u64,
    /// Object of the call that the waker was in, see [`Call`].
    pub waker_object: u64,
    /// Process current at the wake. An interrupt runs on top of whoever is current.
    pub waker_tgid: u32,
    /// Thread current at the wake; 0 for the idle task.
    pub waker_tid: u32,
    /// The kernel's state bits at the switch out: 0 preempted or yielding, 1 interruptible sleep
    /// (also where the switch out was not seen), 2 uninterruptible.
    pub state: u16,
    /// [`Call`] of the waker.
    pub waker_call: u8,
    /// [`WAKER_LEFT`].
    pub waker_flags: u8,
    /// Zero.
    pub pad: u32,
}
assert_size!(Sleep, 48);

/// A thread is back on a processor (`sched_switch`), and no [`Wait`] will tell. Left out: short
/// times in which a thread let others run inside `sched_yield`, for which [`Yields`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct OffCpu {
    /// Time: the switch in; a little later where the thread slept when tracing began, and the call
    /// turned out to be none that [`Wait`] tells of. The header names the thread that was switched
    /// in.
    pub header: Header,
    /// When and why.
    pub sleep: Sleep,
}
assert_size!(OffCpu, 24 + 48);

/// [`Wait::timeout_ns`]: the call waits for ever.
pub const NO_TIMEOUT: u64 = u64::MAX;
/// [`Wait::timeout_ns`]: the call has a timeout that could not be read, or that is a point in time.
pub const SOME_TIMEOUT: u64 = u64::MAX - 1;

/// A call that can wait has returned. Left out: calls that asked without waiting and found nothing
/// (`EAGAIN` of a futex, a zero timeout with nothing ready) unless they slept all the same, and
/// operations that do not wait (futex wakes, `io_uring_enter` that only submits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Wait {
    /// Time: the call's exit.
    pub header: Header,
    /// Entry, ns of `CLOCK_MONOTONIC`; 0 where that was before tracing began.
    pub enter_ns: u64,
    /// See [`Call`].
    pub object: u64,
    /// Longest wait that the caller allows, ns, or [`NO_TIMEOUT`], [`SOME_TIMEOUT`].
    pub timeout_ns: u64,
    /// What the call returned.
    pub ret: i64,
    /// Futex: the operation word (`FUTEX_PRIVATE_FLAG` 128 and the command in the low 7 bits);
    /// otherwise 0.
    pub arg: u32,
    /// [`Call`].
    pub call: u8,
    /// Zero.
    pub pad: [u8; 3],
    /// The thread's first sleep within the call; further ones, and times in which it was preempted,
    /// come before as [`OffCpu`].
    pub sleep: Sleep,
}
assert_size!(Wait, 24 + 40 + 48);

/// [`Yields`]: the streak goes on, its end will be told as well.
pub const YIELDS_GO_ON: u16 = 1;

/// A thread called `sched_yield` again and again. Told when it enters another followed call, ends,
/// or yields again after it ran for 200 µs without; and once before, where it lasts for longer than
/// 5 ms ([`YIELDS_GO_ON`]): whoever polls for the next request may do so for hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Yields {
    /// Time: the telling.
    pub header: Header,
    /// Entry of the first yield, ns of `CLOCK_MONOTONIC`.
    pub first_ns: u64,
    /// Entry of the last, ns.
    pub last_ns: u64,
    /// How many.
    pub count: u64,
}
assert_size!(Yields, 24 + 24);

/// Bytes went through something that threads wake each other with: a pipe, an `eventfd`, a
/// `socketpair`. `EAGAIN` is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Signal {
    /// Time: the call's exit.
    pub header: Header,
    /// Entry, ns of `CLOCK_MONOTONIC`; 0 where that was before tracing began.
    pub enter_ns: u64,
    /// The open description acted on.
    pub object: u64,
    /// Bytes (messages of `recvmmsg`, `sendmmsg`), 0 for end of file, or a negative errno.
    pub ret: i64,
    /// Descriptor.
    pub fd: i32,
    /// 0 read, 1 written.
    pub written: u8,
    /// One of [`super::policy::Class`].
    pub class: u8,
    /// Zero.
    pub pad: [u8; 2],
}
assert_size!(Signal, 24 + 32);

/// Bit of an object's number: the other end of a pipe or `socketpair` made under trace has the same
/// number but for this bit.
pub const OTHER_END: u64 = 1 << 62;

/// What an epoll instance watches has changed (`epoll_ctl`, success).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct EpollCtl {
    /// Time: the call's exit.
    pub header: Header,
    /// The epoll instance.
    pub epoll: u64,
    /// The open description watched, 0 where it is nothing that is followed.
    pub object: u64,
    /// Descriptor of the epoll instance.
    pub epoll_fd: i32,
    /// Descriptor watched.
    pub fd: i32,
    /// `EPOLL_CTL_ADD` 1, `EPOLL_CTL_DEL` 2, `EPOLL_CTL_MOD` 3.
    pub op: u32,
    /// Zero.
    pub pad: u32,
}
assert_size!(EpollCtl, 24 + 32);
