//! A request as its bytes come in: a head, then a body, however the reads cut them.

use crate::hash::Fnv;
use crate::http::{Chunks, Framing, Piece, Request, head_length, parse_request, query_value};
use crate::oracle::Record;
use crate::wire::{SocketCall, Wire};

/// What the bytes so far are.
#[derive(Debug)]
pub enum Progress {
    /// More must be read.
    More,
    /// The client waits for `100 Continue` before it sends its body.
    Expects,
    /// A whole request, and the hash of its body.
    Whole(Request, Fnv),
    /// No request: the status and the reason to answer with, after which the connection ends.
    Refused(u16, &'static str),
}

struct Body {
    request: Request,
    hash: Fnv,
    left: u64,
    chunks: Option<Chunks>,
}

/// A request that is being received.
#[derive(Default)]
pub struct Incoming {
    from: u64,
    body: Option<Body>,
}

impl Incoming {
    /// Takes what the wire has of the request. Its method, path, id and the size of its body go
    /// into the record; once it is whole or refused, its reads too.
    pub fn advance(&mut self, wire: &mut Wire, record: &mut Record) -> Progress {
        let mut progress = match self.body {
            Some(_) => Progress::More,
            None => self.head(wire, record),
        };
        if matches!(progress, Progress::More) && self.body.is_some() {
            progress = self.body(wire, record);
        }
        if matches!(progress, Progress::Whole(..) | Progress::Refused(..)) {
            wire.take_reads(self.from, &mut record.read);
        }
        progress
    }

    /// The connection ended or failed within the request: why it ends, and whether there is a
    /// request to be recorded.
    pub fn cut(
        &self,
        last: Option<SocketCall>,
        wire: &mut Wire,
        record: &mut Record,
    ) -> (&'static str, bool) {
        if self.body.is_some() {
            wire.take_reads(self.from, &mut record.read);
            return ("cut in a body", true);
        }
        match last {
            Some(_) if wire.data().is_empty() => ("eof", false),
            Some(_) => ("eof in a head", false),
            None => ("error", false),
        }
    }

    fn head(&mut self, wire: &mut Wire, record: &mut Record) -> Progress {
        while wire.data().starts_with(b"\r\n") {
            wire.consume(2);
        }
        let Some(length) = head_length(wire.data()) else {
            if !wire.full() {
                return Progress::More;
            }
            self.from = wire.position();
            wire.consume(usize::MAX);
            return Progress::Refused(431, "the head is too long");
        };
        self.from = wire.position();
        let parsed = parse_request(wire.data().get(..length).unwrap_or_default());
        wire.consume(length);
        let request = match parsed {
            Ok(request) => request,
            Err(bad) => return Progress::Refused(400, bad.0),
        };
        record.method.push_str(&request.method);
        record.path.push_str(&request.path);
        if let Some(rid) = query_value(&request.query, "rid").or(request.request_id.clone()) {
            record.rid.push_str(&rid);
        }
        let left = match request.framing {
            Framing::Length(length) => length,
            _ => 0,
        };
        let chunks = (request.framing == Framing::Chunked).then(Chunks::default);
        let expects = request.expect_continue && wire.data().is_empty();
        self.body = Some(Body { request, hash: Fnv::default(), left, chunks });
        if expects { Progress::Expects } else { Progress::More }
    }

    fn body(&mut self, wire: &mut Wire, record: &mut Record) -> Progress {
        let Some(body) = &mut self.body else {
            return Progress::More;
        };
        let data = wire.data();
        let used = match &mut body.chunks {
            Some(chunks) => {
                let (bytes, hash) = (&mut record.request_bytes, &mut body.hash);
                let fed = chunks.feed(data, |piece| {
                    if let Piece::Data(data) = piece {
                        hash.update(data);
                        *bytes += data.len() as u64;
                    }
                });
                match fed {
                    Ok(used) => used,
                    Err(bad) => return Progress::Refused(400, bad.0),
                }
            }
            None => {
                let take = usize::try_from(body.left).unwrap_or(usize::MAX).min(data.len());
                body.hash.update(data.get(..take).unwrap_or_default());
                body.left -= take as u64;
                record.request_bytes += take as u64;
                take
            }
        };
        wire.consume(used);
        if !body.chunks.as_ref().map_or(body.left == 0, Chunks::done) {
            return Progress::More;
        }
        match self.body.take() {
            Some(body) => Progress::Whole(body.request, body.hash),
            None => Progress::More,
        }
    }
}
