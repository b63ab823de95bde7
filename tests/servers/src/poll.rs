//! Waiting for many descriptors (epoll), and a bell that other threads ring (an eventfd).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Wakes the thread that polls.
pub struct Bell(File);

impl Bell {
    /// A bell that nobody has rung.
    pub fn new() -> io::Result<Bell> {
        // SAFETY: eventfd takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: eventfd returned this descriptor; nobody else has it.
        Ok(Bell(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Rings: 8 bytes.
    pub fn ring(&self) {
        // It fails only when it was rung 2^64 times.
        let _ = (&self.0).write_all(&1u64.to_ne_bytes());
    }

    /// Stops it.
    pub fn hush(&self) {
        // It fails where nobody has rung.
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What a descriptor is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Bytes to read, or its end.
    Read,
    /// Room to write.
    Write,
}

/// A set of descriptors, each known by a number.
pub struct Poller(OwnedFd);

impl Poller {
    /// An empty set.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: epoll_create1 takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: epoll_create1 returned this descriptor; nobody else has it.
        Ok(Poller(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor that is told about for as long as it is readable.
    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, token)
    }

    /// Adds a descriptor that is told about once.
    pub fn add_once(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | libc::EPOLLONESHOT, token)
    }

    /// Has a descriptor told about once more. Any thread may call this.
    pub fn again(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        let events = match interest {
            Interest::Read => libc::EPOLLIN,
            Interest::Write => libc::EPOLLOUT,
        };
        self.control(libc::EPOLL_CTL_MOD, fd, events | libc::EPOLLONESHOT, token)
    }

    /// Takes a descriptor out.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, op: i32, fd: RawFd, events: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event lives as long as the call.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits and puts the numbers of what is ready into `ready`; empty after `timeout`.
    pub fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<u64>) -> io::Result<()> {
        const MOST: usize = 64;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        let timeout = timeout.map_or(-1, |left| left.as_millis().saturating_add(1) as i32);
        ready.clear();
        let count = loop {
            // SAFETY: the array has room for as many events as are said.
            let count = unsafe {
                libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), MOST as i32, timeout)
            };
            if count >= 0 {
                break count as usize;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        ready.extend(events.iter().take(count).map(|event| event.u64));
        Ok(())
    }
}
