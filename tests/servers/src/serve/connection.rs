//! A connection from accept to close: its parts, its loop over requests, its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clock::thread_id;
use crate::oracle::{Kind, Record};
use crate::socket::{Accepted, close, shut};
use crate::wire::{SocketCall, Wire};
use crate::work::Worker;

use super::Server;
use super::request::Next;

pub(super) struct Connection<'a> {
    pub(super) server: &'a Server,
    pub(super) wire: Wire,
    conn: u64,
    peer_port: u16,
    tid: i32,
    accept: SocketCall,
    pub(super) seq: u64,
    pub(super) worker: Worker,
    pub(super) head: String,
    pub(super) joined: Vec<u8>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(server: &'a Server, accepted: Accepted, conn: u64) -> Connection<'a> {
        Connection {
            server,
            wire: Wire::new(accepted.fd, server.options.io),
            conn,
            peer_port: accepted.peer_port,
            tid: thread_id(),
            accept: accepted.call,
            seq: 0,
            worker: Worker::new(Arc::clone(&server.shared)),
            head: String::with_capacity(512),
            joined: Vec::with_capacity(8192),
        }
    }

    pub(super) fn record(&self, kind: Kind) -> Box<Record> {
        let mut record = self.server.shared.oracle.record();
        record.kind = kind;
        record.conn = self.conn;
        record.peer_port = self.peer_port;
        record.fd = self.wire.raw_fd();
        record.seq = self.seq;
        record.tid = self.tid;
        record
    }

    pub(super) fn serve(mut self) {
        if !self.server.options.warm.steps.is_empty() {
            let mut record = self.record(Kind::Warm);
            let warm = self.server.options.warm.clone();
            if let Err(why) = self.worker.carry_out(&warm, &mut record) {
                eprintln!("connection {}: warm-up: {why}", self.conn);
            }
            self.server.shared.oracle.submit(record);
        }
        let why = loop {
            if let Next::End(why) = self.request() {
                break why;
            }
            if self.server.stopping.load(Ordering::SeqCst) {
                break "stopping";
            }
        };
        self.end(why);
    }

    fn end(mut self, why: &'static str) {
        let mut record = self.record(Kind::Connection);
        record.why = why;
        record.accept.push(self.accept);
        if why == "refused" {
            self.drain();
        }
        self.wire.take_rest(&mut record.read);
        self.worker.close(&mut record.cuda);
        self.server.live.closing(self.conn);
        record.close.extend(self.wire.take_fd().map(close));
        self.server.shared.oracle.submit(record);
    }

    /// After a refusal: lets the client read it before the close, which would reset a connection
    /// with unread bytes.
    fn drain(&mut self) {
        let fd = self.wire.raw_fd();
        shut(fd, libc::SHUT_WR);
        let limit = libc::timeval { tv_sec: 1, tv_usec: 0 };
        // SAFETY: the option's value is a timeval that lives as long as the call.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const limit).cast(),
                size_of_val(&limit) as libc::socklen_t,
            )
        };
        for _ in 0..64 {
            self.wire.consume(usize::MAX);
            match self.wire.fill() {
                Ok(call) if call.result > 0 => {}
                _ => break,
            }
        }
    }
}
