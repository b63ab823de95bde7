//! Which requests of a process were served at the same time, and by which threads.

use std::collections::{BTreeMap, VecDeque};

use foldhash::HashMap;
use smallvec::SmallVec;

use crate::{
    in_order::{place, up_to},
    room::give_back,
    stream::Exchange,
};

/// Requests remembered of one process at most.
const MAX_SPANS: usize = 32_768;
/// Closed requests looked at for one question. A process that serves more at a time is one whose
/// threads are not told apart this way.
const MAX_SEARCHED: usize = 4_096;

/// A request's time on the server: from its first byte read to its last byte written.
#[derive(Clone, Copy, Debug)]
struct Span {
    id: u64,
    from_ns: u64,
    to_ns: u64,
}

impl Span {
    fn meets(&self, other: &Self) -> bool {
        self.id != other.id && self.from_ns < other.to_ns && self.to_ns > other.from_ns
    }
}

/// Requests that ended not long ago.
#[derive(Default)]
struct Closed {
    /// In the order of their ends.
    spans: VecDeque<Span>,
    /// End and length of those that are longer than all behind them: the first is the longest. One
    /// that ends later than that after a time has not begun before it.
    longest: VecDeque<(u64, u64)>,
}

impl Closed {
    fn add(&mut self, span: Span) {
        let at = place(&self.spans, |other| other.to_ns > span.to_ns);
        self.spans.insert(at, span);
        let length = span.to_ns - span.from_ns;
        while self.longest.back().is_some_and(|(_, shorter)| *shorter <= length) {
            self.longest.pop_back();
        }
        self.longest.push_back((span.to_ns, length));
    }

    fn forget_before(&mut self, time_ns: u64) {
        while self.spans.front().is_some_and(|span| span.to_ns < time_ns) {
            self.spans.pop_front();
        }
        while self.longest.front().is_some_and(|(to_ns, _)| *to_ns < time_ns) {
            self.longest.pop_front();
        }
        give_back(&mut self.spans);
    }

    /// Whether none meets another. At most [`MAX_SEARCHED`] are looked at; where there are more,
    /// nobody knows.
    fn none_meets(&self, span: &Span) -> bool {
        let longest_ns = self.longest.front().map_or(0, |(_, length)| *length);
        let first = up_to(&self.spans, 0, |other| other.to_ns <= span.from_ns);
        let may_meet = |other: &Span| other.to_ns <= span.to_ns.saturating_add(longest_ns);
        let last = up_to(&self.spans, first, may_meet);
        last - first <= MAX_SEARCHED
            && !self.spans.range(first..last).any(|other| other.meets(span))
    }
}

/// Requests of one process that ended not long ago, and those that are open.
#[derive(Default)]
pub struct Neighbours {
    closed: Closed,
    /// The same, by the threads that moved their bytes.
    by_thread: HashMap<u32, Closed>,
    open: BTreeMap<u64, (Span, Tids)>,
    /// Some that ended before this time have been let go for want of room, ns.
    floor_ns: u64,
}

type Tids = SmallVec<[u32; 4]>;

/// `after_ns`: when the response before it on its connection was written. Pipelined requests are
/// read together and served one after the other.
fn span(exchange: &Exchange, after_ns: u64, to_ns: u64) -> Span {
    Span { id: exchange.id, from_ns: exchange.first_read.exit_ns.max(after_ns), to_ns }
}

/// Threads that moved its bytes, each once.
fn threads(exchange: &Exchange) -> Tids {
    let (readers, writers) = (exchange.readers.as_slice(), exchange.writers.as_slice());
    let mut tids: Tids = readers.iter().chain(writers).copied().collect();
    tids.sort_unstable();
    tids.dedup();
    tids
}

impl Neighbours {
    /// A request has ended; `after_ns` as for [`Self::own_thread`].
    pub fn add(&mut self, exchange: &Exchange, after_ns: u64) {
        self.open.remove(&exchange.id);
        let end = exchange.last_write.as_ref().map_or(exchange.end_ns, |write| write.exit_ns);
        let span = span(exchange, after_ns, end.max(exchange.first_read.exit_ns).max(after_ns));
        self.closed.add(span);
        for tid in threads(exchange) {
            self.by_thread.entry(tid).or_default().add(span);
        }
        // Some at once: all threads are looked through for it.
        if self.closed.spans.len() > MAX_SPANS
            && let Some(last) = self.closed.spans.get(MAX_SPANS / 8)
        {
            self.floor_ns = self.floor_ns.max(last.to_ns);
            self.forget_before(self.floor_ns);
        }
    }

    /// These requests are open now.
    pub fn set_open<'a>(&mut self, open: impl Iterator<Item = &'a Exchange>) {
        let open =
            open.map(|exchange| (exchange.id, (span(exchange, 0, u64::MAX), threads(exchange))));
        self.open = open.collect();
    }

    /// Forgets requests that ended before this time, ns.
    pub fn forget_before(&mut self, time_ns: u64) {
        self.closed.forget_before(time_ns);
        self.by_thread.retain(|_, closed| {
            closed.forget_before(time_ns);
            !closed.spans.is_empty()
        });
    }

    /// The thread that alone read and answered the request, and served nothing else meanwhile.
    /// `after_ns`: when the response before it on its connection was written, 0 where there was
    /// none.
    pub fn own_thread(&self, exchange: &Exchange, after_ns: u64) -> Option<u32> {
        if exchange.readers.overflowed() || exchange.writers.overflowed() {
            return None;
        }
        let [tid] = *threads(exchange).as_slice() else { return None };
        let to = exchange.last_write.as_ref().map_or(exchange.end_ns, |write| write.exit_ns);
        let own = span(exchange, after_ns, to);
        let shared =
            self.open.values().any(|(other, tids)| tids.contains(&tid) && other.meets(&own));
        let served = self.by_thread.get(&tid);
        (own.from_ns >= self.floor_ns
            && !shared
            && served.is_none_or(|closed| closed.none_meets(&own)))
        .then_some(tid)
    }

    /// Whether no other request was served in a stretch of time.
    pub fn alone(&self, exchange: &Exchange, from_ns: u64, to_ns: u64) -> bool {
        let stretch = Span { id: exchange.id, from_ns, to_ns };
        from_ns >= self.floor_ns
            && !self.open.values().any(|(other, _)| other.meets(&stretch))
            && self.closed.none_meets(&stretch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(spans: &[(u64, u64)]) -> Closed {
        let mut closed = Closed::default();
        for (id, (from_ns, to_ns)) in (1..).zip(spans) {
            closed.add(Span { id, from_ns: *from_ns, to_ns: *to_ns });
        }
        closed
    }

    #[test]
    fn one_that_began_before_and_ends_after_is_met() {
        let closed = closed(&[(0, 10), (12, 20), (5, 100)]);
        let meets = |from_ns, to_ns| !closed.none_meets(&Span { id: 0, from_ns, to_ns });
        assert!(meets(50, 51) && meets(0, 1));
        assert!(!meets(100, 110));
    }

    #[test]
    fn a_long_one_is_no_burden_once_it_is_forgotten() {
        let mut closed = closed(&[(0, 1_000_000)]);
        for n in 0..20_000_u64 {
            let from_ns = 1_000_000 + n * 10;
            closed.add(Span { id: 10 + n, from_ns, to_ns: from_ns + 5 });
        }
        let between = Span { id: 1, from_ns: 1_100_006, to_ns: 1_100_009 };
        assert!(!closed.none_meets(&between), "too many to look at");
        closed.forget_before(1_000_001);
        assert!(closed.none_meets(&between));
    }
}
