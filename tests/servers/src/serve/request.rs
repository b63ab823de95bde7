//! One request: receives its head and body, has it answered, hands its record in.

use crate::hash::Fnv;
use crate::http::{Chunks, Framing, Piece, Request, head_length, parse_request, query_value};
use crate::oracle::{Kind, Record, json_string};

use super::connection::Connection;

/// What became of one request.
pub(super) enum Next {
    /// The connection goes on.
    GoOn,
    /// It ends, for this reason.
    End(&'static str),
}

/// A body that was not received.
enum Cut {
    Io,
    Bad(&'static str),
}

impl Connection<'_> {
    /// Waits for a whole head. `None`: the connection ended, for the reason given.
    fn receive_head(&mut self) -> Result<usize, &'static str> {
        loop {
            while self.wire.data().starts_with(b"\r\n") {
                self.wire.consume(2);
            }
            if let Some(length) = head_length(self.wire.data()) {
                return Ok(length);
            }
            if self.wire.full() {
                return Err("head too long");
            }
            match self.wire.fill() {
                Ok(call) if call.result > 0 => {}
                Ok(_) if self.wire.data().is_empty() => return Err("eof"),
                Ok(_) => return Err("eof in a head"),
                Err(_) => return Err("error"),
            }
        }
    }

    pub(super) fn request(&mut self) -> Next {
        let length = match self.receive_head() {
            Ok(length) => length,
            Err("head too long") => {
                let mut record = self.record(Kind::Request);
                let from = self.wire.position();
                self.wire.consume(usize::MAX);
                self.wire.take_reads(from, &mut record.read);
                return self.refuse(431, "the head is too long", record);
            }
            Err(why) => return Next::End(why),
        };
        let from = self.wire.position();
        let parsed = parse_request(self.wire.data().get(..length).unwrap_or_default());
        self.wire.consume(length);
        let mut record = self.record(Kind::Request);
        let request = match parsed {
            Ok(request) => request,
            Err(bad) => {
                self.wire.take_reads(from, &mut record.read);
                return self.refuse(400, bad.0, record);
            }
        };
        record.method.push_str(&request.method);
        record.path.push_str(&request.path);
        if let Some(rid) = query_value(&request.query, "rid").or(request.request_id.clone()) {
            record.rid.push_str(&rid);
        }
        let body = self.receive_body(&request, &mut record);
        self.wire.take_reads(from, &mut record.read);
        let hash = match body {
            Ok(hash) => hash,
            Err(Cut::Io) => {
                self.seq += 1;
                self.server.oracle.submit(record);
                return Next::End("cut in a body");
            }
            Err(Cut::Bad(why)) => return self.refuse(400, why, record),
        };
        let sent = self.answer(&request, hash, &mut record);
        self.seq += 1;
        self.server.oracle.submit(record);
        match sent {
            Err(_) => Next::End("error"),
            Ok(false) => Next::End("close"),
            Ok(true) => Next::GoOn,
        }
    }

    fn refuse(&mut self, status: u16, why: &str, mut record: Box<Record>) -> Next {
        self.body.clear();
        self.body.extend_from_slice(format!("{{\"error\":{}}}\n", json_string(why)).as_bytes());
        // A client that is gone already is no matter here.
        let _ = self.reply(status, "application/json", false, false, &mut record);
        self.seq += 1;
        self.server.oracle.submit(record);
        Next::End("refused")
    }

    /// Receives the body and returns its hash.
    fn receive_body(&mut self, request: &Request, record: &mut Record) -> Result<Fnv, Cut> {
        if request.expect_continue && self.wire.data().is_empty() {
            self.wire
                .send(b"HTTP/1.1 100 Continue\r\n\r\n", b"", &mut self.joined, &mut record.interim)
                .map_err(|_| Cut::Io)?;
        }
        let mut hash = Fnv::default();
        let mut left = match request.framing {
            Framing::Length(length) => length,
            _ => 0,
        };
        let mut chunks = (request.framing == Framing::Chunked).then(Chunks::default);
        loop {
            let data = self.wire.data();
            let used = match &mut chunks {
                Some(chunks) => {
                    let bytes = &mut record.request_bytes;
                    let fed = chunks.feed(data, |piece| {
                        if let Piece::Data(data) = piece {
                            hash.update(data);
                            *bytes += data.len() as u64;
                        }
                    });
                    fed.map_err(|bad| Cut::Bad(bad.0))?
                }
                None => {
                    let take = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
                    hash.update(data.get(..take).unwrap_or_default());
                    left -= take as u64;
                    record.request_bytes += take as u64;
                    take
                }
            };
            self.wire.consume(used);
            if chunks.as_ref().map_or(left == 0, Chunks::done) {
                return Ok(hash);
            }
            match self.wire.fill() {
                Ok(call) if call.result > 0 => {}
                _ => return Err(Cut::Io),
            }
        }
    }
}
