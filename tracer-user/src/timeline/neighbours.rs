//! Which requests of a process were served at the same time, and by which threads.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::stream::Exchange;

/// Requests remembered of one process at most.
const MAX_SPANS: usize = 65_536;
/// Closed requests looked at for one question. A process that serves more at a time is one whose
/// threads are not told apart this way.
const MAX_SEARCHED: usize = 4_096;

/// A request's time on the server: from its first byte read to its last byte written.
#[derive(Clone, Debug)]
struct Span {
    id: u64,
    from_ns: u64,
    to_ns: u64,
    /// Threads that moved its bytes, sorted.
    tids: SmallVec<[u32; 4]>,
}

/// Requests of one process that ended not long ago, and those that are open.
#[derive(Default)]
pub struct Neighbours {
    /// In the order of their ends.
    closed: VecDeque<Span>,
    /// The longest closed span so far, ns: one that ends later than this after a time has not begun
    /// before it.
    longest_ns: u64,
    open: BTreeMap<u64, Span>,
}

/// `after_ns`: when the response before it on its connection was written. Pipelined requests are
/// read together and served one after the other.
fn span(exchange: &Exchange, after_ns: u64, to_ns: u64) -> Span {
    let (readers, writers) = (exchange.readers.as_slice(), exchange.writers.as_slice());
    let mut tids: SmallVec<[u32; 4]> = readers.iter().chain(writers).copied().collect();
    tids.sort_unstable();
    tids.dedup();
    Span { id: exchange.id, from_ns: exchange.first_read.exit_ns.max(after_ns), to_ns, tids }
}

impl Neighbours {
    /// A request has ended; `after_ns` as for [`Self::own_thread`].
    pub fn add(&mut self, exchange: &Exchange, after_ns: u64) {
        self.open.remove(&exchange.id);
        let end = exchange.last_write.as_ref().map_or(exchange.end_ns, |write| write.exit_ns);
        let span = span(exchange, after_ns, end.max(exchange.first_read.exit_ns).max(after_ns));
        self.longest_ns = self.longest_ns.max(span.to_ns - span.from_ns);
        let at = self.closed.partition_point(|other| other.to_ns <= span.to_ns);
        self.closed.insert(at, span);
        if self.closed.len() > MAX_SPANS {
            self.closed.pop_front();
        }
    }

    /// These requests are open now.
    pub fn set_open<'a>(&mut self, open: impl Iterator<Item = &'a Exchange>) {
        self.open = open.map(|exchange| (exchange.id, span(exchange, 0, u64::MAX))).collect();
    }

    /// Forgets requests that ended before this time, ns.
    pub fn forget_before(&mut self, time_ns: u64) {
        while self.closed.front().is_some_and(|span| span.to_ns < time_ns) {
            self.closed.pop_front();
        }
    }

    /// Whether none of the other requests served in a stretch of time is such a one. At most
    /// [`MAX_SEARCHED`] closed ones are looked at; where there were more, nobody knows.
    fn none(&self, id: u64, (from_ns, to_ns): (u64, u64), such: impl Fn(&Span) -> bool) -> bool {
        let meets = |span: &Span| {
            span.id != id && span.from_ns < to_ns && span.to_ns > from_ns && such(span)
        };
        let first = self.closed.partition_point(|span| span.to_ns <= from_ns);
        let last = self
            .closed
            .partition_point(|span| span.to_ns <= to_ns.saturating_add(self.longest_ns))
            .max(first);
        last - first <= MAX_SEARCHED
            && !self.open.values().any(meets)
            && !self.closed.range(first..last).any(meets)
    }

    /// The thread that alone read and answered the request, and served nothing else meanwhile.
    /// `after_ns`: when the response before it on its connection was written, 0 where there was
    /// none.
    pub fn own_thread(&self, exchange: &Exchange, after_ns: u64) -> Option<u32> {
        let own = span(exchange, after_ns, exchange.end_ns);
        let many = exchange.readers.overflowed() || exchange.writers.overflowed();
        let [tid] = *own.tids.as_slice() else { return None };
        if many {
            return None;
        }
        let to = exchange.last_write.as_ref().map_or(exchange.end_ns, |write| write.exit_ns);
        self.none(exchange.id, (own.from_ns, to), |other| other.tids.contains(&tid)).then_some(tid)
    }

    /// Whether no other request was served in a stretch of time.
    pub fn alone(&self, exchange: &Exchange, from_ns: u64, to_ns: u64) -> bool {
        self.none(exchange.id, (from_ns, to_ns), |_| true)
    }
}
