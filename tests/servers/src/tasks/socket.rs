//! A socket that tasks wait for: the runtime says when it is ready, the calls are stamped.

use std::io;
use std::os::fd::RawFd;

use tokio::io::unix::AsyncFd;

use crate::socket;
use crate::wire::{SocketCall, Wire};

pub(super) struct Socket {
    /// What the runtime watches; given up before the descriptor is closed.
    ready: Option<AsyncFd<RawFd>>,
    pub(super) wire: Wire,
}

fn closed() -> io::Error {
    io::Error::from(io::ErrorKind::NotConnected)
}

impl Socket {
    pub(super) fn new(wire: Wire) -> io::Result<Socket> {
        // SAFETY: the wire keeps the descriptor open; `close` and the order of the fields see to it
        // that the runtime gives it up first.
        let ready = unsafe { AsyncFd::register(wire.raw_fd())? };
        Ok(Socket { ready: Some(ready), wire })
    }

    /// One receiving call that brings bytes, the end, or an error.
    pub(super) async fn fill(&mut self) -> io::Result<SocketCall> {
        let ready = self.ready.as_ref().ok_or_else(closed)?;
        loop {
            let mut guard = ready.readable().await?;
            let Ok(filled) = guard.try_io(|_| self.wire.fill()) else {
                continue;
            };
            // As tokio's own streams do: a read that leaves room has taken all there is.
            if filled.as_ref().is_ok_and(|call| call.result > 0) && !self.wire.full() {
                guard.clear_ready();
            }
            return filled;
        }
    }

    /// Sends all of `bytes`.
    pub(super) async fn send(
        &mut self,
        bytes: &[u8],
        calls: &mut Vec<SocketCall>,
    ) -> io::Result<()> {
        let ready = self.ready.as_ref().ok_or_else(closed)?;
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let mut guard = ready.writable().await?;
            if let Ok(result) = guard.try_io(|_| self.wire.send_once(rest, b"", calls)) {
                sent += result?;
            }
        }
        Ok(())
    }

    /// Closes it.
    pub(super) fn close(&mut self) -> Option<SocketCall> {
        self.ready = None;
        self.wire.take_fd().map(socket::close)
    }
}
