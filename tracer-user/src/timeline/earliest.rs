//! The earliest of the times in a queue, without a search.

use std::collections::VecDeque;

/// Times of what waits in a queue, first in, first out.
#[derive(Debug, Default)]
pub(super) struct Earliest {
    added: u64,
    taken: u64,
    /// Time and number of those that nothing behind them is before: the first is the earliest.
    times: VecDeque<(u64, u64)>,
}

impl Earliest {
    /// Something joined the queue.
    pub(super) fn add(&mut self, time_ns: u64) {
        while self.times.back().is_some_and(|(time, _)| *time >= time_ns) {
            self.times.pop_back();
        }
        self.times.push_back((time_ns, self.added));
        self.added += 1;
    }

    /// The first left it.
    pub(super) fn take(&mut self) {
        if self.times.front().is_some_and(|(_, number)| *number == self.taken) {
            self.times.pop_front();
        }
        self.taken += 1;
    }

    /// The earliest time of what is in it, ns.
    pub(super) fn get(&self) -> Option<u64> {
        self.times.front().map(|(time_ns, _)| *time_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_what_a_search_finds(
            steps in prop::collection::vec(prop::option::of(0u64..50), 0..200),
        ) {
            let (mut earliest, mut queue) = (Earliest::default(), VecDeque::new());
            for step in steps {
                match step {
                    Some(time_ns) => {
                        earliest.add(time_ns);
                        queue.push_back(time_ns);
                    }
                    None if queue.pop_front().is_some() => earliest.take(),
                    None => {}
                }
                prop_assert_eq!(earliest.get(), queue.iter().min().copied());
            }
        }
    }
}
