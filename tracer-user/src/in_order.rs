//! Queues for what comes nearly in its order.

use std::collections::VecDeque;

/// Where something goes in a queue that is kept in order: behind its equals, before what is later.
/// Mostly that is at the end.
pub fn place<T>(queue: &VecDeque<T>, is_later: impl Fn(&T) -> bool) -> usize {
    queue.len() - queue.iter().rev().take_while(|other| is_later(other)).count()
}

/// How many of a queue's things, from the one at `from` on, a condition holds for that holds up to
/// one of them and for none behind; `from` is counted in. Most who ask mean the oldest: the first
/// few are looked at first, and the search does not jump through all that is kept.
pub fn up_to<T>(queue: &VecDeque<T>, from: usize, holds: impl Fn(&T) -> bool) -> usize {
    let (mut known, mut step) = (from.min(queue.len()), 1);
    while queue.get(known + step - 1).is_some_and(&holds) {
        known += step;
        step *= 2;
    }
    let mut end = queue.len().min(known + step - 1);
    while known < end {
        let middle = known.midpoint(end);
        if queue.get(middle).is_some_and(&holds) {
            known = middle + 1;
        } else {
            end = middle;
        }
    }
    known
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

    proptest! {
        #[test]
        fn it_finds_where_a_condition_ends(
            mut numbers in proptest::collection::vec(0..40_u32, 0..100),
            bound in 0..42_u32,
            from in 0..100_usize,
        ) {
            numbers.sort_unstable();
            let queue = VecDeque::from(numbers);
            let wanted = queue.partition_point(|number| *number < bound);
            prop_assert_eq!(up_to(&queue, 0, |number| *number < bound), wanted);
            let from = from.min(queue.len());
            prop_assert_eq!(up_to(&queue, from, |number| *number < bound), wanted.max(from));
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
