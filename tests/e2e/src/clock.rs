//! The clock of every stamp.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, ns.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Asks again and again until the answer is there; says what was awaited where it does not come.
///
/// # Errors
/// After `within`.
pub fn until<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            bail!("{what}: not within {within:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
