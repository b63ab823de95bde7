//! The connections that are open, so that a server can end them.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::queue::lock;
use crate::socket::shut;

/// How long requests in flight have to end after the signal.
pub const GRACE: Duration = Duration::from_secs(10);

/// Numbers of connections and of their descriptors.
#[derive(Default)]
pub struct Live {
    all: Mutex<HashMap<u64, RawFd>>,
    ended: Condvar,
}

impl Live {
    /// A connection begins.
    pub fn begin(&self, conn: u64, fd: RawFd) {
        lock(&self.all).insert(conn, fd);
    }

    /// Its descriptor is about to be closed: the number must not outlive it.
    pub fn closing(&self, conn: u64) {
        lock(&self.all).insert(conn, -1);
    }

    /// It has ended.
    pub fn end(&self, conn: u64) {
        lock(&self.all).remove(&conn);
        self.ended.notify_all();
    }

    /// Ends every connection once its request in flight is answered; returns how many did not end.
    pub fn drain(&self) -> usize {
        let deadline = Instant::now() + GRACE;
        let mut live = lock(&self.all);
        for &fd in live.values() {
            shut(fd, libc::SHUT_RD);
        }
        while !live.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let (guard, _) =
                self.ended.wait_timeout(live, left).unwrap_or_else(PoisonError::into_inner);
            live = guard;
        }
        live.len()
    }
}
