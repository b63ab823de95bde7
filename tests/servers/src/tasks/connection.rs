//! A connection's task: its requests, one after the other, and its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clock::thread_id;
use crate::job::Job;
use crate::oracle::{Kind, Record};
use crate::receive::{Incoming, Progress};
use crate::socket::{Accepted, shut};
use crate::wire::{SocketCall, Wire};

use super::socket::Socket;
use super::{Server, blocking};

/// The name in the header `Server`.
const NAME: &str = "fixture-tokio";

pub(super) struct Connection {
    server: Arc<Server>,
    socket: Socket,
    conn: u64,
    peer_port: u16,
    accept: SocketCall,
    seq: u64,
}

impl Connection {
    pub(super) fn new(
        server: Arc<Server>,
        accepted: Accepted,
        conn: u64,
    ) -> io::Result<Connection> {
        let socket = Socket::new(Wire::new(accepted.fd, server.options.io))?;
        let (peer_port, accept) = (accepted.peer_port, accepted.call);
        Ok(Connection { server, socket, conn, peer_port, accept, seq: 0 })
    }

    fn record(&self, kind: Kind) -> Box<Record> {
        let mut record = self.server.shared.oracle.record();
        record.kind = kind;
        record.conn = self.conn;
        record.peer_port = self.peer_port;
        record.fd = self.socket.wire.raw_fd();
        record.seq = self.seq;
        record.tid = thread_id();
        record
    }

    fn stopping(&self) -> bool {
        self.server.stopping.load(Ordering::SeqCst)
    }

    pub(super) async fn serve(mut self) {
        let why = loop {
            if let Some(why) = self.request().await {
                break why;
            }
            if self.stopping() {
                break "stopping";
            }
        };
        if why == "refused" {
            self.drain().await;
        }
        let mut record = self.record(Kind::Connection);
        record.why = why;
        record.accept.push(self.accept);
        self.socket.wire.take_rest(&mut record.read);
        self.server.live.closing(self.conn);
        record.close.extend(self.socket.close());
        self.server.shared.oracle.submit(record);
        self.server.live.end(self.conn);
    }

    /// Receives a request and has it answered; why the connection ends, if it does.
    async fn request(&mut self) -> Option<&'static str> {
        let mut record = self.record(Kind::Request);
        let mut incoming = Incoming::default();
        let job = loop {
            match incoming.advance(&mut self.socket.wire, &mut record) {
                Progress::More => match self.socket.fill().await {
                    Ok(call) if call.result > 0 => {}
                    last => return Some(self.cut(&incoming, last.ok(), record)),
                },
                Progress::Expects => {
                    let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
                    if self.socket.send(interim, &mut record.interim).await.is_err() {
                        return Some(self.cut(&incoming, None, record));
                    }
                }
                Progress::Refused(status, why) => break Job::refused(status, why, NAME, record),
                Progress::Whole(request, hash) => {
                    break Job::request(request, hash, NAME, record, self.stopping());
                }
            }
        };
        self.answer(job).await
    }

    async fn answer(&mut self, mut job: Job) -> Option<&'static str> {
        let sent = loop {
            job = match blocking::perform(&self.server.shared, job).await {
                Ok(job) => job,
                // The blocking thread died with the job and its record.
                Err(_) => return Some("error"),
            };
            let out = std::mem::take(&mut job.out);
            let sent = self.socket.send(&out, &mut job.record.write).await;
            if sent.is_err() || job.done() {
                break sent;
            }
        };
        let (keep, refused) = (job.keep, job.refused);
        self.submit(job.record);
        match sent {
            Err(_) => Some("error"),
            Ok(()) if refused => Some("refused"),
            Ok(()) => (!keep).then_some("close"),
        }
    }

    fn cut(
        &mut self,
        incoming: &Incoming,
        last: Option<SocketCall>,
        mut record: Box<Record>,
    ) -> &'static str {
        let (why, begun) = incoming.cut(last, &mut self.socket.wire, &mut record);
        if begun {
            record.tid = thread_id();
            record.loop_tid = record.tid;
            self.submit(record);
        }
        why
    }

    fn submit(&mut self, record: Box<Record>) {
        self.seq += 1;
        self.server.shared.oracle.submit(record);
    }

    /// After a refusal: lets the client read it before the close, which would reset a connection
    /// with unread bytes.
    async fn drain(&mut self) {
        shut(self.socket.wire.raw_fd(), libc::SHUT_WR);
        for _ in 0..64 {
            self.socket.wire.consume(usize::MAX);
            match self.socket.fill().await {
                Ok(call) if call.result > 0 => {}
                _ => break,
            }
        }
    }
}
