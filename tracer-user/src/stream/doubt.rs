//! Connections whose close may have been lost: whom to ask about, and what becomes of those that are
//! found to be gone.
//!
//! The ring that runs over loses the word of closes like any other. Without a look at the
//! descriptors, a request that was under way would stay open until its descriptor is used again.

use super::conn::Conn;
use super::context::Cause;
use super::exchange::{Out, reason};
use super::names::Named;
use super::streams::Streams;
use crate::intake::event::{Losses, Naming};

impl Conn {
    /// A call on it was entered then. It was open at that time, under the one name that it has: what
    /// was lost before took no close of it along.
    pub(super) fn used(&mut self, enter_ns: u64) {
        if self.names <= 1 && self.doubted_ns.is_some_and(|since_ns| enter_ns > since_ns) {
            self.doubted_ns = None;
        }
    }
}

impl Streams {
    /// Descriptors that name connections with open exchanges, and whose close may have been lost
    /// since they were used. At most `most` of them, in a fixed order: those behind `after` first,
    /// then from the beginning. So whoever asks again and again with the last of the answer comes
    /// to all of them.
    pub fn doubtful(&self, after: Option<Naming>, most: usize) -> Vec<Naming> {
        let is_doubtful =
            |conn: &Conn| conn.doubted_ns.is_some() && conn.track.open().next().is_some();
        // Mostly there is none, and then the descriptors, which are many, are not gone through.
        if !self.conns.values().any(is_doubtful) {
            return Vec::new();
        }
        let mut all: Vec<Naming> = self
            .names
            .conns()
            .filter(|(.., conn)| self.conns.get(conn).is_some_and(is_doubtful))
            .map(|(pid, fd, conn)| Naming { conn, pid, fd })
            .collect();
        all.sort_unstable();
        let first = all.partition_point(|naming| Some(*naming) <= after);
        all.rotate_left(first);
        all.truncate(most);
        all
    }

    /// A loss was noted that may have taken closes along: of descriptors, or of all that a process
    /// had when it ended or began a new program.
    pub(super) fn doubt(&mut self, time_ns: u64, losses: &Losses) {
        if losses.socket > 0 || losses.process > 0 || losses.recursion > 0 {
            self.conns.values_mut().for_each(|conn| conn.doubted_ns = Some(time_ns));
        }
    }

    /// A descriptor was looked at and does not name the connection any more. An answer that comes
    /// after a close that was seen after all, or after the descriptor was used again, changes
    /// nothing.
    pub(super) fn found_closed(&mut self, Naming { conn, pid, fd }: Naming, out: &mut Vec<Out>) {
        if self.names.get(pid, fd) == Some(Named::Conn(conn)) {
            self.names.unbind(pid, fd);
            self.closed_unseen(conn, out);
        }
    }

    /// A descriptor of the connection was closed, which was not seen. Where it was the last, the
    /// exchanges end with the last that was seen: what came after is not known, nor for how long.
    pub(super) fn closed_unseen(&mut self, id: u64, out: &mut Vec<Out>) {
        self.shared.counters.closes_unseen += 1;
        let last_ns = self.conns.get(&id).map_or(0, |conn| conn.last_ns);
        if self.unname(id) {
            self.end(id, last_ns, Cause::Unseen(reason::END_NOT_SEEN), out);
        }
    }
}
