//! Birth and death of threads and processes.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    offsets::{ABSENT, Field},
    policy::Setting,
    process::{CLONE_THREAD, Exec, Exit, NewTask},
};

use crate::{
    emit::{header, lose, now, pid_tgid, send},
    maps::{LATE, OFFSETS, PENDING, STREAKS, TARGETS},
    probes::cuda,
    targets::{is_on, target},
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
pub fn sched_process_exec(_ctx: TracePointContext) -> u32 {
    let ids = pid_tgid();
    if is_on(Setting::AllExecs) || target(ids).is_some() {
        let header = header(Kind::Exec, 0, size_of::<Exec>(), ids, now());
        send(Exec { header }, Loss::RingProcess);
    }
    0
}

/// `sched:sched_process_exit`: a target's thread has ended.
#[tracepoint]
pub fn sched_process_exit(ctx: TracePointContext) -> u32 {
    try_sched_process_exit(&ctx);
    0
}

#[inline(always)]
fn try_sched_process_exit(ctx: &TracePointContext) -> Option<()> {
    let ids = pid_tgid();
    let target = target(ids)?;
    cuda::forget_thread(ids, &target);
    // What the thread was in the middle of will not return. Absent keys are no error.
    let _ = PENDING.remove(&ids);
    let _ = STREAKS.remove(&ids);
    let _ = LATE.remove(&(ids as u32));
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
