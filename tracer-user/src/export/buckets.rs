//! Where histograms of durations are cut, in whatever form they are handed out.

/// Bounds, seconds: 1 ms to 100 s, denser between 5 ms and 10 s.
pub const DURATIONS: [f64; 26] = [
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 25.0, 50.0, 100.0,
];
