//! Memory that a burst took, given back when it is over.

use std::collections::VecDeque;

/// Room for so many is kept in any case.
const KEPT: usize = 256;

/// Gives back most of a queue's room where less than a quarter is used.
pub fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > KEPT && queue.len() < queue.capacity() / 4 {
        queue.shrink_to(KEPT.max(2 * queue.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_no_room_behind() {
        let mut queue: VecDeque<u64> = (0..100_000).collect();
        queue.drain(..99_000);
        give_back(&mut queue);
        assert!(queue.capacity() < 4_000, "{}", queue.capacity());
        assert_eq!(queue.front(), Some(&99_000));
        // Where it is used there is nothing to give.
        let capacity = queue.capacity();
        give_back(&mut queue);
        assert_eq!(queue.capacity(), capacity);
    }
}
