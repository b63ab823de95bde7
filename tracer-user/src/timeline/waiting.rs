//! Requests that have ended and wait until everything that belongs to them has been told.

use std::collections::VecDeque;

use super::earliest::Earliest;
use crate::room::give_back;

/// A timeline is built this long after the request's end, ns.
pub(super) const GRACE_NS: u64 = 1_000_000_000;
/// While more requests wait than this, the oldest are built earlier: what is kept for them would
/// otherwise grow with the server's rate.
const CROWD: usize = 4_096;
/// … but no earlier than this after their end, ns: what calls tell when they return is there, and
/// items of work have been given to requests.
const CROWDED_GRACE_NS: u64 = 300_000_000;
/// The same, ns, of those that ran straight through: all that may still come is word of a loss.
const STRAIGHT_GRACE_NS: u64 = 150_000_000;
/// Requests that wait, at most.
const MAX_WAITING: usize = 262_144;

/// Those of one kind, in the order of their ends.
struct Queue<T> {
    /// Each with its end, ns.
    waiting: VecDeque<(u64, T)>,
    begins: Earliest,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), begins: Earliest::default() }
    }
}

impl<T> Queue<T> {
    fn end_ns(&self) -> Option<u64> {
        self.waiting.front().map(|(end_ns, _)| *end_ns)
    }

    fn pop(&mut self) -> Option<T> {
        let (_, first) = self.waiting.pop_front()?;
        self.begins.take();
        Some(first)
    }
}

/// Everything that waits.
pub(super) struct Waiting<T> {
    straight: Queue<T>,
    others: Queue<T>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { straight: Queue::default(), others: Queue::default() }
    }
}

impl<T> Waiting<T> {
    fn len(&self) -> usize {
        self.straight.waiting.len() + self.others.waiting.len()
    }

    fn is_crowded(&self) -> bool {
        self.len() > CROWD
    }

    /// What ended so long ago has had its grace, ns.
    pub(super) fn grace_ns(&self) -> u64 {
        if self.is_crowded() { CROWDED_GRACE_NS } else { GRACE_NS }
    }

    /// A request began to be read and ended at these times, ns. `straight`: its thread waited for nobody while it worked for it, and
    /// nothing else can have been done for it.
    pub(super) fn push(&mut self, (begin_ns, end_ns): (u64, u64), request: T, straight: bool) {
        let queue = if straight { &mut self.straight } else { &mut self.others };
        queue.begins.add(begin_ns);
        queue.waiting.push_back((end_ns, request));
    }

    /// Whether [`Self::pop`] would give one.
    pub(super) fn is_due(&self, watermark_ns: u64) -> bool {
        self.len() > MAX_WAITING || self.due(watermark_ns) != (false, false)
    }

    /// Of those that ran straight through and of the others: whether the first has had its grace.
    fn due(&self, watermark_ns: u64) -> (bool, bool) {
        let is_due = |queue: &Queue<T>, grace_ns| {
            queue.end_ns().is_some_and(|end_ns| end_ns.saturating_add(grace_ns) <= watermark_ns)
        };
        let straight_ns = if self.is_crowded() { STRAIGHT_GRACE_NS } else { GRACE_NS };
        (is_due(&self.straight, straight_ns), is_due(&self.others, self.grace_ns()))
    }

    /// Takes out the one that ended first, of those that have had their grace, or, beyond the cap, of
    /// all. Says whether it had it.
    pub(super) fn pop(&mut self, watermark_ns: u64) -> Option<(T, bool)> {
        let first = match self.due(watermark_ns) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            (true, true) => Some(self.straight.end_ns() <= self.others.end_ns()),
            (false, false) => None,
        };
        let in_time = first.is_some();
        let first = match first {
            Some(straight) => straight,
            None if self.len() <= MAX_WAITING => return None,
            None => self.others.waiting.is_empty(),
        };
        let queue = if first { &mut self.straight } else { &mut self.others };
        Some((queue.pop()?, in_time))
    }

    /// When the earliest of those that wait began to be read, ns.
    pub(super) fn begin_ns(&self) -> Option<u64> {
        self.straight.begins.get().into_iter().chain(self.others.begins.get()).min()
    }

    /// Gives back the room that a burst took.
    pub(super) fn give_back(&mut self) {
        give_back(&mut self.straight.waiting);
        give_back(&mut self.others.waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn add(waiting: &mut Waiting<u64>, end_ns: u64, straight: bool) {
        waiting.push((end_ns - 1, end_ns), end_ns, straight);
    }

    fn take(waiting: &mut Waiting<u64>, watermark_ns: u64) -> Vec<u64> {
        std::iter::from_fn(|| waiting.pop(watermark_ns)).map(|(end_ns, _)| end_ns).collect()
    }

    #[test]
    fn a_few_wait_for_the_whole_grace_and_come_in_order() {
        let mut waiting = Waiting::default();
        for (at, straight) in [(1, true), (2, false), (3, true), (4, false)] {
            add(&mut waiting, at * MS, straight);
        }
        assert_eq!(waiting.begin_ns(), Some(MS - 1));
        assert!(take(&mut waiting, 1_000 * MS).is_empty());
        assert_eq!(take(&mut waiting, 1_003 * MS), [MS, 2 * MS, 3 * MS]);
        assert_eq!(waiting.begin_ns(), Some(4 * MS - 1));
    }

    #[test]
    fn in_a_crowd_those_that_ran_straight_through_wait_least() {
        let mut waiting = Waiting::default();
        let count = 4 * CROWD as u64;
        (0..count).for_each(|at| add(&mut waiting, 100 * MS + at, at % 2 == 0));
        assert!(take(&mut waiting, 249 * MS).is_empty());
        let taken = take(&mut waiting, 251 * MS);
        assert!(taken.iter().all(|end_ns| end_ns % 2 == 0));
        assert_eq!(taken.len(), 2 * CROWD);
        // Until there is no crowd any more.
        assert_eq!(take(&mut waiting, 401 * MS).len(), CROWD);
        assert_eq!(take(&mut waiting, 1_101 * MS).len(), CROWD);
    }

    #[test]
    fn beyond_the_cap_none_waits() {
        let mut waiting = Waiting::default();
        (1..=MAX_WAITING as u64 + 1).for_each(|at| add(&mut waiting, at, false));
        assert!(waiting.is_due(0));
        assert_eq!(waiting.pop(0), Some((1, false)));
        assert_eq!(waiting.pop(0), None);
    }
}
