//! What a connection's exchanges are told along with its bytes.

use std::net::SocketAddr;

use super::arrival::{Arrivals, Read};
use super::exchange::{Role, Stamp};
use super::limits::{Counters, Limits};
use crate::protocol::http1::Side;

/// What all connections share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Caps.
    pub limits: Limits,
    /// What happened beside the exchanges.
    pub counters: Counters,
    /// Exchanges begun.
    pub next_id: u64,
    /// Exchanges open.
    pub open: usize,
    /// Bytes of unfinished heads held.
    pub head_bytes: usize,
}

/// What is known of a connection when one of its calls is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Connection.
    pub conn: u64,
    /// Process of the call.
    pub pid: u32,
    /// What it is.
    pub role: Role,
    /// This end.
    pub local: Option<SocketAddr>,
    /// The other end.
    pub peer: Option<SocketAddr>,
    /// End of the handshake, ns.
    pub established_ns: Option<u64>,
    /// Exit of `accept`, ns.
    pub accepted_ns: Option<u64>,
    /// Round-trip time, ns.
    pub rtt_ns: Option<u64>,
    /// Segments sent again so far.
    pub retransmits: u32,
}

/// One call that moved bytes.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its times and thread.
    pub stamp: Stamp,
    /// What it moved.
    pub side: Side,
    /// Captured bytes.
    pub data: &'a [u8],
    /// Bytes not captured.
    pub missing: u64,
    /// It overlapped another thread's.
    pub overlapped: bool,
    /// When its bytes reached the socket.
    pub arrivals: Option<(&'a Arrivals, Read)>,
}

/// Why everything open ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The other end went away.
    Peer,
    /// This end closed, or its process ended.
    Own,
    /// The connection is let go; how the requests end will not be seen.
    Unseen(&'static str),
}
