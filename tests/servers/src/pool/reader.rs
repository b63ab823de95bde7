//! The thread that accepts and reads every connection and hands whole requests over; with
//! [`Style::Loop`] it also writes the answers.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::job::Job;
use crate::live::GRACE;
use crate::poll::Interest;
use crate::queue::lock;
use crate::receive::{Incoming, Progress};
use crate::ring::Ring;
use crate::socket::{accept, shut};
use crate::wire::SocketCall;

use super::connection::{Connection, Slot};
use super::{Common, Handed, Returned, Style};

/// Reads of what a refused client still sends.
const DRAINS: u32 = 64;

/// The listener's number in the poller; those of connections are below.
pub(super) const LISTENER: u64 = u64::MAX;
/// That of the bell.
pub(super) const BELL: u64 = u64::MAX - 1;

impl Common {
    pub(super) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Has the reader see to something.
    pub(super) fn give_back(&self, returned: Returned) {
        lock(&self.returned).push(returned);
        self.bell.ring();
    }
}

pub(super) struct Reader<'a> {
    common: &'a Common,
    listener: Option<TcpListener>,
    table: HashMap<u64, Arc<Slot>>,
    next: u64,
    ring: Option<Ring>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(common: &'a Common, listener: TcpListener) -> Reader<'a> {
        let (listener, ring) = (Some(listener), common.config.ring);
        Reader { common, listener, table: HashMap::new(), next: 0, ring }
    }

    /// Runs until the signal came and every connection has ended; how many did not in time.
    pub(super) fn run(mut self) -> io::Result<usize> {
        let mut deadline: Option<Instant> = None;
        let mut ready = Vec::new();
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if deadline.is_some() && (self.table.is_empty() || left.is_some_and(|l| l.is_zero())) {
                return Ok(self.table.len());
            }
            self.common.poller.wait(left, &mut ready)?;
            for &token in &ready {
                match token {
                    LISTENER => self.accept()?,
                    BELL => {
                        self.common.bell.hush();
                        if deadline.is_none() && self.common.stopping() {
                            deadline = Some(Instant::now() + GRACE);
                            self.stop();
                        }
                        let returned = std::mem::take(&mut *lock(&self.common.returned));
                        for returned in returned {
                            self.look_after(returned);
                        }
                    }
                    id => {
                        if let Some(slot) = self.table.get(&id).map(Arc::clone) {
                            self.ready(&slot);
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        // A worker's write may wait for a slow client; the loop's must not.
        let flags = match self.common.config.style {
            Style::Pool | Style::Staged => 0,
            Style::Loop | Style::Spin => libc::SOCK_NONBLOCK,
        };
        let accepted = match accept(listener.as_raw_fd(), flags) {
            Ok(accepted) => accepted,
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ECONNABORTED | libc::EAGAIN) => return Ok(()),
                _ => return Err(error),
            },
        };
        let (id, fd) = (self.next, accepted.fd.as_raw_fd());
        self.next += 1;
        let connection = Connection::new(id, accepted, self.common.config.options.io);
        self.common.poller.add_once(fd, id)?;
        self.table.insert(id, Arc::new(Slot { id, fd, connection: Mutex::new(connection) }));
        Ok(())
    }

    /// Accepts no more; connections whose request is with a worker end with its answer, the others
    /// when they have given what had come.
    fn stop(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = self.common.poller.remove(listener.as_raw_fd());
        }
        for slot in self.table.values() {
            shut(slot.fd, libc::SHUT_RD);
        }
    }

    /// One read, or the next write.
    fn ready(&mut self, slot: &Arc<Slot>) {
        let mut connection = lock(&slot.connection);
        if let Some((job, sent)) = connection.answering.take() {
            return self.write(slot, connection, job, sent);
        }
        match connection.wire.fill() {
            Ok(call) if call.result > 0 && connection.drains > 1 => {
                connection.drains -= 1;
                connection.wire.consume(usize::MAX);
                self.again(slot, connection, Interest::Read);
            }
            Ok(_) | Err(_) if connection.drains > 0 => self.end(slot, connection, "refused"),
            Ok(call) if call.result > 0 => self.advance(slot, connection),
            Ok(call) => self.cut(slot, connection, Some(call)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.again(slot, connection, Interest::Read);
            }
            Err(_) => self.cut(slot, connection, None),
        }
    }

    /// Sees to what a worker gave back.
    fn look_after(&mut self, returned: Returned) {
        match returned {
            Returned::Job(Handed { slot, job }) => {
                let connection = lock(&slot.connection);
                self.write(&slot, connection, job, 0);
            }
            Returned::Connection(slot) => {
                let connection = lock(&slot.connection);
                self.next(&slot, connection);
            }
        }
    }

    /// Takes what has come of a request; hands it over when it is whole.
    fn advance(&mut self, slot: &Arc<Slot>, mut connection: MutexGuard<'_, Connection>) {
        let name = self.common.config.name;
        let mut record = connection.take_record(&self.common.shared.oracle);
        let this = &mut *connection;
        let job = match this.incoming.advance(&mut this.wire, &mut record) {
            Progress::More => {
                this.record = Some(record);
                return self.again(slot, connection, Interest::Read);
            }
            Progress::Expects => {
                let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
                let sent = this.wire.send_once(interim, b"", &mut record.interim);
                this.record = Some(record);
                return match sent {
                    Ok(_) => self.again(slot, connection, Interest::Read),
                    Err(_) => self.cut(slot, connection, None),
                };
            }
            Progress::Whole(request, hash) => {
                Job::request(request, hash, name, record, self.common.stopping())
            }
            Progress::Refused(status, why) => Job::refused(status, why, name, record),
        };
        connection.incoming = Incoming::default();
        self.hand(slot, connection, job);
    }

    /// Puts a request into the queue. The connection is let go of first: a worker wants it.
    fn hand(&mut self, slot: &Arc<Slot>, connection: MutexGuard<'_, Connection>, mut job: Job) {
        if let Some(ring) = &mut self.ring {
            job.perform_elsewhere(|plan, record| ring.ask(plan, record));
            return self.write(slot, connection, job, 0);
        }
        drop(connection);
        job.hand();
        // The queue is closed after this thread has ended.
        self.common.queue.push(Handed { slot: Arc::clone(slot), job });
    }

    /// Writes an answer as far as the socket takes it, and asks for the rest of it.
    fn write(
        &mut self,
        slot: &Arc<Slot>,
        mut connection: MutexGuard<'_, Connection>,
        mut job: Job,
        mut sent: usize,
    ) {
        match connection.write(&mut job, &mut sent) {
            Ok(false) => {
                connection.answering = Some((job, sent));
                self.again(slot, connection, Interest::Write);
            }
            Ok(true) if !job.done() => self.hand(slot, connection, job),
            sent => {
                let sent = sent.map(|_| ());
                connection.answered(job, sent, &self.common.shared.oracle);
                self.next(slot, connection);
            }
        }
    }

    /// A request is answered: what the connection does next.
    fn next(&mut self, slot: &Arc<Slot>, mut connection: MutexGuard<'_, Connection>) {
        match connection.ending {
            Some("refused") => {
                connection.drains = DRAINS;
                connection.wire.consume(usize::MAX);
                shut(slot.fd, libc::SHUT_WR);
                self.again(slot, connection, Interest::Read);
            }
            Some(why) => self.end(slot, connection, why),
            None if !connection.idle() => self.advance(slot, connection),
            None if self.common.stopping() => self.end(slot, connection, "stopping"),
            None => self.again(slot, connection, Interest::Read),
        }
    }

    fn again(&mut self, slot: &Slot, connection: MutexGuard<'_, Connection>, interest: Interest) {
        if self.common.poller.again(slot.fd, slot.id, interest).is_err() {
            self.end(slot, connection, "error");
        }
    }

    /// The client went away, or the connection failed, while nothing was being answered.
    fn cut(
        &mut self,
        slot: &Slot,
        mut connection: MutexGuard<'_, Connection>,
        last: Option<SocketCall>,
    ) {
        let oracle = &self.common.shared.oracle;
        let mut record = connection.take_record(oracle);
        let this = &mut *connection;
        let (why, begun) = this.incoming.cut(last, &mut this.wire, &mut record);
        if begun {
            connection.record_cut(record, oracle);
        }
        self.end(slot, connection, why);
    }

    fn end(&mut self, slot: &Slot, mut connection: MutexGuard<'_, Connection>, why: &'static str) {
        self.table.remove(&slot.id);
        connection.end(why, &self.common.shared.oracle);
    }
}
