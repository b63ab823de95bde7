//! The threads of the targets: the gate of everything that happens several thousand times a second.
//!
//! An entry is made when its thread is born, by user space where it was there before, or by the
//! thread's own first system call where both missed it.

use tracer_ebpf::wire::{
    loss::Loss,
    policy::ThreadSeed,
    sched::{Call, Sleep},
};

use crate::{
    emit::lose,
    maps::THREADS,
    state::{Pending, Thread, Wake, Yielding},
    targets::target,
};

/// A thread of which nothing is known. Kept where the map can copy it from: the stack is too small.
static EMPTY: Thread = Thread {
    seed: ThreadSeed { tgid: 0, capture_len: 0, late: 0, pad: 0 },
    pending: Pending {
        enter_ns: 0,
        conn_id: 0,
        args: [0; 6],
        fd: 0,
        capture_len: 0,
        flags: 0,
        op: 0,
        class: 0,
        pad: 0,
    },
    object: 0,
    call: Call::None as u8,
    left: 0,
    gathers: 0,
    exiting: 0,
    state: 0,
    pad: 0,
    out_ns: 0,
    wake: Wake { ns: 0, object: 0, tgid: 0, tid: 0, call: 0, flags: 0, pad: [0; 6] },
    first: Sleep {
        out_ns: 0,
        woken_ns: 0,
        in_ns: 0,
        waker_object: 0,
        waker_tgid: 0,
        waker_tid: 0,
        state: 0,
        waker_call: 0,
        waker_flags: 0,
        pad: 0,
    },
    yields: Yielding { first_ns: 0, last_ns: 0, back_ns: 0, count: 0, told: 0 },
};

/// The thread's entry.
#[inline(always)]
pub fn find(tid: u32) -> Option<&'static mut Thread> {
    let entry = THREADS.get_ptr_mut(&tid)?;
    // SAFETY: the entry stays valid for the length of the program. One thread's programs do not
    // overlap, and who wakes it writes `wake` only, which they leave alone while it can be woken.
    Some(unsafe { &mut *entry })
}

/// The current thread's entry, where it has one of its own and not one that a dead thread with the
/// same number left behind.
#[inline(always)]
pub fn own(ids: u64) -> Option<&'static mut Thread> {
    let thread = find(ids as u32)?;
    if thread.seed.tgid == (ids >> 32) as u32 { Some(thread) } else { None }
}

/// The same; the entry is made where the process is traced and the thread has none.
#[inline(always)]
pub fn current(ids: u64) -> Option<&'static mut Thread> {
    if let Some(thread) = own(ids) {
        return Some(thread);
    }
    if !adopt(ids) {
        return None;
    }
    find(ids as u32)
}

#[inline(never)]
fn adopt(ids: u64) -> bool {
    match target(ids) {
        Some(target) => add(ids as u32, (ids >> 32) as u32, target.capture_len),
        None => false,
    }
}

/// Makes an entry; one that is there already is a dead thread's.
#[inline(always)]
pub fn add(tid: u32, tgid: u32, capture_len: u32) -> bool {
    if THREADS.insert(&tid, &EMPTY, 0).is_err() {
        lose(Loss::MapThread, 1);
        return false;
    }
    match find(tid) {
        Some(thread) => {
            thread.seed.tgid = tgid;
            thread.seed.capture_len = capture_len;
            true
        }
        None => false,
    }
}

/// Removes an entry. Absent keys are no error.
#[inline(always)]
pub fn forget(tid: u32) {
    let _ = THREADS.remove(&tid);
}
