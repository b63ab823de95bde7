//! What the TCP stack itself says of the targets' connections.

use super::{Header, socket::SockAddr};
use crate::assert_size;

/// A segment with data reached an established socket (`tcp:tcp_probe`). The current task is
/// arbitrary, so the header's ids are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Arrival {
    /// Time: the segment's arrival at the socket.
    pub header: Header,
    /// This host's end.
    pub local: SockAddr,
    /// The other end.
    pub peer: SockAddr,
    /// Payload bytes of the segment.
    pub data_len: u32,
    /// Smoothed round-trip time, µs.
    pub srtt_us: u32,
}
assert_size!(Arrival, 24 + 56);

/// A TCP socket of a traced port changed state (`sock:inet_sock_set_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TcpState {
    /// Time: the change.
    pub header: Header,
    /// This host's end.
    pub local: SockAddr,
    /// The other end.
    pub peer: SockAddr,
    /// State before (`TCP_*` of the kernel's `tcp_states.h`).
    pub old_state: u32,
    /// State after.
    pub new_state: u32,
}
assert_size!(TcpState, 24 + 56);

/// A segment was sent again (`tcp:tcp_retransmit_skb`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Retransmit {
    /// Time: the retransmission.
    pub header: Header,
    /// This host's end.
    pub local: SockAddr,
    /// The other end.
    pub peer: SockAddr,
}
assert_size!(Retransmit, 24 + 48);

/// `TCP_ESTABLISHED` of the kernel's `tcp_states.h`.
pub const TCP_ESTABLISHED: u32 = 1;
/// `TCP_SYN_RECV`.
pub const TCP_SYN_RECV: u32 = 3;
/// `TCP_CLOSE`.
pub const TCP_CLOSE: u32 = 7;
/// `TCP_LISTEN`.
pub const TCP_LISTEN: u32 = 10;
