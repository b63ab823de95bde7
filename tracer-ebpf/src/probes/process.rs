//! Birth and death of threads and processes.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    offsets::{ABSENT, Field},
    policy::{Setting, Target},
    process::{CLONE_THREAD, Exec, Exit, NewTask},
    sched::Call,
};

use crate::{
    emit::{header, lose, now, pid_tgid, send},
    maps::{OFFSETS, STREAKS, TARGETS},
    probes::{
        cuda,
        sched::{self, yields},
    },
    targets::{is_on, target},
    threads,
};

/// Offset of a tracepoint field on this kernel.
#[inline(always)]
pub fn offset(field: Field) -> u32 {
    // SAFETY: the index is in range by construction; volatile because the loader sets the table.
    unsafe { core::ptr::read_volatile((&raw const OFFSETS).cast::<u32>().add(field as usize)) }
}

/// Reads a field of the record; `None` where this kernel has none or the read failed.
#[inline(always)]
pub fn field<T>(ctx: &TracePointContext, field: Field) -> Option<T> {
    let at = offset(field);
    if at == ABSENT {
        return None;
    }
    // SAFETY: the agent took the offset and checked the size in this tracepoint's format file.
    unsafe { ctx.read_at::<T>(at as usize) }.ok()
}

/// `task:task_newtask`: a target made a thread or a process.
#[tracepoint]
pub fn task_newtask(ctx: TracePointContext) -> u32 {
    try_task_newtask(&ctx);
    0
}

#[inline(always)]
fn try_task_newtask(ctx: &TracePointContext) -> Option<()> {
    let ids = pid_tgid();
    let parent = target(ids)?;
    let tid = field::<u32>(ctx, Field::NewTaskPid)?;
    let clone_flags = field::<u64>(ctx, Field::NewTaskCloneFlags)?;
    let tgid = if clone_flags & CLONE_THREAD == 0 { tid } else { (ids >> 32) as u32 };
    threads::add(tid, tgid, parent.capture_len);
    if clone_flags & CLONE_THREAD == 0 && TARGETS.insert(&tid, &parent, 0).is_err() {
        lose(Loss::MapTarget, 1);
        aya_log_ebpf::warn!(ctx, "no room to follow the forked process {}", tid);
    }
    let header = header(Kind::NewTask, 0, size_of::<NewTask>(), ids, now());
    send(NewTask { header, clone_flags, tid, pad: 0 }, Loss::RingProcess);
    Some(())
}

/// `sched:sched_process_exec`: a target began a new program; of every process where targets are
/// chosen by their program.
#[tracepoint]
pub fn sched_process_exec(ctx: TracePointContext) -> u32 {
    let ids = pid_tgid();
    let target = target(ids);
    if let Some(target) = target {
        began_anew(&ctx, ids, &target);
    }
    if is_on(Setting::AllExecs) || target.is_some() {
        let header = header(Kind::Exec, 0, size_of::<Exec>(), ids, now());
        send(Exec { header }, Loss::RingProcess);
    }
    0
}

/// The other threads are gone, and what this one did in the old program with them. It has taken
/// over the number of the process's first thread, whose entry may have ended already.
#[inline(always)]
fn began_anew(ctx: &TracePointContext, ids: u64, target: &Target) {
    cuda::forget_thread(ids, target);
    if let Some(old_tid) = field::<u32>(ctx, Field::ExecOldPid)
        && old_tid != ids as u32
    {
        threads::forget(old_tid);
        threads::add(ids as u32, (ids >> 32) as u32, target.capture_len);
    }
    if let Some(thread) = threads::own(ids) {
        thread.gathers = 0;
    }
}

/// `sched:sched_process_exit`: a target's thread has ended.
#[tracepoint]
pub fn sched_process_exit(ctx: TracePointContext) -> u32 {
    try_sched_process_exit(&ctx);
    0
}

/// The thread still wakes those who wait for it: its entry stays until it leaves the processor for
/// the last time, where that is seen.
#[inline(never)]
fn end(ids: u64) {
    let Some(thread) = threads::own(ids) else { return };
    let time_ns = now();
    if thread.first.out_ns != 0 {
        sched::tell_held(ids, thread, time_ns);
    }
    if thread.yields.count != 0 {
        yields::tell(ids, thread, time_ns);
    }
    thread.pending.op = 0;
    thread.call = Call::Exit as u8;
    thread.object = 0;
    thread.left = 0;
    thread.exiting = 1;
    if !is_on(Setting::Sched) {
        threads::forget(ids as u32);
    }
}

#[inline(always)]
fn try_sched_process_exit(ctx: &TracePointContext) -> Option<()> {
    let ids = pid_tgid();
    let target = target(ids)?;
    cuda::forget_thread(ids, &target);
    // What the thread was in the middle of will not return. An absent key is no error.
    let _ = STREAKS.remove(&ids);
    end(ids);
    let group_dead = match field::<u8>(ctx, Field::ExitGroupDead) {
        Some(dead) => u32::from(dead != 0),
        None => 2,
    };
    if group_dead == 1 {
        let _ = TARGETS.remove(&((ids >> 32) as u32));
    }
    let header = header(Kind::Exit, 0, size_of::<Exit>(), ids, now());
    send(Exit { header, group_dead, pad: 0 }, Loss::RingProcess);
    Some(())
}
