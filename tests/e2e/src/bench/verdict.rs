//! Limits: one is missed only where the whole interval lies beyond it; where it straddles it, the
//! run says nothing.

use crate::measure::Interval;

/// What an interval says of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All of it is within.
    Passed,
    /// All of it is beyond.
    Failed,
    /// Some of each.
    Inconclusive,
}

impl Verdict {
    /// As it is written down.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Inconclusive => "inconclusive",
        }
    }

    fn of(within: bool, beyond: bool) -> Self {
        match (within, beyond) {
            (true, _) => Self::Passed,
            (_, true) => Self::Failed,
            _ => Self::Inconclusive,
        }
    }

    /// Whether the value is at least the limit.
    pub fn at_least(interval: Interval, limit: f64) -> Self {
        Self::of(interval.low >= limit, interval.high < limit)
    }

    /// Whether the value is at most the limit.
    pub fn at_most(interval: Interval, limit: f64) -> Self {
        Self::of(interval.high <= limit, interval.low > limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_straddles_says_nothing() {
        let interval = Interval { median: 4.1, low: 3.9, high: 4.4, count: 10 };
        assert_eq!(Verdict::at_least(interval, 4.0), Verdict::Inconclusive);
        assert_eq!(Verdict::at_least(interval, 3.0), Verdict::Passed);
        assert_eq!(Verdict::at_least(interval, 5.0), Verdict::Failed);
        assert_eq!(Verdict::at_most(interval, 4.4), Verdict::Passed);
        assert_eq!(Verdict::at_most(interval, 3.0), Verdict::Failed);
    }
}
