//! The scheduler: when a target's thread left the processor, who woke it, when it came back.
//!
//! One record per absence, made when the thread is back; until then its entry remembers. Every
//! switch and every wake on the machine comes through here, so what is not a target's costs one
//! lookup per thread and nothing more.
//!
//! A wake may come before the switch out: the sleeper has said that it will sleep and not left yet.
//! So nothing is cleared at the switch out; the last wake before the switch in ended the sleep. A
//! thread that was woken before it left at all sleeps no more, and the call that it was in tells.

pub mod signal;
pub mod wait;
pub mod yields;

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    offsets::Field,
    sched::{Call, OffCpu, Sleep, WAKER_LEFT},
};

use super::{process::field, syscall::waits};
use crate::{
    emit::{NO_WAKEUP, header, lose, now, pid_tgid, submit_flags},
    maps::RING,
    state::Thread,
    threads,
};

/// State bits that mean something at a switch out; above them the kernel marks a preemption.
const STATE_MASK: u64 = 0xff;
/// `EXIT_DEAD` and `EXIT_ZOMBIE` of the kernel's `sched.h`: the thread will not come back.
const STATE_DEAD: u64 = 0x10 | 0x20;
const INTERRUPTIBLE: u16 = 1;

/// `sched:sched_switch`: the current thread leaves the processor, another takes it.
#[tracepoint]
pub fn sched_switch(ctx: TracePointContext) -> u32 {
    let ids = pid_tgid();
    let mut time_ns = 0;
    // The idle task has number 0 and is nobody's.
    if ids as u32 != 0
        && let Some(thread) = threads::find(ids as u32)
    {
        time_ns = now();
        leaves(&ctx, ids, thread, time_ns);
    }
    let next = field::<u32>(&ctx, Field::SwitchNextPid).unwrap_or(0);
    if next != 0
        && let Some(thread) = threads::find(next)
    {
        if time_ns == 0 {
            time_ns = now();
        }
        returns(next, thread, time_ns);
    }
    0
}

#[inline(always)]
fn leaves(ctx: &TracePointContext, ids: u64, thread: &mut Thread, time_ns: u64) {
    let state = field::<u64>(ctx, Field::SwitchPrevState).unwrap_or(0);
    if thread.exiting != 0 && state & STATE_DEAD != 0 {
        threads::forget(ids as u32);
        return;
    }
    thread.out_ns = time_ns;
    thread.state = (state & STATE_MASK) as u16;
    if thread.seed.late != 0 && thread.first.out_ns != 0 {
        tell_held(ids, thread, time_ns);
    }
}

#[inline(always)]
fn returns(tid: u32, thread: &mut Thread, time_ns: u64) {
    let (out_ns, woken) = (thread.out_ns, thread.wake.ns != 0);
    thread.out_ns = 0;
    if out_ns == 0 && !woken {
        return; // nobody saw it leave, and nobody woke it: it was preempted when tracing began
    }
    let slept = thread.state != 0 || out_ns == 0;
    if slept && !woken {
        lose(Loss::WakeUnseen, 1);
    }
    if thread.yields.count != 0 && yields::back(thread, out_ns, time_ns) && !slept {
        return;
    }
    // A thread that slept when tracing began is in a call that only its exit will name.
    let waits = waits(thread.pending.op) || thread.seed.late != 0 && out_ns == 0;
    if slept && waits && thread.first.out_ns == 0 {
        let first = &raw mut thread.first;
        // SAFETY: one field of the entry is written from others.
        unsafe { write_sleep(first, thread, out_ns, time_ns, slept) };
    } else if let Some(mut slot) = RING.reserve::<OffCpu>(0) {
        let record = slot.as_mut_ptr();
        let ids = u64::from(thread.seed.tgid) << 32 | u64::from(tid);
        // SAFETY: the slot is ours and of this size; every field is written.
        unsafe {
            (&raw mut (*record).header).write(header(
                Kind::SchedOffCpu,
                0,
                size_of::<OffCpu>(),
                ids,
                time_ns,
            ));
            write_sleep(&raw mut (*record).sleep, thread, out_ns, time_ns, slept);
        }
        // No look at the ring's fill: these alone cannot fill it between two rounds.
        slot.submit(NO_WAKEUP);
    } else {
        lose(Loss::RingSched, 1);
    }
    if slept {
        thread.wake.ns = 0;
        thread.state = 0;
    }
}

/// Writes the absence that ends now. A preempted thread was not woken; a wake that came meanwhile
/// belongs to the call that it is in.
///
/// # Safety
/// `at` must be writable.
#[inline(always)]
unsafe fn write_sleep(at: *mut Sleep, thread: &Thread, out_ns: u64, in_ns: u64, slept: bool) {
    let wake = &thread.wake;
    let woken = slept && wake.ns != 0;
    // SAFETY: upheld by the caller.
    unsafe {
        (*at).out_ns = if out_ns == 0 { wake.ns } else { out_ns };
        (*at).woken_ns = if woken { wake.ns } else { 0 };
        (*at).in_ns = in_ns;
        (*at).waker_object = if woken { wake.object } else { 0 };
        (*at).waker_tgid = if woken { wake.tgid } else { 0 };
        (*at).waker_tid = if woken { wake.tid } else { 0 };
        (*at).state = if out_ns == 0 { INTERRUPTIBLE } else { thread.state };
        (*at).waker_call = if woken { wake.call } else { 0 };
        (*at).waker_flags = if woken { wake.flags } else { 0 };
        (*at).pad = 0;
    }
}

/// Sends a sleep that was kept for a call's record, where the call turned out to have none.
#[inline(never)]
pub fn tell_held(ids: u64, thread: &mut Thread, time_ns: u64) {
    if let Some(mut slot) = RING.reserve::<OffCpu>(0) {
        let record = slot.as_mut_ptr();
        // SAFETY: the slot is ours and of this size; every field is written.
        unsafe {
            (&raw mut (*record).header).write(header(
                Kind::SchedOffCpu,
                0,
                size_of::<OffCpu>(),
                ids,
                time_ns,
            ));
            core::ptr::copy_nonoverlapping(&raw const thread.first, &raw mut (*record).sleep, 1);
        }
        slot.submit(submit_flags());
    } else {
        lose(Loss::RingSched, 1);
    }
    thread.first.out_ns = 0;
}

/// `sched:sched_waking`: a thread is woken, seen on the side of the waker.
#[tracepoint]
pub fn sched_waking(ctx: TracePointContext) -> u32 {
    woken(field::<u32>(&ctx, Field::WakingPid).unwrap_or(0));
    0
}

/// `sched:sched_wakeup_new`: a new thread may run for the first time.
#[tracepoint]
pub fn sched_wakeup_new(ctx: TracePointContext) -> u32 {
    woken(field::<u32>(&ctx, Field::WakeupNewPid).unwrap_or(0));
    0
}

#[inline(always)]
fn woken(tid: u32) {
    let Some(thread) = threads::find(tid) else { return };
    let ids = pid_tgid();
    let wake = &mut thread.wake;
    wake.ns = now();
    wake.tgid = (ids >> 32) as u32;
    wake.tid = ids as u32;
    wake.call = Call::None as u8;
    wake.flags = 0;
    wake.object = 0;
    if ids as u32 != 0
        && let Some(waker) = threads::find(ids as u32)
    {
        wake.call = waker.call;
        wake.flags = if waker.left != 0 { WAKER_LEFT } else { 0 };
        wake.object = waker.object;
    }
}
