//! When the bytes of one connection reached its socket.
//!
//! The TCP stack says when each segment came and how long it was; reads say how many bytes were
//! taken. So a queue of (time, bytes), taken from at its front, gives the arrival of any byte that
//! is read. It drifts where bytes were not seen (attach, losses, data that came with the handshake)
//! or were seen twice (retransmissions). Therefore:
//!
//! - A read that got less than it asked for, or nothing, left the socket empty: what arrived before
//!   it was entered is dropped.
//! - A request on an idle connection was sent after the response before it: what arrived before
//!   that response's last write is dropped.
//! - Where the queue holds less than a read took, nothing is said about that read.
//! - Where it holds more than a read that emptied the socket can have left, the byte may lie in any
//!   of two places: the earlier is said where they are within [`AMBIGUOUS_NS`], else nothing.
//! - A queue that did not see the connection from its beginning is believed from the first read on
//!   that emptied the socket.

use std::collections::VecDeque;

/// Two answers that far apart are none, ns.
pub const AMBIGUOUS_NS: u64 = 1_000_000;

/// Segments that arrived together as far as is known.
#[derive(Clone, Copy, Debug)]
struct Segment {
    first_ns: u64,
    last_ns: u64,
    bytes: u64,
}

/// One connection's queue.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    queue: VecDeque<Segment>,
    bytes: u64,
    synced: bool,
}

/// A read of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Bytes taken.
    pub bytes: u64,
    /// Entry, ns.
    pub enter_ns: u64,
    /// It got less than it asked for.
    pub drained: bool,
}

/// When a byte arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// At this time, ns.
    At(u64),
    /// Not seen.
    Unknown,
    /// Seen, but at one of two times.
    Ambiguous,
}

impl Arrivals {
    /// Whether the connection was seen from its beginning.
    pub fn set_synced(&mut self, synced: bool) {
        self.synced = synced;
    }

    /// Segments held.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// No segment is held.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A segment arrived. `full`: it is to be merged with the one before it.
    pub fn push(&mut self, time_ns: u64, bytes: u64, full: bool) {
        self.bytes = self.bytes.saturating_add(bytes);
        match self.queue.back_mut() {
            Some(last) if full || last.last_ns == time_ns => {
                last.last_ns = time_ns;
                last.bytes = last.bytes.saturating_add(bytes);
            }
            _ => self.queue.push_back(Segment { first_ns: time_ns, last_ns: time_ns, bytes }),
        }
    }

    /// When the byte at `offset` of a read arrived. To be asked before [`Self::take`].
    pub fn ask(&self, read: Read, offset: u64) -> Answer {
        let trusted = self.synced || (read.drained && read.bytes == self.bytes);
        if !trusted || read.bytes > self.bytes {
            return Answer::Unknown;
        }
        let Some(first) = self.at(offset) else { return Answer::Unknown };
        let excess = match read.drained {
            true => self.bytes_until(read.enter_ns).saturating_sub(read.bytes),
            false => 0,
        };
        match self.at(offset.saturating_add(excess)) {
            Some(last) if last.saturating_sub(first) <= AMBIGUOUS_NS => Answer::At(first),
            Some(_) => Answer::Ambiguous,
            None => Answer::Unknown,
        }
    }

    /// The bytes of a read are taken from the front.
    pub fn take(&mut self, read: Read) {
        let mut left = read.bytes;
        while left > 0
            && let Some(first) = self.queue.front_mut()
        {
            let part = left.min(first.bytes);
            first.bytes -= part;
            left -= part;
            self.bytes -= part;
            if first.bytes == 0 {
                self.queue.pop_front();
            }
        }
        if read.drained {
            self.drain(read.enter_ns);
        }
    }

    /// The socket was empty at `time_ns`.
    pub fn drain(&mut self, time_ns: u64) {
        self.drop_until(time_ns);
        self.synced = true;
    }

    /// What arrived until `time_ns` has been read, whatever was seen of it.
    pub fn drop_until(&mut self, time_ns: u64) {
        while let Some(first) = self.queue.front().filter(|first| first.last_ns <= time_ns) {
            self.bytes -= first.bytes;
            self.queue.pop_front();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.queue = VecDeque::new();
        self.bytes = 0;
    }

    fn at(&self, offset: u64) -> Option<u64> {
        let mut before = 0u64;
        for segment in &self.queue {
            let inside = offset.checked_sub(before)?;
            if inside < segment.bytes {
                // Inside a merged segment only the first byte's time is known.
                let known = inside == 0 || segment.first_ns == segment.last_ns;
                return known.then_some(segment.first_ns);
            }
            before = before.saturating_add(segment.bytes);
        }
        None
    }

    fn bytes_until(&self, time_ns: u64) -> u64 {
        self.queue.iter().take_while(|s| s.last_ns <= time_ns).map(|s| s.bytes).sum()
    }
}
