//! Calls in which threads wait: for what, how long at most, what came of it.
//!
//! The timeout is read at entry: some calls write what is left of it over it.

use aya_ebpf::helpers::bpf_probe_read_user;
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    sched::{Call, NO_TIMEOUT, SOME_TIMEOUT, Wait},
};

use super::INTERRUPTIBLE;
use crate::{
    emit::{header, lose, submit_flags},
    maps::RING,
    probes::{fds::object, syscall::Op},
    state::{Pending, Thread},
};

const EAGAIN: i64 = 11;

// `linux/futex.h`.
const FUTEX_COMMAND: u64 = 0x7f;
const FUTEX_CLOCK_REALTIME: u64 = 256;
const FUTEX_PRIVATE: u64 = 128;
const FUTEX_WAIT: u64 = 0;
const FUTEX_LOCK_PI: u64 = 6;
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_WAIT_REQUEUE_PI: u64 = 11;
const FUTEX_LOCK_PI2: u64 = 13;

// `linux/time.h`.
const CLOCK_MONOTONIC: u32 = 1;
const TIMER_ABSTIME: u64 = 1;

// `linux/io_uring.h`.
const IORING_ENTER_GETEVENTS: u64 = 1;
const IORING_ENTER_EXT_ARG: u64 = 8;

const NS_PER_S: u64 = 1_000_000_000;
/// Longer timeouts count as this long, s: as many ns still fit.
const MAX_SECONDS: i64 = 1 << 33;

/// Takes over object and timeout; `true` where the call may wait. What the exit needs goes where
/// the arguments were: the timeout first, the futex operation second.
#[inline(never)]
pub fn enter(ids: u64, thread: &mut Thread) -> bool {
    let op = thread.pending.op;
    if op == Op::Futex as u8 || op == Op::FutexWait as u8 || op == Op::FutexWaitv as u8 {
        enter_futex(thread)
    } else {
        enter_other(ids, thread)
    }
}

/// `futex_wake`, `futex_requeue`: they wait for nothing.
#[inline(always)]
pub fn enter_wake(thread: &mut Thread) -> bool {
    thread.call = Call::Futex as u8;
    let at = thread.pending.args[0];
    thread.object = if thread.pending.op == Op::FutexRequeue as u8 { listed(at) } else { at };
    false
}

/// Address in the first `struct futex_waitv` of a list.
#[inline(always)]
fn listed(at: u64) -> u64 {
    // SAFETY: the helper checks the user address.
    unsafe { bpf_probe_read_user(at.wrapping_add(8) as *const u64) }.unwrap_or(0)
}

#[inline(always)]
fn enter_futex(thread: &mut Thread) -> bool {
    let p = &mut thread.pending;
    let op = p.op;
    let enter_ns = p.enter_ns;
    let (mut call, mut address) = (Call::Futex, p.args[0]);
    let (timeout, word);
    if op == Op::Futex as u8 {
        word = p.args[1];
        let command = word & FUTEX_COMMAND;
        let at = p.args[3];
        timeout = if command == FUTEX_WAIT {
            time(at, NS_PER_S)
        } else if command == FUTEX_LOCK_PI || word & FUTEX_CLOCK_REALTIME != 0 {
            some(at)
        } else {
            deadline(at, enter_ns)
        };
        let waits = command == FUTEX_WAIT
            || command == FUTEX_WAIT_BITSET
            || command == FUTEX_LOCK_PI
            || command == FUTEX_LOCK_PI2
            || command == FUTEX_WAIT_REQUEUE_PI;
        if !waits {
            thread.call = call as u8;
            thread.object = address;
            return false;
        }
    } else if op == Op::FutexWait as u8 {
        word = FUTEX_WAIT_BITSET | p.args[3] & FUTEX_PRIVATE;
        timeout = by_clock(p.args[4], p.args[5], enter_ns);
    } else {
        call = Call::FutexWaitv;
        address = listed(p.args[0]);
        word = FUTEX_WAIT_BITSET;
        timeout = by_clock(p.args[3], p.args[4], enter_ns);
    }
    p.conn_id = address;
    p.args[0] = timeout;
    p.args[1] = word;
    thread.call = call as u8;
    thread.object = address;
    true
}

#[inline(always)]
fn enter_other(ids: u64, thread: &mut Thread) -> bool {
    let p = &mut thread.pending;
    let op = p.op;
    let (call, timeout, on);
    if op == Op::EpollWait as u8 || op == Op::EpollPwait2 as u8 {
        call = Call::EpollWait;
        on = object(ids, p.fd);
        timeout = if op == Op::EpollWait as u8 {
            milliseconds(p.args[3])
        } else {
            time(p.args[3], NS_PER_S)
        };
    } else if op == Op::Poll as u8 || op == Op::Ppoll as u8 {
        call = Call::Poll;
        on = if p.args[1] as u32 == 0 { 0 } else { polled(ids, p.args[0]) };
        timeout =
            if op == Op::Poll as u8 { milliseconds(p.args[2]) } else { time(p.args[2], NS_PER_S) };
    } else if op == Op::Select as u8 || op == Op::Pselect as u8 {
        call = Call::Select;
        on = 0;
        let unit = if op == Op::Select as u8 { 1_000_000 } else { NS_PER_S };
        timeout = time(p.args[4], unit);
    } else if op == Op::IoUring as u8 {
        call = Call::IoUring;
        on = 0;
        let (wanted, flags) = (p.args[2] as u32, p.args[3]);
        if flags & IORING_ENTER_GETEVENTS == 0 {
            thread.call = call as u8;
            return false;
        }
        timeout = if wanted == 0 {
            0
        } else if flags & IORING_ENTER_EXT_ARG != 0 {
            // `struct io_uring_getevents_arg`: the address of the timeout at 16.
            // SAFETY: the helper checks the user address.
            match unsafe { bpf_probe_read_user(p.args[4].wrapping_add(16) as *const u64) } {
                Ok(at) => time(at, NS_PER_S),
                Err(_) => SOME_TIMEOUT,
            }
        } else {
            NO_TIMEOUT
        };
    } else {
        call = Call::Sleep;
        on = 0;
        timeout = if op == Op::Nanosleep as u8 {
            time(p.args[0], NS_PER_S)
        } else if p.args[1] & TIMER_ABSTIME != 0 {
            by_clock(p.args[2], p.args[0], p.enter_ns)
        } else {
            time(p.args[2], NS_PER_S)
        };
    }
    p.conn_id = on;
    p.args[0] = timeout;
    p.args[1] = 0;
    thread.call = call as u8;
    thread.object = on;
    true
}

/// The first `struct pollfd`'s open description.
#[inline(always)]
fn polled(ids: u64, at: u64) -> u64 {
    // SAFETY: the helper checks the user address.
    match unsafe { bpf_probe_read_user(at as *const i32) } {
        Ok(fd) => object(ids, fd),
        Err(_) => 0,
    }
}

/// A timeout in ms, negative for none.
#[inline(always)]
fn milliseconds(ms: u64) -> u64 {
    let ms = ms as i32;
    if ms < 0 { NO_TIMEOUT } else { ms as u64 * 1_000_000 }
}

/// A time as two numbers, the second in parts of `unit` per second, as ns.
#[inline(never)]
fn time(at: u64, unit: u64) -> u64 {
    if at == 0 {
        return NO_TIMEOUT;
    }
    // SAFETY: the helper checks the user address.
    match unsafe { bpf_probe_read_user(at as *const [i64; 2]) } {
        Ok([seconds, parts]) if seconds >= 0 && parts >= 0 => {
            let ns = if unit == NS_PER_S { parts as u64 } else { parts as u64 * 1_000 };
            seconds.min(MAX_SECONDS) as u64 * NS_PER_S + ns
        }
        _ => SOME_TIMEOUT,
    }
}

/// A point in time of a clock that is not ours.
#[inline(always)]
fn some(at: u64) -> u64 {
    if at == 0 { NO_TIMEOUT } else { SOME_TIMEOUT }
}

/// A point in time of `CLOCK_MONOTONIC`, as the time until then.
#[inline(always)]
fn deadline(at: u64, enter_ns: u64) -> u64 {
    let time = time(at, NS_PER_S);
    if time >= SOME_TIMEOUT {
        time
    } else if enter_ns == 0 {
        SOME_TIMEOUT
    } else {
        time.saturating_sub(enter_ns)
    }
}

#[inline(always)]
fn by_clock(at: u64, clock: u64, enter_ns: u64) -> u64 {
    // An `int`: what the register's upper half holds means nothing.
    if clock as u32 == CLOCK_MONOTONIC { deadline(at, enter_ns) } else { some(at) }
}

/// The call has returned.
#[inline(never)]
pub fn exit(ids: u64, thread: &mut Thread, ret: i64, time_ns: u64) {
    let p: &Pending = &thread.pending;
    let timeout = p.args[0];
    // A wake that came before the thread had left the processor: no time passed in the sleep.
    let unslept = thread.first.out_ns == 0 && thread.wake.ns != 0;
    let slept = thread.first.out_ns != 0 || unslept;
    let futex = p.op <= Op::FutexWaitv as u8;
    if !slept && (futex && ret == -EAGAIN || timeout == 0 && ret == 0) {
        return;
    }
    if let Some(mut slot) = RING.reserve::<Wait>(0) {
        let record = slot.as_mut_ptr();
        // SAFETY: the slot is ours and of this size; every field is written.
        unsafe {
            (&raw mut (*record).header).write(header(
                Kind::SchedWait,
                0,
                size_of::<Wait>(),
                ids,
                time_ns,
            ));
            (*record).enter_ns = p.enter_ns;
            (*record).object = p.conn_id;
            (*record).timeout_ns = timeout;
            (*record).ret = ret;
            (*record).arg = p.args[1] as u32;
            (*record).call = thread.call;
            (*record).pad = [0; 3];
            let sleep = &raw mut (*record).sleep;
            core::ptr::copy_nonoverlapping(&raw const thread.first, sleep, 1);
            if unslept {
                super::write_sleep(sleep, thread, 0, thread.wake.ns, true);
                (*sleep).state = INTERRUPTIBLE;
            } else if !slept {
                sleep.write_bytes(0, 1);
            }
        }
        slot.submit(submit_flags());
    } else {
        lose(Loss::RingSched, 1);
    }
    thread.first.out_ns = 0;
    thread.wake.ns = 0;
}
