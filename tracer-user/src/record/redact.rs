//! What a session file does not hold.
//!
//! Bytes are overwritten with `x`, one for one, so lengths, times and framing stay.
//!
//! **Always**: the values of header lines with the names of `SECRET_NAMES` (in any case), also where
//! a line is spread over several calls or folded. A line counts wherever it stands. After bytes of a
//! head that were not captured, everything up to the next line end goes too, since it may be the end
//! of such a value. A connection that begins with the preface of HTTP/2 is overwritten behind it,
//! both ways, since its headers are compressed; a record whose bytes cannot be decoded is
//! overwritten behind its header. Not recognised: credentials in a target's query or in bodies,
//! HTTP/2 on a connection that was open before the session, other protocols' passwords.
//!
//! **Without bodies** besides: everything that is not the head of an HTTP/1 message. Kept are chunk
//! sizes and, in event streams, line ends, field names and `data: [DONE]`. What replay then loses:
//! all that is read from bodies (models, token counts, names in JSON); messages whose first line is
//! spread over several calls; the chunks and events of a message whose head was not captured whole,
//! or from where bytes that were not captured hid a chunk's size; field names of an event stream
//! that are spread over several calls; the framing of other protocols. All bytes are still counted,
//! at the same times.

use std::collections::HashMap;

use super::{
    bodies::Bodies,
    lines::{COVER, Lines, looks_like_start},
};
use crate::intake::{
    decode::{Glance, IoSpan, glance},
    event::Direction,
};

/// Directions of connections about which something is remembered. Few are: only those that are
/// amid a head (or a body, where these are left out) when a call ends.
const CAP: usize = 65_536;
/// How HTTP/2 begins (RFC 9113, 3.4), and as much of it as is needed to know it.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HTTP2_KNOWN_BY: usize = 14;
/// Bytes of a record that hold no payload, whatever else is wrong with it.
const RECORD_HEADER: usize = size_of::<tracer_ebpf::wire::Header>();

/// What was overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedactCounts {
    /// Values of secret headers.
    pub secrets: u64,
    /// Records overwritten whole because they cannot be decoded.
    pub bad_records: u64,
    /// Times that a direction could not be remembered. From the first on, calls of directions that
    /// are not remembered are overwritten whole unless they begin a message.
    pub forgotten: u64,
}

/// What is remembered of one direction of a connection.
#[derive(Clone, Debug)]
struct Side {
    scan: Scan,
    /// A descriptor of the connection was closed, and nothing was moved since.
    closed: bool,
}

#[derive(Clone, Debug)]
enum Scan {
    Secrets(Lines),
    Bodies(Bodies),
    Http2,
}

/// Overwrites payload in records, in the order in which they come.
#[derive(Debug)]
pub struct Redactor {
    without_bodies: bool,
    sides: HashMap<(u64, Direction), Side>,
    closed: usize,
    cap: usize,
    counts: RedactCounts,
}

impl Redactor {
    /// One that overwrites secrets, and bodies where they are to be left out.
    pub fn new(without_bodies: bool) -> Self {
        Self::with_cap(without_bodies, CAP)
    }

    pub(super) fn with_cap(without_bodies: bool, cap: usize) -> Self {
        let (sides, counts) = (HashMap::new(), RedactCounts::default());
        Self { without_bodies, sides, closed: 0, cap, counts }
    }

    /// What was overwritten so far.
    pub fn counts(&self) -> RedactCounts {
        self.counts
    }

    /// Overwrites in one ring record what a session file must not hold. The record decodes to the
    /// same event, but for the payload; one that cannot be decoded still cannot.
    pub fn redact(&mut self, record: &mut [u8]) {
        match glance(record) {
            Ok(Glance::Io(span)) => {
                self.io(span, record.get_mut(span.data_at..).unwrap_or_default());
            }
            Ok(Glance::Close { conn }) => self.close(conn),
            Ok(Glance::Other) => {}
            Err(_) => {
                record.get_mut(RECORD_HEADER..).unwrap_or_default().fill(COVER);
                self.counts.bad_records += 1;
            }
        }
    }

    fn io(&mut self, span: IoSpan, data: &mut [u8]) {
        if data.is_empty() && span.missing == 0 {
            return;
        }
        let key = (span.conn, span.direction);
        let mut scan = match self.sides.get(&key) {
            Some(side) => side.scan.clone(),
            None if data.starts_with(HTTP2_PREFACE.get(..HTTP2_KNOWN_BY).unwrap_or_default()) => {
                let same = data.iter().zip(HTTP2_PREFACE).take_while(|(a, b)| a == b).count();
                data.get_mut(same..).unwrap_or_default().fill(COVER);
                if !span.peek {
                    self.remember((span.conn, Direction::In), Scan::Http2);
                    self.remember((span.conn, Direction::Out), Scan::Http2);
                }
                return;
            }
            None if self.counts.forgotten > 0 && !looks_like_start(data) => {
                data.fill(COVER);
                return;
            }
            None if self.without_bodies => Scan::Bodies(Bodies::default()),
            None => Scan::Secrets(Lines::default()),
        };
        let (found, forgettable) = scan.pass(data, span.missing);
        if span.peek {
            return;
        }
        self.counts.secrets += found;
        if forgettable {
            self.forget(key);
        } else {
            self.remember(key, scan);
        }
    }

    fn remember(&mut self, key: (u64, Direction), scan: Scan) {
        if let Some(side) = self.sides.get_mut(&key) {
            self.closed -= usize::from(side.closed);
            *side = Side { scan, closed: false };
            return;
        }
        if self.sides.len() >= self.cap && self.closed * 4 >= self.cap {
            self.sides.retain(|_, side| !side.closed);
            self.closed = 0;
        }
        if self.sides.len() >= self.cap {
            self.counts.forgotten += 1;
            return;
        }
        self.sides.insert(key, Side { scan, closed: false });
    }

    fn forget(&mut self, key: (u64, Direction)) {
        if let Some(side) = self.sides.remove(&key) {
            self.closed -= usize::from(side.closed);
        }
    }

    /// Another descriptor may still name the connection, so that what is remembered goes only when
    /// the room is needed.
    fn close(&mut self, conn: u64) {
        for direction in [Direction::In, Direction::Out] {
            if let Some(side) = self.sides.get_mut(&(conn, direction)) {
                self.closed += usize::from(!side.closed);
                side.closed = true;
            }
        }
    }
}

impl Scan {
    /// Passes over the captured bytes of a call and `missing` ones behind them. Says how many
    /// secret values began, and whether there is nothing to remember.
    fn pass(&mut self, data: &mut [u8], missing: u64) -> (u64, bool) {
        match self {
            Self::Secrets(lines) => {
                let found = lines.scan(data);
                if missing > 0 {
                    lines.gap();
                }
                (found, lines.is_forgettable())
            }
            Self::Bodies(bodies) => {
                let found = bodies.scan(data);
                if missing > 0 {
                    bodies.gap(missing);
                }
                (found, bodies.is_forgettable())
            }
            Self::Http2 => {
                data.fill(COVER);
                (0, false)
            }
        }
    }
}
