//! Calls that move bytes.

use super::arrival::{Arrivals, Read};
use super::conn::{Conn, Family, side_of};
use super::context::{Call, Cause};
use super::exchange::{Out, Role};
use super::streams::Streams;
use super::tuples::{TupleId, Tuples};
use crate::intake::event::{Direction, Event, Io};
use crate::protocol::http1::Passed;

/// Errors after which a connection is gone: `EPIPE`, `ECONNABORTED`, `ECONNRESET`, `ETIMEDOUT`,
/// `EHOSTUNREACH`.
const GONE: [i64; 5] = [-32, -103, -104, -110, -113];
/// `EPIPE`
const EPIPE: i64 = -32;
/// `EAGAIN`
const EAGAIN: i64 = -11;

impl Streams {
    pub(super) fn on_io(&mut self, event: &Event, io: &Io, out: &mut Vec<Out>) {
        // Mostly the connection is known, and by this name.
        if !self.names.names(event.pid, io.fd, io.conn) || !self.conns.contains_key(&io.conn) {
            let stale = self.names.is_stale(event.pid, io.fd, io.conn, io.enter_ns);
            if !self.conns.contains_key(&io.conn) {
                if io.ret <= 0 || stale {
                    return;
                }
                self.shared.counters.unintroduced += 1;
                let family = Family::Unidentified;
                self.introduce(io.conn, event.pid, event.time_ns, family, false, out);
            }
            if !stale {
                self.name(event.pid, io.fd, io.conn, event.time_ns, out);
            }
        }
        if self.conns.get(&io.conn).is_some_and(|conn| conn.tuple.is_none()) {
            self.claim(io.conn);
        }
        let Some(conn) = self.conns.get_mut(&io.conn) else { return };
        (conn.pid, conn.last_ns) = (event.pid, event.time_ns);
        conn.used(io.enter_ns);
        match (io.direction, io.ret) {
            _ if io.peek => {}
            (_, 1..) => self.on_bytes(event, io, out),
            (Direction::In, 0) => self.on_end_of_file(event, io, out),
            (Direction::In, EAGAIN) => {
                if let Some(tuple) = conn.tuple {
                    self.tuples.with_arrivals(tuple, |queue| queue.drain(io.enter_ns));
                }
            }
            (_, error) if GONE.contains(&error) => self.on_gone(event, io, out),
            _ => {}
        }
    }

    fn on_bytes(&mut self, event: &Event, io: &Io, out: &mut Vec<Out>) {
        let Some(conn) = self.conns.get_mut(&io.conn) else { return };
        let bytes = u64::try_from(io.ret).unwrap_or(0);
        conn.count(io.direction, bytes);
        let stamp = Self::stamp(event, io.enter_ns);
        let lane = match io.direction {
            Direction::In => &mut conn.reads,
            Direction::Out => &mut conn.writes,
        };
        let overlapped = lane.pass(stamp);
        self.shared.counters.overlapping_calls += u64::from(overlapped);
        if conn.is_passed() {
            return;
        }
        conn.role = conn.role.or_else(|| Conn::guess_role(io.direction, &io.data));
        let Some(role) = conn.role else { return };
        let read = match (role, io.direction) {
            (Role::Server, Direction::In) => {
                Some(Read { bytes, enter_ns: io.enter_ns, drained: bytes < io.requested })
            }
            _ => None,
        };
        let tuple = conn.tuple;
        let idle_since = conn.track.idle_since();
        let rtt_ns = tuple.and_then(|id| self.tuples.get_mut(id)).and_then(|t| t.rtt_ns());
        let queue = read.and(tuple).and_then(|id| queue_for(&mut self.tuples, id, idle_since));
        let call = Call {
            stamp,
            side: side_of(role, io.direction),
            data: &io.data,
            missing: io.missing(),
            overlapped,
            arrivals: queue.zip(read),
        };
        let ctx = conn.context(role, rtt_ns);
        conn.track.feed(&call, &ctx, &mut self.shared, out);
        if let (Some(id), Some(read)) = (tuple, read) {
            self.tuples.with_arrivals(id, |queue| queue.take(read));
        }
        if let Some(passed) = conn.track.passed() {
            if passed == Passed::Tunnel {
                (conn.bytes_in, conn.bytes_out, conn.first_ns) = (0, 0, event.time_ns);
            }
            if let Some(id) = tuple {
                self.tuples.mute(id);
            }
        }
    }

    /// The other end sends no more. A response may still be on its way to it.
    fn on_end_of_file(&mut self, event: &Event, io: &Io, out: &mut Vec<Out>) {
        let Some(conn) = self.conns.get_mut(&io.conn) else { return };
        conn.peer_closed = true;
        let Some(role) = conn.role.filter(|_| !conn.is_passed()) else { return };
        let ctx = conn.context(role, None);
        let end = (event.time_ns, Cause::Peer);
        match role {
            Role::Server => {
                conn.track.eof(side_of(role, Direction::In), end, &ctx, &mut self.shared, out);
            }
            Role::Client => {
                let end = (event.time_ns, Cause::Peer, true);
                conn.track.finish_all(end, &ctx, &mut self.shared, out);
            }
        }
    }

    /// The connection is dead: reset by the other end, or written to after this end had shut it.
    fn on_gone(&mut self, event: &Event, io: &Io, out: &mut Vec<Out>) {
        let Some(conn) = self.conns.get_mut(&io.conn) else { return };
        let own = io.ret == EPIPE && conn.shut && !conn.peer_closed;
        let cause = if own { Cause::Own } else { Cause::Peer };
        conn.peer_closed |= !own;
        if let Some(role) = conn.role.filter(|_| !conn.is_passed()) {
            let ctx = conn.context(role, None);
            conn.track.finish_all((event.time_ns, cause, false), &ctx, &mut self.shared, out);
        }
    }
}

/// The arrivals of a connection that is about to be read, without those that belong to answered
/// requests.
fn queue_for(tuples: &mut Tuples, id: TupleId, idle_since: Option<u64>) -> Option<&Arrivals> {
    if let Some(time_ns) = idle_since {
        tuples.with_arrivals(id, |queue| queue.drop_until(time_ns));
    }
    tuples.get_mut(id)?.arrivals().map(|queue| &*queue)
}
