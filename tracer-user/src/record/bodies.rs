//! Overwrites the bodies of HTTP/1 in one direction of a connection, and whatever is not HTTP/1.
//!
//! Kept are heads (less secret values), the sizes of chunks, the line ends between them, and in an
//! event stream the line ends, the names of fields and the line `data: [DONE]`: with them, replay
//! finds the same messages, chunks and events at the same times.

use std::ops::ControlFlow;

use super::lines::{COVER, Lines, cover_line};

/// Bytes of a header line that are looked at.
const LINE_CAP: usize = 96;
/// Digits of a chunk's size.
const MAX_SIZE_DIGITS: u8 = 15;
/// Fields of an event stream.
const FIELDS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];

/// Where in the message the next byte lies.
#[derive(Clone, Debug, Default)]
enum Place {
    /// Nowhere known: everything is overwritten until a call begins with a start line.
    #[default]
    Lost,
    /// Between messages: a start line is expected.
    Between,
    /// In a head.
    Head(Head),
    /// In a body, this many bytes before its end.
    Length(u64),
    /// In a body that ends with the connection.
    UntilClose,
    /// In a line with a chunk's size.
    Size { size: u64, digits: u8, extension: bool },
    /// In a chunk, this many bytes before its end.
    Data(u64),
    /// At the line end after a chunk.
    DataEnd,
    /// In a line of the trailers; `empty` while nothing but CR has come.
    Trailer { empty: bool },
}

/// What a head says about its body.
#[derive(Clone, Debug, Default)]
struct Head {
    secrets: Lines,
    /// The line so far, lower case, up to [`LINE_CAP`] bytes.
    line: Vec<u8>,
    first_line_done: bool,
    response: bool,
    status: u16,
    length: Option<u64>,
    chunked: bool,
    event_stream: bool,
}

/// One direction of a connection. Bytes go in as they were moved, call by call.
#[derive(Clone, Debug, Default)]
pub(super) struct Bodies {
    place: Place,
    event_stream: bool,
    /// The next byte of the body begins a line.
    at_line_start: bool,
}

impl Bodies {
    /// Whether a fresh one would treat what follows alike.
    pub fn is_forgettable(&self) -> bool {
        matches!(self.place, Place::Lost | Place::Between)
    }

    /// Overwrites what is not to be kept of the bytes of one call, and says how many secret values
    /// begin in it.
    pub fn scan(&mut self, bytes: &mut [u8]) -> u64 {
        let mut found = 0;
        if !matches!(self.place, Place::Head(_)) && is_start_line(bytes) {
            self.place = Place::Head(Head::default());
        }
        if matches!(self.place, Place::Lost) && is_tls(bytes) {
            bytes.get_mut(5..).unwrap_or_default().fill(COVER);
            return 0;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let used = self.part(rest, &mut found).min(rest.len());
            rest = rest.get_mut(used..).unwrap_or_default();
        }
        found
    }

    /// `missing` bytes were moved that were not captured.
    pub fn gap(&mut self, missing: u64) {
        self.at_line_start = false;
        self.place = match std::mem::take(&mut self.place) {
            Place::Length(left) if missing == left => Place::Between,
            Place::Length(left) if missing < left => Place::Length(left - missing),
            Place::Data(left) if missing == left => Place::DataEnd,
            Place::Data(left) if missing < left => Place::Data(left - missing),
            Place::UntilClose => Place::UntilClose,
            _ => Place::Lost,
        };
    }

    /// Handles the first bytes of `rest`, at most up to where the place changes, and says how many
    /// those were. Where it handles none the place has changed.
    fn part(&mut self, rest: &mut [u8], found: &mut u64) -> usize {
        match std::mem::take(&mut self.place) {
            Place::Lost => {
                rest.fill(COVER);
                rest.len()
            }
            Place::Between => {
                if is_start_line(rest) {
                    self.place = Place::Head(Head::default());
                }
                0
            }
            Place::Head(mut head) => {
                let line = memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
                let part = rest.get_mut(..line).unwrap_or_default();
                match head.part(part, found) {
                    ControlFlow::Continue(()) => self.place = Place::Head(head),
                    ControlFlow::Break(place) => {
                        self.place = place;
                        self.event_stream = head.event_stream;
                        self.at_line_start = true;
                    }
                }
                line
            }
            Place::Length(left) => {
                let used = self.body(rest, left);
                let left = left - used as u64;
                self.place = if left == 0 { Place::Between } else { Place::Length(left) };
                used
            }
            Place::UntilClose => {
                self.place = Place::UntilClose;
                self.body(rest, u64::MAX)
            }
            Place::Data(left) => {
                let used = self.body(rest, left);
                let left = left - used as u64;
                self.place = if left == 0 { Place::DataEnd } else { Place::Data(left) };
                used
            }
            place => self.framing(place, rest),
        }
    }

    /// One byte of what lies between chunks.
    fn framing(&mut self, place: Place, rest: &mut [u8]) -> usize {
        let Some(byte) = rest.first_mut() else { return 0 };
        self.place = match (place, *byte) {
            (Place::DataEnd, b'\r') => Place::DataEnd,
            (Place::DataEnd, b'\n') => Place::Size { size: 0, digits: 0, extension: false },
            (Place::Size { size: 0, digits: 1.., .. }, b'\n') => Place::Trailer { empty: true },
            (Place::Size { size, digits: 1.., .. }, b'\n') => Place::Data(size),
            (place @ Place::Size { digits: 1.., .. }, b'\r') => place,
            (Place::Size { size, digits, extension: false }, digit)
                if digit.is_ascii_hexdigit() && digits < MAX_SIZE_DIGITS =>
            {
                let value = char::from(digit).to_digit(16).unwrap_or(0);
                Place::Size {
                    size: size << 4 | u64::from(value),
                    digits: digits + 1,
                    extension: false,
                }
            }
            (Place::Size { size, digits: digits @ 1.., extension }, other)
                if extension || matches!(other, b';' | b' ' | b'\t') =>
            {
                if extension {
                    *byte = COVER;
                }
                Place::Size { size, digits, extension: true }
            }
            (Place::Trailer { empty: true }, b'\n') => Place::Between,
            (Place::Trailer { .. }, b'\n') => Place::Trailer { empty: true },
            (place @ Place::Trailer { .. }, b'\r') => place,
            (Place::Trailer { .. }, _) => {
                *byte = COVER;
                Place::Trailer { empty: false }
            }
            _ => return 0,
        };
        1
    }

    /// Overwrites up to `left` bytes of a body, and says how many those were.
    fn body(&mut self, rest: &mut [u8], left: u64) -> usize {
        let used = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        let body = rest.get_mut(..used).unwrap_or_default();
        if self.event_stream {
            self.events(body)
        } else {
            body.fill(COVER)
        }
        used
    }

    /// Overwrites the values of an event stream.
    fn events(&mut self, bytes: &mut [u8]) {
        for line in bytes.split_inclusive_mut(|byte| *byte == b'\n') {
            let begins = std::mem::replace(&mut self.at_line_start, line.ends_with(b"\n"));
            let text = line.trim_ascii_end();
            let mut keep = 0;
            if begins && matches!(text, b"data: [DONE]" | b"data:[DONE]") {
                keep = text.len();
            } else if begins && let Some(name) = FIELDS.iter().find(|name| line.starts_with(name)) {
                keep = name.len() + usize::from(line.get(name.len()) == Some(&b' '));
            }
            cover_line(line.get_mut(keep..).unwrap_or_default());
        }
    }
}

impl Head {
    /// Takes a line, or a part of one that ends with the call. Breaks at the head's end with what
    /// follows.
    fn part(&mut self, part: &mut [u8], found: &mut u64) -> ControlFlow<Place> {
        let room = LINE_CAP.saturating_sub(self.line.len());
        let looked_at = part.get(..room.min(part.len())).unwrap_or_default();
        self.line.extend(looked_at.iter().map(u8::to_ascii_lowercase));
        let ends = part.ends_with(b"\n");
        *found += self.secrets.scan(part);
        if !ends {
            return ControlFlow::Continue(());
        }
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii();
        if line.is_empty() && self.first_line_done {
            return ControlFlow::Break(self.what_follows());
        }
        if self.first_line_done {
            self.header(line)
        } else {
            self.first_line(line)
        }
        ControlFlow::Continue(())
    }

    fn first_line(&mut self, line: &[u8]) {
        self.first_line_done = true;
        self.response = line.starts_with(b"http/1.");
        let status = line.split(|byte| *byte == b' ').nth(1).and_then(number);
        self.status = status.and_then(|status| u16::try_from(status).ok()).unwrap_or(0);
    }

    fn header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let name = line.get(..colon).unwrap_or_default().trim_ascii();
        let value = line.get(colon + 1..).unwrap_or_default().trim_ascii();
        match name {
            b"content-length" => self.length = number(value),
            b"transfer-encoding" => self.chunked |= value.ends_with(b"chunked"),
            b"content-type" => self.event_stream = value.starts_with(b"text/event-stream"),
            _ => {}
        }
    }

    fn what_follows(&self) -> Place {
        let no_body = matches!(self.status, 100 | 102..=199 | 204 | 304);
        match (self.response, self.length) {
            (true, _) if self.status == 101 => Place::Lost,
            (true, _) if no_body => Place::Between,
            _ if self.chunked => Place::Size { size: 0, digits: 0, extension: false },
            (_, Some(0)) => Place::Between,
            (_, Some(length)) => Place::Length(length),
            (true, None) => Place::UntilClose,
            (false, None) => Place::Between,
        }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether the bytes begin with a whole first line of a request or response. Bodies hold such lines
/// too rarely where a call begins to be worth keeping state against.
fn is_start_line(bytes: &[u8]) -> bool {
    if let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor, b' ', a, b, c, ..] = bytes {
        return [minor, a, b, c].iter().all(|byte| byte.is_ascii_digit());
    }
    let Some(end) = memchr::memchr(b'\n', bytes) else { return false };
    let line = bytes.get(..end).unwrap_or_default().trim_ascii_end();
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return false;
    };
    !method.is_empty()
        && method.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'-')
        && !target.is_empty()
        && matches!(version, b"HTTP/1.0" | b"HTTP/1.1")
}

/// Whether the bytes begin with the header of a TLS record, which says nothing but what it is.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=23, 3, 0..=4, _, _, ..])
}
