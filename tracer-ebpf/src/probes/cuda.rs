//! Calls of the CUDA driver: uprobes whose cookie names the function and what to take from it.
//!
//! Uprobe programs can be preempted, so nothing here passes through per-CPU memory: records are
//! written where they lie in the ring, and what must be kept is keyed by thread.

use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::{
        bpf_get_attach_cookie, bpf_probe_read_user, bpf_probe_read_user_buf,
        bpf_probe_read_user_str_bytes,
    },
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_ebpf::wire::{
    Kind,
    cuda::{
        CUDA_OUT_FAULT, CUDA_PAYLOAD_FAULT, CUDA_PER_THREAD, CUDA_STREAM_FAULT, Call,
        LAUNCHES_MIXED, Launches, MEMCPY2D_LEN, MEMCPY3D_LEN, NAME_LEN,
    },
    cuda_api::{API_COUNT, Api, COOKIE_PER_THREAD, Take},
    loss::Loss,
    policy::{TARGET_CUDA, Target},
};

use crate::{
    emit::{NO_WAKEUP, header, lose, now, pid_tgid, send, submit_flags},
    maps::{CUDA_CALLS, LAUNCHES, RING, STREAKS},
    state::{PendingCall, PendingKey, Streak},
    targets::target,
    threads,
};

/// A run of launches is sent at the latest when a further launch finds it this old, ns.
const MAX_RUN_NS: u64 = 10_000_000;
/// And at this many launches.
const MAX_RUN: u32 = 4096;
const CUDA_ERROR_NOT_READY: i32 = 600;

/// A record with a payload of fixed size.
#[repr(C)]
struct CallWith<const N: usize> {
    call: Call,
    payload: [u8; N],
}

/// The first six integer arguments and the stack pointer.
struct Regs {
    args: [u64; 6],
    sp: u64,
}

#[inline(always)]
fn regs(ctx: &impl EbpfContext) -> Regs {
    let r = ctx.as_ptr().cast::<pt_regs>();
    // SAFETY: a uprobe's context is the registers at the probed instruction. Each is loaded once
    // and at its own constant offset (volatile): the verifier refuses a computed one.
    unsafe {
        Regs {
            args: [
                (&raw const (*r).rdi).read_volatile(),
                (&raw const (*r).rsi).read_volatile(),
                (&raw const (*r).rdx).read_volatile(),
                (&raw const (*r).rcx).read_volatile(),
                (&raw const (*r).r8).read_volatile(),
                (&raw const (*r).r9).read_volatile(),
            ],
            sp: (&raw const (*r).rsp).read_volatile(),
        }
    }
}

#[inline(always)]
fn flags(cookie: u64) -> u16 {
    if cookie & COOKIE_PER_THREAD != 0 { CUDA_PER_THREAD } else { 0 }
}

/// A kernel launch. One thread's consecutive launches on one stream become one record.
#[uprobe(multi)]
pub fn cuda_launch(ctx: ProbeContext) -> u32 {
    try_cuda_launch(&ctx);
    0
}

/// The same, where the kernel has no uprobe.multi.
#[uprobe]
pub fn cuda_launch_perf(ctx: ProbeContext) -> u32 {
    try_cuda_launch(&ctx);
    0
}

#[inline(always)]
fn try_cuda_launch(ctx: &ProbeContext) -> Option<()> {
    let ids = pid_tgid();
    // The gate: a thread has an entry only since it passed it, and loses it when it ends.
    let gathering = LAUNCHES.get_ptr_mut(&ids);
    if gathering.is_none() {
        target(ids)?;
    }
    // SAFETY: uprobe programs may ask for their cookie.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let r = regs(ctx);
    let mut flags = flags(cookie);
    let take = (cookie >> 16) as u8;
    let (at, function) = if take == Take::LaunchConfig as u8 {
        (r.args[0].wrapping_add(32), r.args[1])
    } else {
        (r.sp.wrapping_add(24), r.args[0])
    };
    // SAFETY: the helper checks the user address.
    let stream = match unsafe { bpf_probe_read_user(at as *const u64) } {
        Ok(stream) => stream,
        Err(_) => {
            flags |= CUDA_STREAM_FAULT;
            lose(Loss::CudaArgs, 1);
            0
        }
    };
    let api = cookie as u16;
    let time = now();
    if let Some(run) = gathering {
        // SAFETY: the entry is this thread's own, and only its own probes write it.
        let run = unsafe { &mut *run };
        if run.count != 0 {
            let same = run.stream == stream
                && run.api == api
                && run.header.flags & !LAUNCHES_MIXED == flags
                && run.count < MAX_RUN
                && time.wrapping_sub(run.first_ns) < MAX_RUN_NS;
            if same {
                run.count += 1;
                run.last_ns = time;
                if run.function != function {
                    run.header.flags |= LAUNCHES_MIXED;
                }
                return Some(());
            }
            flush_run(run, time);
        }
        begin_run(run, &First { r: &r, take, flags, api, time, stream, function });
        return Some(());
    }
    let mut run = Launches {
        header: header(Kind::CudaLaunches, flags, size_of::<Launches>(), ids, time),
        run_id: 0,
        first_ns: 0,
        last_ns: 0,
        stream: 0,
        function: 0,
        count: 0,
        api: 0,
        pad: 0,
        grid: [0; 3],
        block_x: 0,
    };
    begin_run(&mut run, &First { r: &r, take, flags, api, time, stream, function });
    if LAUNCHES.insert(&ids, &run, 0).is_err() {
        lose(Loss::MapLaunches, 1);
        flush_run(&mut run, time);
    } else if let Some(thread) = threads::current(ids) {
        thread.gathers = 1;
    }
    Some(())
}

/// The launch that begins a run.
struct First<'a> {
    r: &'a Regs,
    take: u8,
    flags: u16,
    api: u16,
    time: u64,
    stream: u64,
    function: u64,
}

/// Writes the first launch into a run whose header names the thread already.
#[inline(always)]
fn begin_run(run: &mut Launches, first: &First<'_>) {
    let args = &first.r.args;
    run.header.flags = first.flags;
    run.run_id = first.time;
    run.first_ns = first.time;
    run.last_ns = first.time;
    run.stream = first.stream;
    run.function = first.function;
    run.count = 1;
    run.api = first.api;
    if first.take == Take::LaunchConfig as u8 {
        // SAFETY: the helper checks the user address.
        if let Ok(dims) = unsafe { bpf_probe_read_user(args[0] as *const [u32; 4]) } {
            run.grid = [dims[0], dims[1], dims[2]];
            run.block_x = dims[3];
        }
    } else {
        run.grid = [args[1] as u32, args[2] as u32, args[3] as u32];
        run.block_x = args[4] as u32;
    }
}

/// Sends a run and leaves it empty.
#[inline(always)]
fn flush_run(run: &mut Launches, time_ns: u64) {
    match RING.reserve::<Launches>(0) {
        Some(mut slot) => {
            let record = slot.as_mut_ptr();
            // SAFETY: the slot is ours and of this size; both sides are plain data.
            unsafe {
                core::ptr::copy_nonoverlapping(&raw const *run, record, 1);
                (*record).header.time_ns = time_ns;
            }
            // No look at the ring's fill: launches alone cannot fill it between two rounds.
            slot.submit(NO_WAKEUP);
        }
        None => lose(Loss::RingCuda, u64::from(run.count)),
    }
    run.count = 0;
}

/// Sends what the thread has gathered: before another driver call, and before it may sleep in a
/// system call. Not when it is switched out: that may be in the middle of a program that gathers,
/// and the agent reads what lies here in every round.
#[inline(never)]
pub fn flush(ids: u64) {
    if let Some(run) = LAUNCHES.get_ptr_mut(&ids) {
        // SAFETY: the entry is this thread's own, and only its own probes write it.
        let run = unsafe { &mut *run };
        if run.count != 0 {
            flush_run(run, now());
        }
    }
}

/// The thread has ended, perhaps inside calls that will not return.
#[inline(always)]
pub fn forget_thread(ids: u64, target: &Target) {
    if target.flags & TARGET_CUDA == 0 {
        return;
    }
    flush(ids);
    let _ = LAUNCHES.remove(&ids);
    let mut api = 1;
    while api <= API_COUNT {
        // Absent keys are no error.
        let _ = CUDA_CALLS.remove(&PendingKey { ids, api });
        api += 1;
    }
}

/// Entry of a function whose return is probed too.
#[uprobe(multi)]
pub fn cuda_enter(ctx: ProbeContext) -> u32 {
    try_cuda_enter(&ctx);
    0
}

/// The same, where the kernel has no uprobe.multi.
#[uprobe]
pub fn cuda_enter_perf(ctx: ProbeContext) -> u32 {
    try_cuda_enter(&ctx);
    0
}

#[inline(always)]
fn try_cuda_enter(ctx: &ProbeContext) -> Option<()> {
    let ids = pid_tgid();
    target(ids)?;
    flush(ids);
    // SAFETY: uprobe programs may ask for their cookie.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let r = regs(ctx);
    let mut pending = PendingCall { enter_ns: now(), args: r.args, stack: [0; 3] };
    if (cookie >> 16) as u8 == Take::Stack as u8 {
        let at = r.sp.wrapping_add(8) as *const [u64; 3];
        // SAFETY: the helper checks the user address.
        pending.stack = unsafe { bpf_probe_read_user(at) }.unwrap_or([0; 3]);
    }
    let api = cookie as u16;
    if api != Api::EventQuery as u16 && api != Api::StreamQuery as u16 {
        end_streak(ids);
    }
    let key = PendingKey { ids, api: u64::from(api) };
    if CUDA_CALLS.insert(&key, &pending, 0).is_err() {
        lose(Loss::MapCudaCall, 1);
    }
    Some(())
}

/// Return of a function.
#[uretprobe(multi)]
pub fn cuda_return(ctx: RetProbeContext) -> u32 {
    try_cuda_return(&ctx);
    0
}

/// The same, where the kernel has no uprobe.multi.
#[uretprobe]
pub fn cuda_return_perf(ctx: RetProbeContext) -> u32 {
    try_cuda_return(&ctx);
    0
}

#[inline(always)]
fn try_cuda_return(ctx: &RetProbeContext) -> Option<()> {
    let ids = pid_tgid();
    target(ids)?;
    // SAFETY: uprobe programs may ask for their cookie.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let key = PendingKey { ids, api: cookie & 0xffff };
    // SAFETY: the entry is this thread's own; it is copied before it is removed.
    let mut pending = *unsafe { CUDA_CALLS.get(&key) }?;
    let _ = CUDA_CALLS.remove(&key);
    let r = ctx.as_ptr().cast::<pt_regs>();
    // SAFETY: as in `regs`; the return value is in rax.
    let ret = unsafe { (&raw const (*r).rax).read_volatile() } as i32;
    let api = cookie as u16;
    if (api == Api::EventQuery as u16 || api == Api::StreamQuery as u16)
        && !note_query(ids, api, ret, &mut pending)
    {
        return Some(());
    }
    let take = (cookie >> 16) as u8;
    let mut call = Call {
        header: header(Kind::CudaCall, flags(cookie), size_of::<Call>(), ids, now()),
        enter_ns: pending.enter_ns,
        args: pending.args,
        out: 0,
        ret,
        api,
        payload: 0,
    };
    if take == Take::Out as u8 || take == Take::OutAndName as u8 {
        // SAFETY: the helper checks the user address.
        match unsafe { bpf_probe_read_user(pending.args[0] as *const u64) } {
            Ok(out) => call.out = out,
            Err(_) => call.header.flags |= CUDA_OUT_FAULT,
        }
    }
    match take {
        t if t == Take::OutAndName as u8 => send_name(call),
        t if t == Take::Memcpy2d as u8 => send_struct::<MEMCPY2D_LEN>(call),
        t if t == Take::Memcpy3d as u8 => send_struct::<MEMCPY3D_LEN>(call),
        t if t == Take::Stack as u8 => send_stack(call, pending.stack),
        _ => {
            send(call, Loss::RingCuda);
        }
    }
    Some(())
}

/// Another call of the driver ends the thread's streak: the next "not ready" begins one anew.
#[inline(always)]
fn end_streak(ids: u64) {
    if let Some(streak) = STREAKS.get_ptr_mut(&ids) {
        // SAFETY: the entry is this thread's own, and only its own probes write it.
        unsafe { (*streak).api = 0 };
    }
}

/// Whether the query is to be sent: the first "not ready" of a streak and every other answer are.
/// An answer that ends a streak carries, in its unused arguments five and six, when the last
/// "not ready" query was entered and how many there were.
#[inline(always)]
fn note_query(ids: u64, api: u16, ret: i32, pending: &mut PendingCall) -> bool {
    let object = pending.args[0];
    let streak = STREAKS.get_ptr_mut(&ids).map(|streak| {
        // SAFETY: the entry is this thread's own, and only its own probes write it.
        unsafe { &mut *streak }
    });
    pending.args[4] = 0;
    pending.args[5] = 0;
    if ret != CUDA_ERROR_NOT_READY {
        if let Some(streak) = streak
            && streak.object == object
            && streak.api == u64::from(api)
        {
            pending.args[4] = streak.last_enter_ns;
            pending.args[5] = streak.count;
            streak.count = 0;
            streak.object = 0;
            streak.api = 0;
        }
        return true;
    }
    if let Some(streak) = streak {
        if streak.object == object && streak.api == u64::from(api) {
            streak.last_enter_ns = pending.enter_ns;
            streak.count += 1;
            return false;
        }
        *streak = Streak { api: u64::from(api), object, last_enter_ns: pending.enter_ns, count: 1 };
        return true;
    }
    let first = Streak { api: u64::from(api), object, last_enter_ns: pending.enter_ns, count: 1 };
    // Without room every query is sent, which loses nothing.
    let _ = STREAKS.insert(&ids, &first, 0);
    true
}

#[inline(always)]
fn send_name(mut call: Call) {
    let Some(mut slot) = RING.reserve::<CallWith<NAME_LEN>>(0) else {
        lose(Loss::RingCuda, 1);
        return;
    };
    call.payload = NAME_LEN as u16;
    call.header.len = size_of::<CallWith<NAME_LEN>>() as u32;
    let record = slot.as_mut_ptr();
    // SAFETY: the slot is ours and large enough; every byte of it is written before it is sent.
    unsafe {
        (*record).payload = [0; NAME_LEN];
        let name = &mut (*record).payload;
        if bpf_probe_read_user_str_bytes(call.args[2] as *const u8, name).is_err() {
            call.header.flags |= CUDA_PAYLOAD_FAULT;
        }
        (&raw mut (*record).call).write(call);
    }
    slot.submit(submit_flags());
}

#[inline(always)]
fn send_struct<const N: usize>(mut call: Call) {
    let Some(mut slot) = RING.reserve::<CallWith<N>>(0) else {
        lose(Loss::RingCuda, 1);
        return;
    };
    call.payload = N as u16;
    call.header.len = size_of::<CallWith<N>>() as u32;
    let record = slot.as_mut_ptr();
    // SAFETY: the slot is ours and large enough; every byte of it is written before it is sent.
    unsafe {
        let payload = &mut (*record).payload;
        // On a fault the helper zeroes what it could not read.
        if bpf_probe_read_user_buf(call.args[0] as *const u8, payload).is_err() {
            call.header.flags |= CUDA_PAYLOAD_FAULT;
        }
        (&raw mut (*record).call).write(call);
    }
    slot.submit(submit_flags());
}

#[inline(always)]
fn send_stack(mut call: Call, stack: [u64; 3]) {
    #[repr(C)]
    struct CallWithStack {
        call: Call,
        stack: [u64; 3],
    }
    call.payload = size_of_val(&stack) as u16;
    call.header.len = size_of::<CallWithStack>() as u32;
    send(CallWithStack { call, stack }, Loss::RingCuda);
}
