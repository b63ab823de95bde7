//! One connection: who it is between, and what its calls move.

use std::net::SocketAddr;

use super::context::Context;
use super::exchange::{Flow, FlowKind, Role, Stamp};
use super::track::Track;
use super::tuples::TupleId;
use crate::intake::event::Direction;
use crate::protocol::detect::{self, Trust, Verdict};
use crate::protocol::http1::{Passed, Side};

/// What kind of open description the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Only its calls were seen so far: it may be anything.
    Unidentified,
    /// TCP, or taken for it.
    Tcp,
    /// A Unix socket: not parsed.
    Unix,
}

/// The last calls of one direction, for telling whether calls of several threads overlap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane {
    /// Thread and exit (ns) of the call that ended last, and of the last one of another thread.
    recent: [(u32, u64); 2],
}

impl Lane {
    /// A call that moved bytes. Calls come in the order of their exits. Says whether it overlapped
    /// a call of another thread.
    pub fn pass(&mut self, stamp: Stamp) -> bool {
        let overlaps =
            self.recent.iter().any(|(tid, exit)| *tid != stamp.tid && *exit > stamp.enter_ns);
        let [last, other] = self.recent;
        let second = if last.0 == stamp.tid { other } else { last };
        self.recent = [(stamp.tid, stamp.exit_ns), second];
        overlaps
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Conn {
    pub(super) id: u64,
    /// Process of the last event.
    pub(super) pid: u32,
    pub(super) family: Family,
    pub(super) role: Option<Role>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// Where its listener can be looked up while `local` is not known.
    pub(super) listener: Option<(u32, i32)>,
    pub(super) tuple: Option<TupleId>,
    pub(super) established_ns: Option<u64>,
    pub(super) accepted_ns: Option<u64>,
    pub(super) retransmits: u32,
    /// Descriptors that name it.
    pub(super) names: u32,
    pub(super) track: Track,
    pub(super) reads: Lane,
    pub(super) writes: Lane,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// The other end sends no more.
    pub(super) peer_closed: bool,
    /// This end sends no more.
    pub(super) shut: bool,
    /// A descriptor of it was closed.
    pub(super) closed: bool,
    /// The TCP stack has closed it on both sides.
    pub(super) tcp_closed: bool,
    /// When the loss was noted that may have taken a close of it along, ns.
    pub(super) doubted_ns: Option<u64>,
}

impl Conn {
    /// A connection that is first heard of at `time_ns`.
    pub(super) fn new(id: u64, pid: u32, time_ns: u64, family: Family, fresh: bool) -> Self {
        Self {
            id,
            pid,
            family,
            role: None,
            local: None,
            peer: None,
            listener: None,
            tuple: None,
            established_ns: None,
            accepted_ns: None,
            retransmits: 0,
            names: 0,
            track: Track::new(fresh),
            reads: Lane::default(),
            writes: Lane::default(),
            bytes_in: 0,
            bytes_out: 0,
            first_ns: time_ns,
            last_ns: time_ns,
            peer_closed: false,
            shut: false,
            closed: false,
            tcp_closed: false,
            doubted_ns: None,
        }
    }

    pub(super) fn context(&self, role: Role, rtt_ns: Option<u64>) -> Context {
        Context {
            conn: self.id,
            pid: self.pid,
            role,
            local: self.local,
            peer: self.peer,
            established_ns: self.established_ns,
            accepted_ns: self.accepted_ns,
            rtt_ns,
            retransmits: self.retransmits,
        }
    }

    /// Nothing more of it is parsed.
    pub(super) fn is_passed(&self) -> bool {
        self.family == Family::Unix || self.track.passed().is_some()
    }

    /// The role that bytes prove: only a request's first line is proof enough.
    pub(super) fn guess_role(direction: Direction, data: &[u8]) -> Option<Role> {
        let role = match direction {
            Direction::In => Role::Server,
            Direction::Out => Role::Client,
        };
        (detect::request_start(data, Trust::Found) == Verdict::Sure).then_some(role)
    }

    pub(super) fn count(&mut self, direction: Direction, bytes: u64) {
        let sum = match direction {
            Direction::In => &mut self.bytes_in,
            Direction::Out => &mut self.bytes_out,
        };
        *sum = sum.saturating_add(bytes);
    }

    /// It as a flow, where it is one: not parsed, or nothing was ever recognised in its bytes.
    pub(super) fn flow(&self, open: bool) -> Option<Flow> {
        let kind = match (self.family, self.track.passed()) {
            (Family::Unix, _) => FlowKind::Unix,
            (_, Some(Passed::Tls)) => FlowKind::Tls,
            (_, Some(Passed::Http2)) => FlowKind::Http2,
            (_, Some(Passed::Tunnel)) => FlowKind::Tunnel,
            (_, Some(Passed::Unknown)) => FlowKind::Unknown,
            (Family::Tcp, None) if self.track.is_blank() => FlowKind::Unknown,
            _ => return None,
        };
        (self.bytes_in > 0 || self.bytes_out > 0).then_some(Flow {
            conn: self.id,
            pid: self.pid,
            kind,
            role: self.role,
            local: self.local,
            peer: self.peer,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            open,
        })
    }
}

/// The half of an exchange that a direction carries.
pub(super) fn side_of(role: Role, direction: Direction) -> Side {
    match (role, direction) {
        (Role::Server, Direction::In) | (Role::Client, Direction::Out) => Side::Request,
        (Role::Server, Direction::Out) | (Role::Client, Direction::In) => Side::Response,
    }
}
