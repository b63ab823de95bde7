//! Reserve, submit, and count what could not be sent.

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid,
    generated::{bpf_ktime_get_ns, bpf_ringbuf_output},
};
use tracer_ebpf::wire::{Header, Kind, loss::Loss};

use crate::maps::{LOSSES, RING, WAKE_AT};

/// `BPF_RB_NO_WAKEUP` of `linux/bpf.h`: the reader is left alone.
pub const NO_WAKEUP: u64 = 1;
const BPF_RB_FORCE_WAKEUP: u64 = 2;
const BPF_RB_AVAIL_DATA: u64 = 0;
/// Once the ring is filled to `WAKE_AT`, submits within this many further bytes wake the reader;
/// beyond it a wake is already under way and another would only cost.
const WAKE_WINDOW: u64 = 64 << 10;

/// ns of `CLOCK_MONOTONIC`.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper takes no arguments and is allowed in every program type.
    unsafe { bpf_ktime_get_ns() }
}

/// Process and thread that are current, as the kernel packs them.
#[inline(always)]
pub fn pid_tgid() -> u64 {
    bpf_get_current_pid_tgid()
}

/// Wake-ups cost more than everything else here: the agent drains on a timer, and is woken only
/// when the ring fills.
#[inline(always)]
pub fn submit_flags() -> u64 {
    let avail = RING.query(BPF_RB_AVAIL_DATA);
    // SAFETY: a plain load; volatile because the loader replaces the value before load.
    let wake_at = unsafe { core::ptr::read_volatile(&raw const WAKE_AT) };
    if avail.wrapping_sub(wake_at) < WAKE_WINDOW { BPF_RB_FORCE_WAKEUP } else { NO_WAKEUP }
}

/// Adds to a loss counter.
#[inline(always)]
pub fn lose(place: Loss, count: u64) {
    if let Some(counter) = LOSSES.get_ptr_mut(place as u32) {
        // SAFETY: the pointer is this CPU's own slot, checked by the lookup.
        unsafe { *counter += count };
    }
}

/// A header for the current thread.
#[inline(always)]
pub fn header(kind: Kind, flags: u16, len: usize, pid_tgid: u64, time_ns: u64) -> Header {
    Header {
        time_ns,
        tgid: (pid_tgid >> 32) as u32,
        tid: pid_tgid as u32,
        kind: kind as u16,
        flags,
        len: len as u32,
    }
}

/// Sends a record of fixed size; `false` where the ring was full, which is counted at `place`.
#[inline(always)]
pub fn send<T: 'static>(record: T, place: Loss) -> bool {
    match RING.reserve::<T>(0) {
        Some(mut slot) => {
            slot.write(record);
            slot.submit(submit_flags());
            true
        }
        None => {
            lose(place, 1);
            false
        }
    }
}

/// Sends `len` bytes that begin at `record`; the caller has bounded `len`.
///
/// # Safety
/// `record` must point to at least `len` readable bytes that the verifier knows of.
#[inline(always)]
pub unsafe fn send_bytes(record: *const u8, len: u64, place: Loss) {
    // SAFETY: upheld by the caller; the map pointer is the ring's own.
    let ret = unsafe {
        bpf_ringbuf_output(
            (&raw const RING).cast_mut().cast(),
            record.cast_mut().cast(),
            len,
            submit_flags(),
        )
    };
    if ret < 0 {
        lose(place, 1);
    }
}
