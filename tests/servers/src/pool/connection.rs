//! A connection: the reader has it while it receives, whoever writes has it while it is answered.

use std::io;
use std::os::fd::RawFd;
use std::sync::Mutex;

use crate::clock::thread_id;
use crate::job::Job;
use crate::oracle::{Kind, Oracle, Record};
use crate::receive::Incoming;
use crate::socket::{self, Accepted};
use crate::wire::{Io, SocketCall, Wire};

/// A connection that threads hand to each other; never two of them want it at once.
pub(super) struct Slot {
    pub(super) id: u64,
    /// Valid for as long as the connection is in the reader's table.
    pub(super) fd: RawFd,
    pub(super) connection: Mutex<Connection>,
}

pub(super) struct Connection {
    pub(super) wire: Wire,
    id: u64,
    peer_port: u16,
    accept: SocketCall,
    seq: u64,
    pub(super) incoming: Incoming,
    /// Of the request that is being received.
    pub(super) record: Option<Box<Record>>,
    /// The answer that is being written, and how much of it is out.
    pub(super) answering: Option<(Job, usize)>,
    /// Why it is to end.
    pub(super) ending: Option<&'static str>,
    /// Reads that are still made of what nobody wants, before a refused connection is closed: the
    /// close would otherwise reset it, and the client might never see why.
    pub(super) drains: u32,
}

impl Connection {
    pub(super) fn new(id: u64, accepted: Accepted, io: Io) -> Connection {
        Connection {
            wire: Wire::new(accepted.fd, io),
            id,
            peer_port: accepted.peer_port,
            accept: accepted.call,
            seq: 0,
            incoming: Incoming::default(),
            record: None,
            answering: None,
            ending: None,
            drains: 0,
        }
    }

    fn new_record(&self, oracle: &Oracle, kind: Kind) -> Box<Record> {
        let mut record = oracle.record();
        record.kind = kind;
        record.conn = self.id;
        record.peer_port = self.peer_port;
        record.fd = self.wire.raw_fd();
        record.seq = self.seq;
        record
    }

    /// The record of the request that is being received.
    pub(super) fn take_record(&mut self, oracle: &Oracle) -> Box<Record> {
        self.record.take().unwrap_or_else(|| self.new_record(oracle, Kind::Request))
    }

    /// Whether it just waits for the next request.
    pub(super) fn idle(&self) -> bool {
        self.ending.is_none() && self.wire.data().is_empty()
    }

    /// Writes what it can of an answer; whether all of it is out.
    pub(super) fn write(&mut self, job: &mut Job, sent: &mut usize) -> io::Result<bool> {
        while let Some(rest) = job.out.get(*sent..).filter(|rest| !rest.is_empty()) {
            match self.wire.send_once(rest, b"", &mut job.record.write) {
                Ok(bytes) => *sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        job.out.clear();
        Ok(true)
    }

    /// The answer is out, or cannot be: its record goes to the oracle.
    pub(super) fn answered(&mut self, job: Job, sent: io::Result<()>, oracle: &Oracle) {
        self.ending = match (sent, job.keep, job.refused) {
            (Err(_), ..) => Some("error"),
            (Ok(()), _, true) => Some("refused"),
            (Ok(()), false, _) => Some("close"),
            (Ok(()), true, _) => None,
        };
        self.seq += 1;
        oracle.submit(job.record);
    }

    /// Closes the socket and records the connection's end.
    pub(super) fn end(&mut self, why: &'static str, oracle: &Oracle) {
        let mut record = self.new_record(oracle, Kind::Connection);
        record.tid = thread_id();
        record.why = why;
        record.accept.push(self.accept);
        self.wire.take_rest(&mut record.read);
        record.close.extend(self.wire.take_fd().map(socket::close));
        oracle.submit(record);
    }

    /// A request of which not all came: recorded without an answer.
    pub(super) fn record_cut(&mut self, mut record: Box<Record>, oracle: &Oracle) {
        record.tid = thread_id();
        record.loop_tid = record.tid;
        self.seq += 1;
        oracle.submit(record);
    }
}
