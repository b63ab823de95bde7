//! Server-sent events: counts the events in a response body, which may have gaps.
//!
//! Source: WHATWG HTML, section 9.2 (`text/event-stream`). An event ends at a blank line; one
//! without a `data` field is never dispatched, so blocks of comments (`: ping`) are not counted.
//! A line ends with LF, CRLF or CR.
//!
//! # Gaps
//!
//! Servers write whole events. So a gap, which always ends a call's bytes, is taken to hold the end
//! of the event it began in: that event counts at once, as *inferred*. Where the next bytes do not
//! begin like a field, the guess was early, and the event's real end is not counted again. Events
//! that lie wholly inside a gap are not seen: with gaps the count is a lower bound.

use memchr::memchr2;

/// Events that ended in the bytes of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Events with data, inferred ones included; `[DONE]` is not among them.
    pub events: u32,
    /// Those of them whose end lay in a gap.
    pub inferred: u32,
    /// `data: [DONE]`, the end mark of OpenAI's streams.
    pub done: u32,
}

/// Bytes of a line that are kept: enough for `data: [DONE]` and to tell that it is longer.
const KEPT: usize = 13;

/// Where the reader stands in one stream.
#[derive(Clone, Debug, Default)]
pub struct Sse {
    /// The line's first bytes.
    line: [u8; KEPT],
    /// Length of the line so far, bytes.
    length: u64,
    /// The last byte was CR: LF belongs to it.
    after_cr: bool,
    /// Past the first line's beginning, where a byte order mark may stand.
    begun: bool,
    /// `data` fields of the event so far.
    data_fields: u32,
    /// The event's only data so far is `[DONE]`.
    done: bool,
    /// The event has been counted when a gap swallowed its end.
    counted: bool,
    /// The last thing seen was a gap.
    after_gap: bool,
}

impl Sse {
    /// Takes the next body bytes, followed by `missing` that were not captured.
    pub fn feed(&mut self, data: &[u8], missing: u64) -> Ended {
        let mut ended = Ended::default();
        if self.after_gap && !data.is_empty() {
            self.resume(data);
        }
        let mut rest = data;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some((line, end, next)) = memchr2(b'\r', b'\n', rest).and_then(|at| {
            let (line, tail) = rest.split_at_checked(at)?;
            let (end, next) = tail.split_first()?;
            Some((line, *end, next))
        }) {
            self.extend(line);
            self.end_line(&mut ended);
            rest = match (end, next.first()) {
                (b'\r', Some(b'\n')) => next.get(1..).unwrap_or_default(),
                (b'\r', None) => {
                    self.after_cr = true;
                    next
                }
                _ => next,
            };
        }
        self.extend(rest);
        if missing > 0 {
            self.gap(data.is_empty(), &mut ended);
        }
        ended
    }

    /// Adds to the line, whose end is not there yet.
    fn extend(&mut self, part: &[u8]) {
        let at = usize::try_from(self.length).unwrap_or(KEPT).min(KEPT);
        for (slot, byte) in self.line.iter_mut().skip(at).zip(part) {
            *slot = *byte;
        }
        self.length = self.length.saturating_add(part.len() as u64);
    }

    /// The line's kept bytes, without a byte order mark where it is the stream's first.
    fn kept(&self) -> &[u8] {
        let length = usize::try_from(self.length).unwrap_or(KEPT).min(KEPT);
        let line = self.line.get(..length).unwrap_or_default();
        if self.begun { line } else { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) }
    }

    fn end_line(&mut self, ended: &mut Ended) {
        let line = self.kept();
        if line.is_empty() {
            self.end_event(ended);
        } else if line == b"data" || line.starts_with(b"data:") {
            let value = line.get(5..).unwrap_or_default();
            let is_done = value.strip_prefix(b" ").unwrap_or(value) == b"[DONE]";
            self.done = is_done && self.data_fields == 0;
            self.data_fields = self.data_fields.saturating_add(1);
        }
        self.length = 0;
        self.begun = true;
    }

    fn end_event(&mut self, ended: &mut Ended) {
        if self.data_fields > 0 && !self.counted {
            if self.done {
                ended.done = ended.done.saturating_add(1);
            } else {
                ended.events = ended.events.saturating_add(1);
            }
        }
        self.start_event();
    }

    fn start_event(&mut self) {
        self.data_fields = 0;
        self.done = false;
        self.counted = false;
    }

    /// A gap: the event that it began in counts now. `blind`: nothing before it was captured.
    fn gap(&mut self, blind: bool, ended: &mut Ended) {
        if blind || !self.counted {
            ended.events = ended.events.saturating_add(1);
            ended.inferred = ended.inferred.saturating_add(1);
        }
        self.start_event();
        self.counted = true;
        self.after_gap = true;
        self.after_cr = false;
        self.begun = true;
        self.length = 0;
    }

    /// The first bytes after a gap: a new event, or the rest of the one already counted.
    fn resume(&mut self, data: &[u8]) {
        const FIELDS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
        self.after_gap = false;
        if FIELDS.iter().any(|field| data.starts_with(field)) {
            self.start_event();
        } else {
            // Somewhere in a line of it: not a blank one.
            self.length = KEPT as u64 + 1;
        }
    }
}

/// Drives [`Sse::feed`] with splits and gaps taken from `data` itself.
pub fn fuzz(data: &[u8]) {
    let mut sse = Sse::default();
    let mut rest = data;
    while let Some((control, tail)) = rest.split_first() {
        let length = usize::from(*control & 0x3f).min(tail.len());
        let (part, next) = tail.split_at_checked(length).unwrap_or((tail, &[]));
        let missing = if control & 0x80 == 0 { 0 } else { u64::from(*control) };
        let ended = sse.feed(part, missing);
        debug_assert!(u64::from(ended.events) <= part.len() as u64 + 1);
        debug_assert!(ended.inferred <= ended.events);
        rest = next;
    }
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
