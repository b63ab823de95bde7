//! Listening, accepting between two stamps, and the few options of a socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::clock::{now_ns, thread_id};
use crate::wire::SocketCall;

/// A connection that was just accepted.
pub struct Accepted {
    /// Its socket.
    pub fd: OwnedFd,
    /// The client's port.
    pub peer_port: u16,
    /// The call; its result is the thread that made it.
    pub call: SocketCall,
}

/// Listens. What the listener is given, its connections inherit: `send_buffer` bytes of room for
/// what the client has not taken yet.
pub fn listen(address: SocketAddr, send_buffer: Option<u32>) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    if let Some(bytes) = send_buffer {
        set_option(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, bytes as libc::c_int)?;
    }
    Ok(listener)
}

/// Accepts a connection. `flags`: `SOCK_NONBLOCK` or 0.
pub fn accept(listener: RawFd, flags: libc::c_int) -> io::Result<Accepted> {
    // SAFETY: an address of zeros is valid.
    let mut peer: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&peer) as libc::socklen_t;
    let flags = libc::SOCK_CLOEXEC | flags;
    let before = now_ns();
    // SAFETY: the address and its length are valid for the call.
    let fd = unsafe { libc::accept4(listener, (&raw mut peer).cast(), &mut length, flags) };
    let after = now_ns();
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: accept4 returned this descriptor; nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    no_delay(fd.as_raw_fd());
    let tid = thread_id();
    let call = SocketCall { before, after, result: i64::from(tid), tid };
    Ok(Accepted { fd, peer_port: port_of(&peer), call })
}

/// Closes a socket; the call and its stamps.
pub fn close(fd: OwnedFd) -> SocketCall {
    use std::os::fd::IntoRawFd;
    let fd = fd.into_raw_fd();
    let before = now_ns();
    // SAFETY: the descriptor was ours alone and is not used again.
    let result = unsafe { libc::close(fd) };
    let after = now_ns();
    SocketCall { before, after, result: i64::from(result), tid: thread_id() }
}

/// Shuts one or both directions.
pub fn shut(fd: RawFd, how: libc::c_int) {
    // SAFETY: shutdown takes no pointers; the caller holds the descriptor open.
    unsafe { libc::shutdown(fd, how) };
}

/// Sends small writes at once.
pub fn no_delay(fd: RawFd) {
    // Not every socket is TCP; those that are not need none.
    let _ = set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

/// Sets an option whose value is an int.
pub fn set_option(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the option's value is an int that lives as long as the call.
    let set = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), length) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn port_of(address: &libc::sockaddr_storage) -> u16 {
    let address = (&raw const *address).cast::<libc::sockaddr_in>();
    // SAFETY: sockaddr_storage is large and aligned enough for sockaddr_in; the port has the same
    // place in sockaddr_in and sockaddr_in6.
    u16::from_be(unsafe { (*address).sin_port })
}
