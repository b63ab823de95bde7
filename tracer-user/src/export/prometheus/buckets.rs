//! Where histograms are cut.

use prometheus_client::metrics::histogram::Histogram;

pub(super) use crate::export::buckets::DURATIONS;

/// Round-trip times, seconds: from a neighbour in the rack to the other side of the world.
pub(super) const ROUND_TRIPS: [f64; 14] =
    [0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// Sizes, bytes: 256 to 64 MiB.
pub(super) const BYTES: [f64; 10] = [
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// A histogram of durations.
pub(super) fn durations() -> Histogram {
    Histogram::new(DURATIONS)
}

/// A histogram of round-trip times.
pub(super) fn round_trips() -> Histogram {
    Histogram::new(ROUND_TRIPS)
}

/// A histogram of sizes.
pub(super) fn bytes() -> Histogram {
    Histogram::new(BYTES)
}

/// Seconds.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
