//! Looks whether descriptors still name what they did, where their close may have been lost.
//!
//! The kernel half forgets a descriptor when it is closed, and gives another identity to whatever is
//! opened under its number, whether or not the ring has room for the word of it. What it was called
//! for but did not see (it was skipped, or could not remember the thread), `/proc` tells.

use std::io::{self, ErrorKind};

use super::{Worker, process};
use crate::{
    discover::object::{Object, object},
    intake::event::{Naming, ProcFact},
};

/// Descriptors that are looked at in one go: a map look-up and a link of `/proc` each.
pub const MAX_DOUBTS: usize = 256;

impl Worker {
    /// Tells which of these have been closed, of at most [`MAX_DOUBTS`] of them. The time of the
    /// answer is taken after the look, so that a close that was not lost comes before it.
    pub(super) fn check(&self, doubts: &[Naming]) {
        if self.rest.resting {
            return; // what was known of descriptors has been forgotten
        }
        // Of processes that are gone that is told, and with it of all their descriptors.
        let traced = |doubt: &&Naming| self.targets.contains_key(&doubt.pid);
        for doubt in doubts.iter().take(MAX_DOUBTS).filter(traced) {
            let Naming { conn, pid, fd } = *doubt;
            let known = self.with.door.lookup(pid, fd).map(|(id, _)| id);
            let found = object(pid, fd);
            let ended = || process::first_thread_ended(pid);
            if is_closed(conn, known, &found, ended) {
                self.fact(ProcFact::Closed(*doubt));
            }
        }
    }
}

/// Whether a descriptor that named `conn` has been closed: from what the kernel half calls it now,
/// what `/proc` finds there, and whether that says nothing because the process's first thread has
/// ended. Where nobody knows it is not.
fn is_closed(
    conn: u64,
    known: Option<u64>,
    found: &io::Result<Object>,
    ended: impl FnOnce() -> bool,
) -> bool {
    match (known, found) {
        // Something else was opened under its number.
        (Some(id), _) if id != conn => true,
        (_, Err(error)) => error.kind() == ErrorKind::NotFound && !ended(),
        // A socket of which the kernel half knows nothing may be this one: the map of descriptors
        // may have been full, or a forked child has not been looked at yet.
        (_, Ok(Object::Socket(_))) => false,
        (_, Ok(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, net::TcpListener, os::fd::AsRawFd};

    use super::*;

    const CONN: u64 = 7;

    fn mine(descriptor: &impl AsRawFd) -> io::Result<Object> {
        object(std::process::id(), descriptor.as_raw_fd())
    }

    fn closed(known: Option<u64>, found: &io::Result<Object>) -> bool {
        is_closed(CONN, known, found, || false)
    }

    #[test]
    fn what_is_still_there_stays() {
        let found = mine(&TcpListener::bind("127.0.0.1:0").unwrap());
        assert!(!closed(Some(CONN), &found));
        assert!(!closed(None, &found), "nobody knows");
    }

    #[test]
    fn what_is_gone_is_closed() {
        let found = object(std::process::id(), i32::MAX);
        assert!(closed(None, &found));
        assert!(closed(Some(CONN), &found), "the kernel half has not seen it");
    }

    #[test]
    fn a_number_that_names_something_else_is_closed() {
        let socket = mine(&TcpListener::bind("127.0.0.1:0").unwrap());
        assert!(closed(Some(CONN + 1), &socket));
        let file = mine(&File::open("/dev/null").unwrap());
        assert!(closed(None, &file) && closed(Some(CONN), &file));
    }

    #[test]
    fn where_nothing_can_be_read_nothing_is_said() {
        let refused = Err(ErrorKind::PermissionDenied.into());
        assert!(!closed(Some(CONN), &refused) && !closed(None, &refused));
        let nothing = Err(ErrorKind::NotFound.into());
        assert!(!is_closed(CONN, Some(CONN), &nothing, || true), "the first thread has ended");
    }
}
