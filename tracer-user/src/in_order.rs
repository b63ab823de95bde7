//! Queues for what comes nearly in its order.

use std::collections::VecDeque;

/// Where something goes in a queue that is kept in order: behind its equals, before what is later.
/// Mostly that is at the end.
pub fn place<T>(queue: &VecDeque<T>, is_later: impl Fn(&T) -> bool) -> usize {
    queue.len() - queue.iter().rev().take_while(|other| is_later(other)).count()
}

/// Room that is kept while nothing waits.
const KEPT: usize = 16_384;

/// Things that wait to be taken out, the smallest first.
///
/// A heap would do the same; but most of what comes is in place already, and sorting what is new once
/// in a while costs a fraction of a heap's jumps through memory.
#[derive(Clone, Debug)]
pub struct InOrder<T> {
    /// Taken out up to `next`; sorted from there to `sorted`; as they came behind.
    things: Vec<T>,
    next: usize,
    sorted: usize,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self { things: Vec::new(), next: 0, sorted: 0 }
    }
}

impl<T: Copy + Ord> InOrder<T> {
    /// Adds one, in any order.
    pub fn push(&mut self, thing: T) {
        self.things.push(thing);
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.things.len() - self.next
    }

    /// None waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the smallest out, if it is one of those. To ask costs little where nothing came since
    /// the last time.
    pub fn pop_if(&mut self, is_due: impl FnOnce(&T) -> bool) -> Option<T> {
        self.sort();
        let first = *self.things.get(self.next).filter(|first| is_due(first))?;
        self.next += 1;
        if self.next == self.things.len() {
            self.things.clear();
            self.things.shrink_to(KEPT);
            (self.next, self.sorted) = (0, 0);
        } else if self.next > KEPT && self.next > self.things.len() / 2 {
            self.things.drain(..self.next);
            (self.next, self.sorted) = (0, self.things.len());
        }
        Some(first)
    }

    fn sort(&mut self) {
        let Some(least) = self.things.get(self.sorted..).and_then(|new| new.iter().min()).copied()
        else {
            return;
        };
        let old = self.things.get(self.next..self.sorted).unwrap_or_default();
        let from = self.next + old.partition_point(|thing| *thing <= least);
        if let Some(part) = self.things.get_mut(from..) {
            // Finds the runs that are there and merges them.
            part.sort();
        }
        self.sorted = self.things.len();
    }
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_heap(steps in proptest::collection::vec((any::<bool>(), 0..200_u32), 0..400)) {
            let (mut queue, mut heap) = (InOrder::default(), BinaryHeap::new());
            for (push, number) in steps {
                if push {
                    queue.push(number);
                    heap.push(Reverse(number));
                } else {
                    let due = heap.peek().is_some_and(|Reverse(first)| *first <= number);
                    let wanted = if due { heap.pop().map(|Reverse(first)| first) } else { None };
                    prop_assert_eq!(queue.pop_if(|first| *first <= number), wanted);
                }
                prop_assert_eq!(queue.len(), heap.len());
            }
        }
    }

    #[test]
    fn what_was_taken_out_takes_no_room() {
        let mut queue = InOrder::default();
        for number in 0..1_000_000_u32 {
            queue.push(number);
            if number >= 100 {
                assert_eq!(queue.pop_if(|_| true), Some(number - 100));
            }
        }
        assert!(queue.things.capacity() <= 4 * KEPT);
    }
}
