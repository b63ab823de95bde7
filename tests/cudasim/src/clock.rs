//! Time: `CLOCK_MONOTONIC` in nanoseconds, the only clock of the simulated driver, and sleeping
//! until an instant of it.

use crate::config::config;

/// Now.
pub fn now() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// How a thread waits, as the context's scheduling flags say.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Sleep: what the simulated driver does unless told otherwise.
    Block,
    /// Give the processor away again and again (`CU_CTX_SCHED_YIELD`).
    Yield,
    /// Burn it (`CU_CTX_SCHED_SPIN`, or `CUDASIM_SPIN=1`).
    Spin,
}

impl Waiting {
    /// One step of a wait whose end is not an instant but a condition.
    pub fn relax(self) {
        match self {
            Waiting::Block | Waiting::Yield => std::thread::yield_now(),
            Waiting::Spin => std::hint::spin_loop(),
        }
    }
}

/// Waits until the clock shows `deadline`.
pub fn wait_until(deadline: u64, how: Waiting) {
    let mut time = now();
    if time >= deadline {
        return;
    }
    if how == Waiting::Block {
        let spun = config().spin_last_us * 1_000;
        let asleep_until = deadline.saturating_sub(spun);
        if asleep_until > time {
            sleep_until(asleep_until);
        }
        time = now();
    }
    while time < deadline {
        how.relax();
        time = now();
    }
}

/// Sleeps a host-side cost (loading a module, making a context).
pub fn sleep_us(us: u64) {
    if us > 0 {
        wait_until(now() + us * 1_000, Waiting::Block);
    }
}

fn sleep_until(deadline: u64) {
    // The default slack of 50 µs would be the largest error of the whole simulation.
    let slack = TimerSlack::finest();
    let ts = libc::timespec {
        tv_sec: (deadline / 1_000_000_000) as libc::time_t,
        tv_nsec: (deadline % 1_000_000_000) as libc::c_long,
    };
    loop {
        // SAFETY: `ts` is valid; no remainder is asked for, the time is absolute.
        let rc = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &ts,
                std::ptr::null_mut(),
            )
        };
        if rc != libc::EINTR {
            break;
        }
    }
    drop(slack);
}

/// The calling thread's timer slack, put back when dropped.
struct TimerSlack(libc::c_int);

impl TimerSlack {
    fn finest() -> Self {
        // SAFETY: these prctl operations take integers and touch only the calling thread.
        unsafe {
            let old = libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0);
            if old > 1 {
                libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
            }
            TimerSlack(old)
        }
    }
}

impl Drop for TimerSlack {
    fn drop(&mut self) {
        if self.0 > 1 {
            // SAFETY: as above.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, self.0 as libc::c_ulong, 0, 0, 0) };
        }
    }
}
