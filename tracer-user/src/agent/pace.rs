//! When to look around: on word at once, otherwise the more seldom the longer a look takes.

use std::time::{Duration, Instant};

/// Between two looks, where nobody sends word.
const SELDOM: Duration = Duration::from_secs(1);
/// The same, however long a look takes.
const MOST_SELDOM: Duration = Duration::from_secs(10);
/// Between two looks, however much word there is.
const OFTEN: Duration = Duration::from_millis(50);
/// A look may take one part in so many of the time.
const SHARE: u32 = 500;

/// The time of the next look.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    last: Instant,
    pause: Duration,
}

impl Pace {
    /// The first look is due.
    pub fn new(now: Instant) -> Self {
        Self { last: now, pause: Duration::ZERO }
    }

    /// How long to wait for the next look.
    pub fn left(&self, now: Instant) -> Duration {
        self.pause.saturating_sub(now.saturating_duration_since(self.last))
    }

    /// A look ended, which took so long.
    pub fn looked(&mut self, now: Instant, took: Duration) {
        (self.last, self.pause) = (now, took.saturating_mul(SHARE).clamp(SELDOM, MOST_SELDOM));
    }

    /// There is word that something has changed.
    pub fn hurry(&mut self) {
        self.pause = OFTEN.min(self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_takes_long_is_seldom() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        assert_eq!(pace.left(now), Duration::ZERO);
        for (took_ms, pause_ms) in [(0, 1_000), (1, 1_000), (5, 2_500), (100, 10_000)] {
            pace.looked(now, Duration::from_millis(took_ms));
            assert_eq!(pace.left(now), Duration::from_millis(pause_ms));
        }
        assert_eq!(pace.left(now + MOST_SELDOM), Duration::ZERO);
    }

    #[test]
    fn word_makes_it_soon_but_not_all_the_time() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.looked(now, Duration::from_millis(100));
        pace.hurry();
        assert_eq!(pace.left(now), OFTEN);
        pace.hurry();
        assert_eq!(pace.left(now + OFTEN), Duration::ZERO);
        pace.looked(now + OFTEN, Duration::ZERO);
        assert_eq!(pace.left(now + OFTEN), SELDOM);
    }
}
