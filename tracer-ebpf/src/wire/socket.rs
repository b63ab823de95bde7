//! Socket system calls and the TCP stack's own tracepoints.

use super::Header;
use crate::assert_size;

/// Largest number of payload bytes that one call can carry.
pub const MAX_CAPTURE: usize = 8192;

/// Which system call moved the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IoCall {
    /// `read(2)`
    Read = 1,
    /// `write(2)`
    Write = 2,
    /// `readv(2)`
    Readv = 3,
    /// `writev(2)`
    Writev = 4,
    /// `recvfrom(2)` (and `recv`)
    Recvfrom = 5,
    /// `sendto(2)` (and `send`)
    Sendto = 6,
    /// `recvmsg(2)`
    Recvmsg = 7,
    /// `sendmsg(2)`
    Sendmsg = 8,
    /// `recvmmsg(2)`
    Recvmmsg = 9,
    /// `sendmmsg(2)`
    Sendmmsg = 10,
    /// `sendfile(2)`, the socket being the output
    Sendfile = 11,
    /// `splice(2)`, the socket being the input
    SpliceIn = 12,
    /// `splice(2)`, the socket being the output
    SpliceOut = 13,
}

/// [`Io`]: the descriptor was not known when the call began. User space is expected to look it up
/// and to answer through the policy map.
pub const IO_UNKNOWN_FD: u16 = 1;
/// [`Io`]: the bytes were looked at and left in the socket (`MSG_PEEK`).
pub const IO_PEEK: u16 = 2;

/// Bytes moved by one system call. `time_ns` of the header is the call's exit. Followed by
/// `captured` bytes of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Io {
    /// Flags: `IO_*`.
    pub header: Header,
    /// When the call was entered, ns of `CLOCK_MONOTONIC`; 0 where that was before tracing began.
    pub enter_ns: u64,
    /// The connection (or other open description), unique since boot.
    pub conn_id: u64,
    /// What the call returned: bytes moved, 0 for end of file, or a negative errno.
    pub ret: i64,
    /// Bytes the caller had room for or offered; 0 where that is unknown.
    pub requested: u64,
    /// Descriptor.
    pub fd: i32,
    /// Payload bytes that follow this struct.
    pub captured: u32,
    /// One of [`IoCall`].
    pub call: u8,
    /// One of [`super::policy::Class`] as the kernel half knew it.
    pub class: u8,
    /// Zero.
    pub pad: [u8; 6],
}
assert_size!(Io, 24 + 48);

/// An Internet address and port. IPv4 is the first four bytes of `addr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct SockAddr {
    /// Address in network order.
    pub addr: [u8; 16],
    /// `AF_INET` (2), `AF_INET6` (10), `AF_UNIX` (1), or 0 where it is unknown.
    pub family: u16,
    /// Port in host order.
    pub port: u16,
    /// Zero.
    pub pad: [u8; 4],
}
assert_size!(SockAddr, 24);

/// `accept(2)` or `accept4(2)` returned a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Accept {
    /// Time: the call's exit.
    pub header: Header,
    /// When the call was entered, ns of `CLOCK_MONOTONIC`; 0 where that was before tracing began.
    pub enter_ns: u64,
    /// The new connection.
    pub conn_id: u64,
    /// Peer as the caller was told it; family 0 where the caller did not ask.
    pub peer: SockAddr,
    /// Listening descriptor.
    pub listen_fd: i32,
    /// New descriptor.
    pub fd: i32,
}
assert_size!(Accept, 24 + 48);

/// `connect(2)` returned success, `EINPROGRESS`, or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Connect {
    /// Time: the call's exit.
    pub header: Header,
    /// When the call was entered, ns of `CLOCK_MONOTONIC`; 0 where that was before tracing began.
    pub enter_ns: u64,
    /// The connection.
    pub conn_id: u64,
    /// Where to.
    pub peer: SockAddr,
    /// Descriptor.
    pub fd: i32,
    /// 0 or a negative errno.
    pub ret: i32,
}
assert_size!(Connect, 24 + 48);

/// A descriptor was closed, or replaced by `dup2`. `time_ns` is the call's **entry**: afterwards
/// the number may belong to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Close {
    /// Time: the call's entry.
    pub header: Header,
    /// The connection whose descriptor it was.
    pub conn_id: u64,
    /// Descriptor.
    pub fd: i32,
    /// Zero.
    pub pad: u32,
}
assert_size!(Close, 24 + 16);

/// A descriptor was duplicated (`dup`, `dup2`, `dup3`, `fcntl(F_DUPFD…)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Dup {
    /// Time: the call's exit.
    pub header: Header,
    /// The connection that both descriptors now name.
    pub conn_id: u64,
    /// Descriptor duplicated.
    pub old_fd: i32,
    /// New descriptor.
    pub new_fd: i32,
}
assert_size!(Dup, 24 + 16);

/// `close_range(2)` was entered without `CLOSE_RANGE_CLOEXEC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CloseRange {
    /// Time: the call's entry.
    pub header: Header,
    /// First descriptor.
    pub first: u32,
    /// Last descriptor, inclusive.
    pub last: u32,
}
assert_size!(CloseRange, 24 + 8);

/// `shutdown(2)` succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shutdown {
    /// Time: the call's exit.
    pub header: Header,
    /// The connection.
    pub conn_id: u64,
    /// Descriptor.
    pub fd: i32,
    /// `SHUT_RD` 0, `SHUT_WR` 1, `SHUT_RDWR` 2.
    pub how: u32,
}
assert_size!(Shutdown, 24 + 16);

/// `listen(2)` succeeded: user space looks up the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Listen {
    /// Time: the call's exit.
    pub header: Header,
    /// Descriptor.
    pub fd: i32,
    /// Backlog asked for.
    pub backlog: u32,
}
assert_size!(Listen, 24 + 8);

/// `getpeername(2)` or `getsockname(2)` of a connection succeeded: servers that do not have
/// `accept` tell them the peer's address ask for it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Named {
    /// Time: the call's exit.
    pub header: Header,
    /// The connection.
    pub conn_id: u64,
    /// The address of one of its ends.
    pub addr: SockAddr,
    /// Descriptor.
    pub fd: i32,
    /// 1 where it is this end's address, 0 where it is the peer's.
    pub local: u32,
}
assert_size!(Named, 24 + 40);
