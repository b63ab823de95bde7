//! Distributions of durations in bounded memory.

use hdrhistogram::Histogram;

/// Values below this share a bucket, ns.
const LOWEST_NS: u64 = 128;
/// Larger values count as this (73 minutes), ns; [`Dist::max_ns`] keeps them exactly.
const HIGHEST_NS: u64 = 1 << 42;
/// Two significant digits: percentiles are right to 1 %.
const DIGITS: u8 = 2;

/// A distribution of durations. At most 32 KiB, 8 KiB below a second.
#[derive(Clone, Debug, Default)]
pub struct Dist {
    /// Made with the first value.
    histogram: Option<Histogram<u32>>,
    count: u64,
    max_ns: u64,
}

impl Dist {
    /// Adds a duration, ns.
    pub fn record(&mut self, ns: u64) {
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
        if let Some(histogram) = self.made() {
            // Cannot fail: the value lies within what the histogram may grow to.
            let _ = histogram.record(ns.min(HIGHEST_NS));
        }
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.max_ns = self.max_ns.max(other.max_ns);
        if let (Some(more), Some(histogram)) = (&other.histogram, self.made()) {
            // Cannot fail: it grows.
            let _ = histogram.add(more);
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest, ns.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The duration that `per_mille` of 1,000 do not exceed, ns, to 1 %. `None` where there are
    /// too few to tell it from the longest (below 1,000 for 99.9 %, below 100 for 99 % …).
    pub fn percentile(&self, per_mille: u16) -> Option<u64> {
        let beyond = 1_000_u64.saturating_sub(u64::from(per_mille));
        if self.count.saturating_mul(beyond) < 1_000 {
            return None;
        }
        let histogram = self.histogram.as_ref()?;
        let ns = histogram.value_at_quantile(f64::from(per_mille) / 1_000.0);
        Some(ns.min(self.max_ns))
    }

    /// Memory beside the struct itself, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.histogram.as_ref().map_or(0, |h| h.distinct_values() * size_of::<u32>())
    }

    fn made(&mut self) -> Option<&mut Histogram<u32>> {
        if self.histogram.is_none() {
            let made = Histogram::new_with_bounds(LOWEST_NS, 2 * LOWEST_NS, DIGITS).ok();
            self.histogram = made.map(|mut histogram| {
                histogram.auto(true);
                histogram
            });
        }
        self.histogram.as_mut()
    }
}
