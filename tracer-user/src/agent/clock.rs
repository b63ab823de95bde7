//! The two clocks, read in one place.

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// ns of `CLOCK_MONOTONIC`, the clock of every event.
pub fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// Processor time that this process has used, ns.
pub fn own_ns() -> u64 {
    read(ClockId::ProcessCPUTime)
}

/// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, ns: the tightest of a few readings, since the agent
/// can be interrupted between the two.
pub fn realtime_offset_ns() -> i64 {
    let mut best = (u64::MAX, 0);
    for _ in 0..5 {
        let before = read(ClockId::Monotonic);
        let real = read(ClockId::Realtime);
        let after = read(ClockId::Monotonic);
        let width = after.saturating_sub(before);
        if width < best.0 {
            best = (width, real as i64 - (before + width / 2) as i64);
        }
    }
    best.1
}
