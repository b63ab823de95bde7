//! A connection from accept to close: its parts, its loop over requests, its end.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::clock::{now_ns, thread_id};
use crate::gpu::Gpu;
use crate::oracle::{Kind, Record};
use crate::wire::{SocketCall, Wire};

use super::request::Next;
use super::{Server, lock, shut};

pub(super) struct Connection<'a> {
    pub(super) server: &'a Server,
    pub(super) wire: Wire,
    conn: u64,
    peer_port: u16,
    tid: i32,
    accept: SocketCall,
    pub(super) seq: u64,
    pub(super) gpu: Option<Gpu>,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    pub(super) joined: Vec<u8>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        server: &'a Server,
        fd: OwnedFd,
        conn: u64,
        peer_port: u16,
        accept: SocketCall,
    ) -> Connection<'a> {
        Connection {
            server,
            wire: Wire::new(fd, server.config.io),
            conn,
            peer_port,
            tid: thread_id(),
            accept,
            seq: 0,
            gpu: None,
            head: String::with_capacity(512),
            body: Vec::with_capacity(4096),
            joined: Vec::with_capacity(8192),
        }
    }

    pub(super) fn record(&self, kind: Kind) -> Box<Record> {
        let mut record = self.server.oracle.record();
        record.kind = kind;
        record.conn = self.conn;
        record.peer_port = self.peer_port;
        record.fd = self.wire.raw_fd();
        record.seq = self.seq;
        record.tid = self.tid;
        record
    }

    pub(super) fn serve(mut self) {
        if !self.server.config.warm.steps.is_empty() {
            let mut record = self.record(Kind::Warm);
            let warm = self.server.config.warm.clone();
            if let Err(why) = self.carry_out(&warm, &mut record) {
                eprintln!("connection {}: warm-up: {why}", self.conn);
            }
            self.server.oracle.submit(record);
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
        if let Some(gpu) = self.gpu.take() {
            gpu.close(&mut record.cuda);
        }
        // The map holds the descriptor's number: it must not outlive the descriptor.
        lock(&self.server.live).insert(self.conn, -1);
        let fd = self.wire.into_fd().into_raw_fd();
        let before = now_ns();
        // SAFETY: the descriptor was ours alone and is not used again.
        let result = unsafe { libc::close(fd) };
        let after = now_ns();
        record.close.push(SocketCall { before, after, result: i64::from(result) });
        self.server.oracle.submit(record);
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
