//! What the probes keep in maps between one event and the next: values that user space never sees.

use core::mem::offset_of;

use tracer_ebpf::wire::{
    cuda::{PENDING_CALL_BYTES, PENDING_KEY_BYTES},
    policy::{THREAD_BYTES, ThreadSeed, thread_at},
    sched::Sleep,
    socket::{Io, MAX_CAPTURE},
};

/// A thread of a target. Its own programs write it, those of the system calls while it runs and
/// the switch to it before it does; `wake` alone is written by others, while it sleeps or is about
/// to.
#[repr(C)]
pub struct Thread {
    /// What user space may have said.
    pub seed: ThreadSeed,
    /// The system call that it is in.
    pub pending: Pending,
    /// Object of `call`.
    pub object: u64,
    /// [`tracer_ebpf::wire::sched::Call`]: what it is in, or was last.
    pub call: u8,
    /// 1: it has left that call.
    pub left: u8,
    /// 1: it launches on the GPU, and its launches may be gathering.
    pub gathers: u8,
    /// 1: it has ended and will be switched out for the last time.
    pub exiting: u8,
    /// State bits of the last switch out.
    pub state: u16,
    pub pad: u16,
    /// Last switch out; 0 while it runs and where that was not seen.
    pub out_ns: u64,
    /// The last wake.
    pub wake: Wake,
    /// The first sleep within the call that it is in, for the call's record; `out_ns` 0 where
    /// there was none.
    pub first: Sleep,
    /// Its streak of yields.
    pub yields: Yielding,
}

const _: () = assert!(size_of::<Thread>() == THREAD_BYTES);
const _: () = {
    let pending = offset_of!(Thread, pending);
    assert!(pending + offset_of!(Pending, enter_ns) == thread_at::ENTER_NS);
    assert!(pending + offset_of!(Pending, op) == thread_at::OP);
    assert!(offset_of!(Thread, object) == thread_at::OBJECT);
    assert!(offset_of!(Thread, call) == thread_at::CALL);
    assert!(offset_of!(Thread, left) == thread_at::LEFT);
    assert!(offset_of!(Thread, state) == thread_at::STATE);
    assert!(offset_of!(Thread, out_ns) == thread_at::OUT_NS);
    assert!(offset_of!(Thread, wake) == thread_at::WOKEN_NS);
};

/// A system call between its entry and its exit.
#[repr(C)]
pub struct Pending {
    /// 0 where that was before tracing began.
    pub enter_ns: u64,
    pub conn_id: u64,
    pub args: [u64; 6],
    pub fd: i32,
    pub capture_len: u32,
    pub flags: u16,
    /// [`crate::probes::syscall::Op`]; 0: in no call whose exit matters.
    pub op: u8,
    pub class: u8,
    pub pad: u32,
}

/// Who woke a thread, and when; `ns` 0: nobody.
#[repr(C)]
pub struct Wake {
    pub ns: u64,
    pub object: u64,
    pub tgid: u32,
    pub tid: u32,
    pub call: u8,
    pub flags: u8,
    pub pad: [u8; 6],
}

/// Yields one after the other; `count` 0: none.
#[repr(C)]
pub struct Yielding {
    pub first_ns: u64,
    pub last_ns: u64,
    /// Back on a processor since.
    pub back_ns: u64,
    pub count: u64,
    /// 1: that it goes on has been told.
    pub told: u64,
}

/// A socket record being put together. Twice the capture, so that offset and length can be masked
/// one by one.
#[repr(C)]
pub struct Scratch {
    pub io: Io,
    pub data: [u8; 2 * MAX_CAPTURE],
}

/// A call between entry and return: calls may nest, but not one function in itself.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PendingKey {
    pub ids: u64,
    pub api: u64,
}

/// What is remembered from entry to return.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PendingCall {
    pub enter_ns: u64,
    pub args: [u64; 6],
    pub stack: [u64; 3],
}

const _: () = {
    assert!(size_of::<PendingKey>() == PENDING_KEY_BYTES);
    assert!(size_of::<PendingCall>() == PENDING_CALL_BYTES);
    assert!(offset_of!(PendingCall, enter_ns) == 0);
};

/// Queries of one object that said "not ready", one after the other.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Streak {
    pub api: u64,
    pub object: u64,
    pub last_enter_ns: u64,
    pub count: u64,
}
