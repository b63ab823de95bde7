//! Both sides of one connection.
//!
//! # Where bytes are missing
//!
//! - In a body whose length is known they are counted: its end stays exact. An end is `inferred`
//!   where it lies inside a gap, bytes of the same call behind it, or where it was told from the
//!   last chunk being visible again at the end of a call, from the next message, or from the close.
//! - A head that is cut is read as far as it goes: method, path and status where its first line is
//!   whole, but no framing, so the message ends with the next one. Without the first line it is
//!   [`Event::HeadUnknown`].
//! - Attached in the middle of a connection, a side looks for a message only where a call's bytes
//!   begin ([`crate::protocol::detect`] states the bias). A request that begins behind other bytes
//!   in one read is then missed; the next one is found.
//! - After [`Http1::lost`] the same; and a message in progress is ended by a good head at the start
//!   of a call. Without any word of a loss such a head is believed when the other side shows that
//!   the message must be over.
//!
//! Requests that were pipelined before the attach cannot be told from each other's responses: pairs
//! may then be shifted until the connection is idle once.

use super::event::{Event, Passed, Side};
use super::ledger::Ledger;
use super::reader::{Reader, Signal};
use super::segment::Segment;
use crate::protocol::detect;

/// Calls that must look like HTTP/2 frames before a connection seen from its middle counts as that.
const HTTP2_VOTES: u8 = 2;

/// Parser for one connection. Time is linear in the bytes, memory is at most two heads.
#[derive(Clone, Debug)]
pub struct Http1 {
    request: Reader,
    response: Reader,
    ledger: Ledger,
    passed: Option<Passed>,
    http2_votes: u8,
}

impl Http1 {
    /// For a connection whose first byte will be fed.
    pub fn fresh() -> Self {
        Self::new(true)
    }

    /// For a connection that is in the middle of something.
    pub fn attached() -> Self {
        Self::new(false)
    }

    fn new(fresh: bool) -> Self {
        Self {
            request: Reader::new(Side::Request, fresh),
            response: Reader::new(Side::Response, fresh),
            ledger: Ledger::default(),
            passed: None,
            http2_votes: 0,
        }
    }

    /// Takes the bytes of one call: `data`, then `missing` that were not captured.
    pub fn feed(&mut self, side: Side, data: &[u8], missing: u64, out: &mut Vec<Event>) {
        if self.passed.is_some() {
            return;
        }
        if let Some(kind) = self.recognise_foreign(side, data, missing) {
            return self.pass(kind, out);
        }
        if side == Side::Response && detect::status_start(data) == detect::Verdict::Sure {
            // What is being answered is not half a head that was found among other bytes.
            self.request.drop_found(&mut self.ledger, out);
        }
        let mut seg = Segment::new(data, missing);
        loop {
            let reader = match side {
                Side::Request => &mut self.request,
                Side::Response => &mut self.response,
            };
            match reader.step(&mut seg, &mut self.ledger, out) {
                Signal::Wait => break,
                Signal::Again => {}
                Signal::Began(_) if side == Side::Request => {
                    // Whoever asks again has got the answer before.
                    self.response.end_opaque(None, &mut self.ledger, out);
                }
                Signal::Answered(index) => {
                    self.request.end_opaque(Some(index), &mut self.ledger, out);
                }
                Signal::Began(_) => {}
                Signal::Foreign(kind) => return self.pass(kind, out),
            }
        }
        match side {
            Side::Request => self.request.flush(out),
            Side::Response => self.response.flush(out),
        }
    }

    /// The side ended: closed, shut down, or reset.
    pub fn eof(&mut self, side: Side, out: &mut Vec<Event>) {
        if self.passed.is_none() {
            match side {
                Side::Request => self.request.eof(&mut self.ledger, out),
                Side::Response => self.response.eof(&mut self.ledger, out),
            }
        }
    }

    /// Calls may have been lost on either side, nobody knows how many.
    pub fn lost(&mut self) {
        self.request.lost();
        self.response.lost();
    }

    /// Requests before `index` will not be answered any more.
    pub fn abandon(&mut self, index: u64) {
        if let Some(last) = index.checked_sub(1).filter(|last| !self.ledger.is_answered(*last)) {
            self.response.abandon(index);
            self.ledger.end_response(last);
        }
    }

    /// Why the connection is not parsed, if it is not.
    pub fn passed(&self) -> Option<Passed> {
        self.passed
    }

    /// No message has been recognised yet.
    pub fn is_blank(&self) -> bool {
        self.ledger.is_new()
    }

    /// Neither side is in a message that is known of.
    pub fn is_idle(&self) -> bool {
        self.request.is_idle() && self.response.is_idle() && !self.ledger.awaits_response()
    }

    /// Bytes of heads that are held.
    pub fn buffered(&self) -> usize {
        self.request.buffered() + self.response.buffered()
    }

    /// Gives the held bytes back: the heads are read as far as they go.
    pub fn cut_heads(&mut self, out: &mut Vec<Event>) {
        self.request.cut_head(&mut self.ledger, out);
        self.response.cut_head(&mut self.ledger, out);
    }

    fn pass(&mut self, kind: Passed, out: &mut Vec<Event>) {
        self.passed = Some(kind);
        (self.request, self.response) =
            (Reader::new(Side::Request, false), Reader::new(Side::Response, false));
        out.push(Event::Unparsed(kind));
    }

    /// In the middle of a connection on which no message was found: TLS records or HTTP/2 frames.
    fn recognise_foreign(&mut self, side: Side, data: &[u8], missing: u64) -> Option<Passed> {
        let reader = match side {
            Side::Request => &self.request,
            Side::Response => &self.response,
        };
        if !self.is_blank() || !reader.is_seeking() {
            return None;
        }
        if detect::is_tls_record(data) {
            return Some(Passed::Tls);
        }
        if detect::is_http2_frames(data, missing) {
            self.http2_votes += 1;
        }
        (self.http2_votes >= HTTP2_VOTES).then_some(Passed::Http2)
    }
}

/// Drives [`Http1`] with sides, splits, gaps, ends and losses taken from `data` itself.
pub fn fuzz(data: &[u8]) {
    let Some((mode, mut rest)) = data.split_first() else { return };
    let mut parser = if mode & 1 == 0 { Http1::fresh() } else { Http1::attached() };
    let mut out = Vec::new();
    while let Some((control, tail)) = rest.split_first() {
        let side = if control & 1 == 0 { Side::Request } else { Side::Response };
        match control >> 1 & 7 {
            0 => parser.eof(side, &mut out),
            1 => parser.lost(),
            2 => parser.abandon(u64::from(control >> 4)),
            3 => parser.cut_heads(&mut out),
            kind => {
                let (length, tail) = tail.split_first().unwrap_or((&0, &[]));
                let (part, next) =
                    tail.split_at_checked(usize::from(*length)).unwrap_or((tail, &[]));
                let missing = if kind == 4 { u64::from(control >> 4) << 4 } else { 0 };
                parser.feed(side, part, missing, &mut out);
                rest = next;
                debug_assert!(parser.buffered() <= 2 * super::head::MAX_HEAD);
                debug_assert!(out.len() <= 8 * (part.len() + 4));
                out.clear();
                continue;
            }
        }
        out.clear();
        rest = tail;
    }
}
