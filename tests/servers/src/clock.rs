//! Clocks, thread ids, and the two ways of letting time pass.

/// Reads one of the kernel's clocks in nanoseconds.
#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid, writable timespec for the duration of the call.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    (ts.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ts.tv_nsec as u64)
}

/// `CLOCK_MONOTONIC` now, in nanoseconds: the clock of every stamp.
#[inline]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The kernel's id of the calling thread, asked for once per thread: stamps that carry it cost no
/// system call.
#[inline]
pub fn thread_id() -> i32 {
    thread_local! {
        // SAFETY: gettid takes no arguments and cannot fail.
        static ID: i32 = unsafe { libc::gettid() };
    }
    ID.with(|id| *id)
}

/// Uses the processor for `ns` of this thread's own CPU time.
pub fn spin(ns: u64) {
    let end = read(libc::CLOCK_THREAD_CPUTIME_ID).saturating_add(ns);
    while read(libc::CLOCK_THREAD_CPUTIME_ID) < end {
        std::hint::spin_loop();
    }
}

/// Sleeps until `deadline` on `CLOCK_MONOTONIC`; returns at once when it has passed.
pub fn sleep_until(deadline: u64) {
    let ts = libc::timespec {
        tv_sec: (deadline / 1_000_000_000) as libc::time_t,
        tv_nsec: (deadline % 1_000_000_000) as libc::c_long,
    };
    loop {
        // SAFETY: `ts` is a valid timespec; the remainder pointer may be null for absolute sleeps.
        let rc = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &ts,
                std::ptr::null_mut(),
            )
        };
        if rc != libc::EINTR {
            return;
        }
    }
}

/// Sleeps for `ns`.
pub fn sleep(ns: u64) {
    sleep_until(now_ns().saturating_add(ns));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_at_least_as_long_as_asked() {
        let start = now_ns();
        sleep(2_000_000);
        assert!(now_ns() - start >= 2_000_000);
        let start = read(libc::CLOCK_THREAD_CPUTIME_ID);
        spin(2_000_000);
        assert!(read(libc::CLOCK_THREAD_CPUTIME_ID) - start >= 2_000_000);
    }
}
