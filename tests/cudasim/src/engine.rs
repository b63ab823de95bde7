//! The engines of a device and what work costs on them.
//!
//! One compute engine, one copy engine per direction and one for copies within the device. Each
//! does one thing at a time. Work is placed when its readiness is known, in the first gap long
//! enough: a kernel that waits for a copy does not keep the engine from others.

use std::collections::VecDeque;

use crate::config::config;

/// Which engine work occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Compute,
    H2D,
    D2H,
    D2D,
}

const ENGINES: usize = 4;

/// How long work takes.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    /// As given.
    Fixed(u64),
    /// A transfer of so many bytes; the bandwidth varies from one to the next.
    Copy { bytes: u64, pageable: bool },
}

/// The engines of one device.
pub struct Device {
    lanes: [Lane; ENGINES],
}

impl Device {
    /// An idle device.
    pub fn new(number: u64) -> Self {
        let lane = |engine: u64| Lane {
            busy: VecDeque::new(),
            jitter: config().seed ^ number << 32 ^ engine << 48,
        };
        Device { lanes: [lane(0), lane(1), lane(2), lane(3)] }
    }

    /// Occupies `engine` from `ready` on or later; gives start and end.
    pub fn reserve(&mut self, engine: Engine, ready: u64, cost: Cost, now: u64) -> (u64, u64) {
        let lane = match engine {
            Engine::Compute => &mut self.lanes[0],
            Engine::H2D => &mut self.lanes[1],
            Engine::D2H => &mut self.lanes[2],
            Engine::D2D => &mut self.lanes[3],
        };
        let duration = match cost {
            Cost::Fixed(ns) => ns,
            Cost::Copy { bytes, pageable } => {
                let varied = 1.0 + config().jitter * lane.next_jitter();
                copy_ns(engine, bytes, pageable, varied)
            }
        };
        let start = lane.place(ready, duration, now);
        (start, start + duration)
    }
}

/// Nanoseconds that a transfer takes when the bandwidth is `varied` times the usual.
pub fn copy_ns(engine: Engine, bytes: u64, pageable: bool, varied: f64) -> u64 {
    let c = config();
    let gbps = match engine {
        Engine::H2D if pageable => c.pageable_gbps.min(c.h2d_gbps),
        Engine::D2H if pageable => c.pageable_gbps.min(c.d2h_gbps),
        Engine::H2D => c.h2d_gbps,
        Engine::D2H => c.d2h_gbps,
        Engine::D2D => c.d2d_gbps,
        Engine::Compute => c.memset_gbps,
    };
    // Bytes per nanosecond are GB/s.
    c.copy_latency_ns + (bytes as f64 / (gbps * varied)) as u64
}

/// One engine: when it is busy, from now on, and its source of variation.
struct Lane {
    /// Disjoint, ordered, adjacent ones merged.
    busy: VecDeque<(u64, u64)>,
    jitter: u64,
}

impl Lane {
    /// The next number in −1..1 (splitmix64).
    fn next_jitter(&mut self) -> f64 {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.jitter;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64;
        unit * 2.0 - 1.0
    }

    /// Finds room for `duration` at or after `ready`, takes it, gives its start.
    fn place(&mut self, ready: u64, duration: u64, now: u64) -> u64 {
        while self.busy.front().is_some_and(|&(_, end)| end <= now && end < ready) {
            self.busy.pop_front();
        }
        if duration == 0 {
            return ready;
        }
        let mut start = ready;
        let mut at = self.busy.partition_point(|&(_, end)| end <= ready);
        while let Some(&(from, to)) = self.busy.get(at) {
            if start + duration <= from {
                break;
            }
            start = start.max(to);
            at += 1;
        }
        self.take(at, start, start + duration);
        start
    }

    /// Inserts an interval before position `at`, merging it with neighbours that it touches.
    fn take(&mut self, at: usize, start: u64, end: u64) {
        let touches_next = self.busy.get(at).is_some_and(|&(from, _)| from == end);
        let before = at.checked_sub(1).and_then(|i| self.busy.get_mut(i));
        match before {
            Some((_, to)) if *to == start => {
                *to = end;
                if touches_next && let Some((_, next_end)) = self.busy.remove(at) {
                    self.extend(at - 1, next_end);
                }
            }
            _ if touches_next => {
                if let Some((from, _)) = self.busy.get_mut(at) {
                    *from = start;
                }
            }
            _ => self.busy.insert(at, (start, end)),
        }
    }

    fn extend(&mut self, at: usize, end: u64) {
        if let Some((_, to)) = self.busy.get_mut(at) {
            *to = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Lane {
        Lane { busy: VecDeque::new(), jitter: 7 }
    }

    #[test]
    fn is_first_in_first_out_without_gaps() {
        let mut l = lane();
        assert_eq!(l.place(100, 10, 100), 100);
        assert_eq!(l.place(100, 10, 100), 110);
        assert_eq!(l.place(105, 10, 105), 120);
        assert_eq!(l.busy, [(100, 130)]);
    }

    #[test]
    fn fills_a_gap_that_is_long_enough() {
        let mut l = lane();
        assert_eq!(l.place(1000, 100, 0), 1000);
        assert_eq!(l.place(0, 100, 0), 0);
        assert_eq!(l.place(0, 1000, 0), 1100);
        assert_eq!(l.place(0, 900, 0), 100);
        assert_eq!(l.busy, [(0, 2100)]);
    }

    #[test]
    fn never_overlaps() {
        let mut l = lane();
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for i in 0..2000u64 {
            let ready = i * 3 + ((l.next_jitter() + 1.0) * 2_000.0) as u64;
            let duration = 1 + ((l.next_jitter() + 1.0) * 10.0) as u64;
            let start = l.place(ready, duration, i * 3);
            assert!(start >= ready);
            assert!(taken.iter().all(|&(s, e)| e <= start || start + duration <= s));
            taken.push((start, start + duration));
        }
    }

    #[test]
    fn variation_stays_within_its_bounds_and_repeats() {
        let (mut a, mut b) = (lane(), lane());
        for _ in 0..1000 {
            let x = a.next_jitter();
            assert!((-1.0..1.0).contains(&x));
            assert_eq!(x, b.next_jitter());
        }
    }
}
