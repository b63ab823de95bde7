//! When events were lost: whatever was being served meanwhile may lack some.

use std::collections::VecDeque;

/// Stretches of loss remembered; neighbours are merged, so loss without end is one of them.
const MAX_STRETCHES: usize = 4_096;

/// Times of loss, in order.
#[derive(Default)]
pub struct Losses(VecDeque<(u64, u64)>);

impl Losses {
    /// Events were lost between two times, ns. Comes in the order of the times.
    pub fn add(&mut self, from_ns: u64, to_ns: u64) {
        match self.0.back_mut() {
            Some((_, end)) if *end >= from_ns => *end = (*end).max(to_ns),
            _ => self.0.push_back((from_ns, to_ns)),
        }
        if self.0.len() > MAX_STRETCHES {
            // The two oldest become one: too much is called lost, never too little.
            if let (Some((from_ns, _)), Some(second)) = (self.0.pop_front(), self.0.front_mut()) {
                second.0 = from_ns;
            }
        }
    }

    /// Whether events were lost while something happened from `from_ns` to `to_ns`.
    pub fn touch(&self, from_ns: u64, to_ns: u64) -> bool {
        let first = self.0.partition_point(|(_, end)| *end < from_ns);
        self.0.get(first).is_some_and(|(begin, _)| *begin <= to_ns)
    }

    /// Forgets what ended before this time, ns.
    pub fn forget_before(&mut self, time_ns: u64) {
        while self.0.front().is_some_and(|(_, end)| *end < time_ns) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Losses;

    #[test]
    fn what_overlaps_is_touched() {
        let mut losses = Losses::default();
        losses.add(100, 200);
        losses.add(200, 250);
        losses.add(400, 500);
        assert!(losses.touch(0, 100) && losses.touch(250, 300) && losses.touch(0, 1000));
        assert!(!losses.touch(0, 99) && !losses.touch(251, 399) && !losses.touch(501, 600));
        losses.forget_before(300);
        assert!(!losses.touch(0, 399));
    }

    #[test]
    fn too_many_stretches_say_too_much() {
        let mut losses = Losses::default();
        (0..10_000u64).for_each(|n| losses.add(n * 10, n * 10 + 1));
        assert!(losses.touch(5, 6), "the oldest have been merged");
        assert!(!losses.touch(99_985, 99_989));
    }
}
