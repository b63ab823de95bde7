//! Figures: distributions, ratios, and how sure one can be of them.

use serde::Serialize;

/// Median, 99th percentile and worst of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Values.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// The value at this rank (0 to 1) of a sorted sample.
pub fn at(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Sorts a sample.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median; `None` of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let sorted = sorted(values);
    (!sorted.is_empty()).then(|| at(&sorted, 0.5))
}

impl Spread {
    /// Of these values; `None` where there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        let max = *sorted.last()?;
        let count = sorted.len() as u64;
        Some(Self { count, p50: at(&sorted, 0.5), p99: at(&sorted, 0.99), max })
    }

    /// Nanoseconds as microseconds.
    pub fn micros(values: &[u64]) -> Option<Self> {
        Self::of(values.iter().map(|ns| *ns as f64 / 1e3))
    }
}

/// So many of so many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Those that hold.
    pub good: u64,
    /// All.
    pub all: u64,
}

impl Share {
    /// Adds one.
    pub fn add(&mut self, good: bool) {
        self.good += u64::from(good);
        self.all += 1;
    }

    /// The ratio; `None` of nothing.
    pub fn ratio(self) -> Option<f64> {
        (self.all > 0).then(|| self.good as f64 / self.all as f64)
    }

    /// Lower end of Wilson's interval: with 95 % confidence the true ratio is no lower.
    pub fn low95(self) -> Option<f64> {
        /// One-sided 95 %.
        const Z: f64 = 1.644_853_627;
        let n = self.all as f64;
        let p = self.ratio()?;
        let centre = p + Z * Z / (2.0 * n);
        let spread = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
        Some((centre - spread) / (1.0 + Z * Z / n))
    }
}

/// The median of a sample with a 95 % interval by order statistics (binomial), which needs no
/// assumption about the distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Median.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Values.
    pub count: u64,
}

impl Interval {
    /// Of these values; `None` where there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        let n = sorted.len();
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        // The largest k with P(Bin(n, ½) < k) ≤ 2.5 %: the k-th smallest and largest values.
        let mut term = 0.5f64.powi(n as i32);
        let mut below = 0.0;
        let mut k = 0;
        while k < n / 2 && below + term <= 0.025 {
            below += term;
            term *= (n - k) as f64 / (k + 1) as f64;
            k += 1;
        }
        let low = k.checked_sub(1).and_then(|k| sorted.get(k)).copied().unwrap_or(first);
        let high = sorted.get(n - k.max(1)).copied().unwrap_or(last);
        let half = n / 2;
        let middle = sorted.get(half).copied().unwrap_or(last);
        let before = sorted.get(half.saturating_sub(1)).copied().unwrap_or(middle);
        let median = if n % 2 == 1 { middle } else { (middle + before) / 2.0 };
        Some(Self { median, low, high, count: n as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let spread = Spread::of((1..=100).map(f64::from)).unwrap();
        assert_eq!((spread.p50, spread.p99, spread.max), (50.0, 99.0, 100.0));
        assert!(Spread::of([]).is_none());
    }

    #[test]
    fn wilson() {
        let low = Share { good: 10_000, all: 10_000 }.low95().unwrap();
        assert!((0.9996..0.9998).contains(&low), "{low}");
        let low = Share { good: 50, all: 100 }.low95().unwrap();
        assert!((0.41..0.42).contains(&low), "{low}");
    }

    #[test]
    fn ten_values_leave_out_one_on_each_side() {
        let interval = Interval::of((1..=10).map(f64::from)).unwrap();
        assert_eq!((interval.low, interval.median, interval.high), (2.0, 5.5, 9.0));
        let three = Interval::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((three.low, three.median, three.high), (1.0, 2.0, 3.0));
    }
}
