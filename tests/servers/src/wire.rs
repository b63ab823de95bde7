//! One connection: its buffer, and its socket calls with a stamp right before and right after.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::clock::{now_ns, thread_id};

/// Which system calls carry the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Io {
    /// `recv` and `send`.
    Recv,
    /// `read` and `write`.
    Read,
    /// `readv` and `writev`, two segments each.
    Readv,
    /// `recvmsg` and `sendmsg`, two segments each.
    Recvmsg,
}

impl Io {
    /// The name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Io::Recv => "recv",
            Io::Read => "read",
            Io::Readv => "readv",
            Io::Recvmsg => "recvmsg",
        }
    }
}

/// One socket call: stamps on both sides and what it returned (`-errno` for an error).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketCall {
    /// Right before the call.
    pub before: u64,
    /// Right after it.
    pub after: u64,
    /// Bytes moved, or the error's number, negated.
    pub result: i64,
    /// The thread that made it.
    pub tid: i32,
}

/// The size of the first segment of a scattered read: small, so that heads are cut.
const FIRST_SEGMENT: usize = 48;

/// Room for received bytes; a head must fit.
const BUFFER: usize = 64 * 1024;

/// A read and the place of its bytes in the connection's stream.
struct PlacedRead {
    call: SocketCall,
    start: u64,
}

/// A connection.
pub struct Wire {
    /// Until it is closed.
    fd: Option<OwnedFd>,
    io: Io,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    consumed: u64,
    received: u64,
    reads: Vec<PlacedRead>,
}

fn segments(first: &[u8], second: &[u8]) -> [libc::iovec; 2] {
    [first, second]
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
}

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a message header of zeros is valid: no name, no control data, no segments.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = parts.as_mut_ptr();
    header.msg_iovlen = parts.len() as _;
    header
}

/// Makes one call between two stamps. `call` is a single system call and nothing else.
#[inline(always)]
fn stamped(call: impl FnOnce() -> isize) -> SocketCall {
    let before = now_ns();
    let result = call();
    let after = now_ns();
    let result = match result {
        -1 => -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        bytes => bytes as i64,
    };
    SocketCall { before, after, result, tid: thread_id() }
}

impl Wire {
    /// Takes over a connected socket.
    pub fn new(fd: OwnedFd, io: Io) -> Wire {
        Wire {
            fd: Some(fd),
            io,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            consumed: 0,
            received: 0,
            reads: Vec::with_capacity(256),
        }
    }

    /// The descriptor's number.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, OwnedFd::as_raw_fd)
    }

    /// Gives the socket back, to be closed; the wire must not be used any more.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// Bytes received and not yet consumed.
    pub fn data(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Whether no more bytes fit before some are consumed.
    pub fn full(&self) -> bool {
        self.end - self.start == self.buffer.len()
    }

    /// The place in the stream of the next byte to be consumed.
    pub fn position(&self) -> u64 {
        self.consumed
    }

    /// Drops `count` bytes from the front.
    pub fn consume(&mut self, count: usize) {
        let count = count.min(self.end - self.start);
        self.start += count;
        self.consumed += count as u64;
    }

    /// Makes one receiving call. Returns its stamps; 0 bytes is the end of the stream.
    pub fn fill(&mut self) -> io::Result<SocketCall> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let fd = self.raw_fd();
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let split = FIRST_SEGMENT.min(room.len());
        let (first, second) = room.split_at_mut(split);
        let mut parts = segments(first, second);
        let mut header = message(&mut parts);
        let (at, len) = (room.as_mut_ptr(), room.len());
        let call = match self.io {
            // SAFETY: `at` and `len` are the free part of our buffer.
            Io::Recv => stamped(|| unsafe { libc::recv(fd, at.cast(), len, 0) }),
            // SAFETY: as above.
            Io::Read => stamped(|| unsafe { libc::read(fd, at.cast(), len) }),
            // SAFETY: both segments lie in the free part of our buffer.
            Io::Readv => stamped(|| unsafe { libc::readv(fd, parts.as_ptr(), 2) }),
            // SAFETY: as above, named by a header that lives as long as the call.
            Io::Recvmsg => stamped(|| unsafe { libc::recvmsg(fd, &mut header, 0) }),
        };
        self.reads.push(PlacedRead { call, start: self.received });
        match usize::try_from(call.result) {
            Ok(bytes) => {
                self.end += bytes;
                self.received += bytes as u64;
                Ok(call)
            }
            Err(_) => Err(io::Error::from_raw_os_error((-call.result) as i32)),
        }
    }

    /// Copies to `out` the reads that brought bytes of the stream from `from` up to here, and
    /// forgets those of which every byte is consumed.
    pub fn take_reads(&mut self, from: u64, out: &mut Vec<SocketCall>) {
        let upto = self.consumed;
        let finish = |read: &PlacedRead| read.start + u64::try_from(read.call.result).unwrap_or(0);
        out.extend(
            self.reads
                .iter()
                .filter(|read| read.start < upto && finish(read) > from)
                .map(|read| read.call),
        );
        self.reads.retain(|read| finish(read) > upto || read.call.result <= 0);
    }

    /// Copies to `out` the reads of which some byte was never consumed, the failed and the empty.
    pub fn take_rest(&mut self, out: &mut Vec<SocketCall>) {
        out.extend(self.reads.drain(..).map(|read| read.call));
    }

    /// Sends `head` and then `body`, in as few calls as the chosen kind allows.
    ///
    /// `joined` is scratch space: the kinds that take one buffer are given one.
    pub fn send(
        &mut self,
        head: &[u8],
        body: &[u8],
        joined: &mut Vec<u8>,
        calls: &mut Vec<SocketCall>,
    ) -> io::Result<()> {
        let one_buffer = matches!(self.io, Io::Recv | Io::Read);
        let (mut head, mut body) = if one_buffer && !body.is_empty() && !head.is_empty() {
            joined.clear();
            joined.extend_from_slice(head);
            joined.extend_from_slice(body);
            (joined.as_slice(), &[][..])
        } else if head.is_empty() {
            (body, &[][..])
        } else {
            (head, body)
        };
        while !head.is_empty() {
            let sent = self.send_once(head, body, calls)?;
            let from_head = sent.min(head.len());
            head = head.get(from_head..).unwrap_or_default();
            body = body.get(sent - from_head..).unwrap_or_default();
            if head.is_empty() {
                (head, body) = (body, &[][..]);
            }
        }
        Ok(())
    }

    /// Makes one sending call, which may move fewer bytes than there are; returns how many. The
    /// kinds that take one buffer send of `head` only, which must not be empty.
    pub fn send_once(
        &mut self,
        head: &[u8],
        body: &[u8],
        calls: &mut Vec<SocketCall>,
    ) -> io::Result<usize> {
        let fd = self.raw_fd();
        let mut parts = segments(head, body);
        let count = if body.is_empty() { 1 } else { 2 };
        let mut header = message(parts.get_mut(..count).unwrap_or_default());
        header.msg_iovlen = count as _;
        let (at, len) = (head.as_ptr(), head.len());
        let quiet = libc::MSG_NOSIGNAL;
        let call = match self.io {
            // SAFETY: `at` and `len` are a slice that lives as long as the call.
            Io::Recv => stamped(|| unsafe { libc::send(fd, at.cast(), len, quiet) }),
            // SAFETY: as above.
            Io::Read => stamped(|| unsafe { libc::write(fd, at.cast(), len) }),
            // SAFETY: the segments are slices that live as long as the call.
            Io::Readv => stamped(|| unsafe { libc::writev(fd, parts.as_ptr(), count as i32) }),
            // SAFETY: as above, named by a header that lives as long as the call.
            Io::Recvmsg => stamped(|| unsafe { libc::sendmsg(fd, &header, quiet) }),
        };
        calls.push(call);
        usize::try_from(call.result)
            .map_err(|_| io::Error::from_raw_os_error((-call.result) as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_pass_whole_by_every_kind_of_call() {
        for io in [Io::Recv, Io::Read, Io::Readv, Io::Recvmsg] {
            let (left, right) = UnixStream::pair().unwrap();
            let (mut left, mut right) = (Wire::new(left.into(), io), Wire::new(right.into(), io));
            let head: Vec<u8> = (0..100u8).collect();
            let body: Vec<u8> = (100..200u8).collect();
            let (mut joined, mut calls) = (Vec::new(), Vec::new());
            left.send(&head, &body, &mut joined, &mut calls).unwrap();
            assert_eq!(calls.iter().map(|call| call.result).sum::<i64>(), 200);
            while right.data().len() < 200 {
                let call = right.fill().unwrap();
                assert!(call.after >= call.before);
            }
            assert_eq!(right.data(), (0..200u8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_read_belongs_to_every_request_it_brought_bytes_of() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut left, mut right) =
            (Wire::new(left.into(), Io::Recv), Wire::new(right.into(), Io::Recv));
        let (mut joined, mut calls) = (Vec::new(), Vec::new());
        left.send(b"aaab", b"", &mut joined, &mut calls).unwrap();
        right.fill().unwrap();
        right.consume(3);
        let mut first = Vec::new();
        right.take_reads(0, &mut first);
        left.send(b"bb", b"", &mut joined, &mut calls).unwrap();
        right.fill().unwrap();
        right.consume(3);
        let mut second = Vec::new();
        right.take_reads(3, &mut second);
        assert_eq!(first.len(), 1);
        assert_eq!(second.len(), 2);
        assert_eq!(first.first(), second.first());
        drop(left);
        assert_eq!(right.fill().unwrap().result, 0);
        let mut rest = Vec::new();
        right.take_rest(&mut rest);
        assert_eq!(rest.len(), 1);
    }
}
