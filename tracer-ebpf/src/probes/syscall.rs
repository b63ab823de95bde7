//! The two programs that see every system call.
//!
//! A table of one byte per number decides in a few nanoseconds whether to go on. That is cheaper
//! than a tracepoint per call, and two programs let go at once where dozens of perf events take
//! seconds. What a thread is in is kept in its own entry, written where it lies.

mod table;

use aya_ebpf::{
    helpers::bpf_probe_read_kernel, macros::raw_tracepoint, programs::RawTracePointContext,
};
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    policy::{Class, Setting},
    process::MapExec,
    sched::Call,
};

use self::table::{NR_AT, REGS_AT, Regs, op};
pub use self::table::{Op, waits};
use super::{
    cuda, fds,
    sched::{self, signal, wait, yields},
    socket,
};
use crate::{
    emit::{header, now, pid_tgid, send},
    state::Thread,
    targets::{is_on, target},
    threads,
};

const PROT_EXEC: u64 = 4;

/// Every system call's entry.
#[raw_tracepoint]
pub fn sys_enter(ctx: RawTracePointContext) -> u32 {
    try_sys_enter(&ctx);
    0
}

#[inline(always)]
fn try_sys_enter(ctx: &RawTracePointContext) -> Option<()> {
    let op = op(ctx.arg::<u64>(1));
    if op == Op::Ignored as u8 || op == Op::Mmap as u8 {
        return None;
    }
    let ids = pid_tgid();
    let thread = threads::current(ids)?;
    let time_ns = now();
    if thread.gathers != 0 {
        cuda::flush(ids);
    }
    if thread.first.out_ns != 0 {
        sched::tell_held(ids, thread, time_ns);
    }
    if thread.yields.count != 0 && op != Op::Yield as u8 {
        yields::tell(ids, thread, time_ns);
    }
    thread.seed.late = 0;
    thread.wake.ns = 0;
    thread.object = 0;
    thread.left = 0;
    if op == Op::Yield as u8 {
        thread.call = Call::Yield as u8;
        yields::note(ids, thread, time_ns);
        return None;
    }
    if !begin(thread, op, time_ns, ctx.arg::<u64>(0)) || !enter(ids, thread) {
        thread.pending.op = 0;
    }
    Some(())
}

/// Takes over the call's arguments; `false` where they cannot be read.
#[inline(always)]
fn begin(thread: &mut Thread, op: u8, enter_ns: u64, regs: u64) -> bool {
    let at = regs as usize + REGS_AT;
    // SAFETY: the raw tracepoint's first argument points to the registers.
    let Ok(regs) = (unsafe { bpf_probe_read_kernel(at as *const Regs) }) else { return false };
    let p = &mut thread.pending;
    p.enter_ns = enter_ns;
    p.conn_id = 0;
    p.args = regs.args();
    p.fd = p.args[0] as i32;
    p.capture_len = thread.seed.capture_len;
    p.flags = 0;
    p.op = op;
    p.class = Class::Unknown as u8;
    true
}

/// What is to be done at entry; `true` where the exit matters too.
#[inline(always)]
fn enter(ids: u64, thread: &mut Thread) -> bool {
    let op = thread.pending.op;
    if op <= Op::Splice as u8 {
        socket::enter_io(ids, thread)
    } else if waits(op) {
        wait::enter(ids, thread)
    } else {
        enter_other(ids, thread)
    }
}

#[inline(never)]
fn enter_other(ids: u64, thread: &mut Thread) -> bool {
    let op = thread.pending.op;
    if op == Op::FutexWake as u8 || op == Op::FutexRequeue as u8 {
        wait::enter_wake(thread)
    } else if op == Op::EpollCtl as u8 {
        thread.call = Call::Other as u8;
        thread.object = fds::object(ids, thread.pending.fd);
        true
    } else if op == Op::Clone as u8 {
        thread.call = Call::Clone as u8;
        false
    } else if op == Op::Exit as u8 {
        thread.call = Call::Exit as u8;
        false
    } else {
        socket::enter_other(ids, thread)
    }
}

/// Every system call's exit.
#[raw_tracepoint]
pub fn sys_exit(ctx: RawTracePointContext) -> u32 {
    try_sys_exit(&ctx);
    0
}

#[inline(always)]
fn try_sys_exit(ctx: &RawTracePointContext) -> Option<()> {
    let nr_at = ctx.arg::<u64>(0) as usize + NR_AT;
    // SAFETY: the raw tracepoint's first argument points to the registers.
    let op = op(unsafe { bpf_probe_read_kernel(nr_at as *const u64) }.ok()?);
    if op == Op::Ignored as u8 {
        return None;
    }
    let ids = pid_tgid();
    if op == Op::Mmap as u8 {
        return exit_mmap(ids, ctx.arg::<u64>(0), ctx.arg::<u64>(1) as i64);
    }
    let thread = threads::own(ids)?;
    thread.left = 1;
    if thread.pending.op == op {
        leave(ids, thread, ctx.arg::<u64>(1) as i64);
    } else if thread.seed.late != 0 {
        late_exit(ids, thread, op, ctx.arg::<u64>(0), ctx.arg::<u64>(1) as i64);
    }
    thread.pending.op = 0;
    Some(())
}

/// A call that was entered before tracing began: a server that waits in `accept` or `recv` when we
/// attach would otherwise lose its next request. The registers still hold the arguments.
#[inline(never)]
fn late_exit(ids: u64, thread: &mut Thread, op: u8, regs: u64, ret: i64) {
    thread.seed.late = 0;
    let moves = op <= Op::Splice as u8 || op == Op::Accept as u8 || op == Op::Connect as u8;
    let wanted = waits(op) || moves && ret >= 0;
    let entered = wanted && begin(thread, op, 0, regs) && enter(ids, thread);
    thread.left = 1;
    if thread.first.out_ns != 0 && !(entered && waits(op)) {
        sched::tell_held(ids, thread, now());
    }
    if entered {
        leave(ids, thread, ret);
    }
}

#[inline(never)]
fn leave(ids: u64, thread: &mut Thread, ret: i64) {
    let op = thread.pending.op;
    let time_ns = now();
    if op <= Op::Splice as u8 {
        if fds::signals(u32::from(thread.pending.class)) {
            signal::exit(ids, &thread.pending, ret, time_ns);
        } else {
            socket::exit_io(ids, &thread.pending, ret, time_ns);
        }
    } else if waits(op) {
        wait::exit(ids, thread, ret, time_ns);
    } else if op == Op::EpollCtl as u8 {
        signal::exit_epoll_ctl(ids, &thread.pending, ret, time_ns);
    } else {
        socket::exit_other(ids, &thread.pending, ret, time_ns);
    }
}

/// A file mapped as executable: arguments three (protection) and five (descriptor).
#[inline(never)]
fn exit_mmap(ids: u64, regs: u64, ret: i64) -> Option<()> {
    if !is_on(Setting::AllMaps) {
        target(ids)?;
    }
    let at = regs as usize + REGS_AT;
    // SAFETY: the raw tracepoint's first argument points to the registers.
    let args = unsafe { bpf_probe_read_kernel(at as *const Regs) }.ok()?.args();
    if ret >= 0 && args[2] & PROT_EXEC != 0 && (args[4] as i32) >= 0 {
        let header = header(Kind::MapExec, 0, size_of::<MapExec>(), ids, now());
        send(MapExec { header, address: ret as u64 }, Loss::RingProcess);
    }
    Some(())
}
