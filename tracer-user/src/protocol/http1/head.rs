//! Heads: collecting their bytes over calls, and reading them.

use compact_str::CompactString;
use httparse::{EMPTY_HEADER, Header};
use memchr::memchr;

use super::event::{Flaw, Framing, RequestHead, ResponseHead, Version};
use super::ledger::Asked;
use crate::protocol::detect;
use crate::protocol::trace_context::TraceParent;

/// Longest head that is kept, bytes. Of longer ones only the beginning is read.
pub const MAX_HEAD: usize = 64 << 10;
/// Longest path that is kept, bytes.
pub const MAX_PATH: usize = 256;
/// Header fields that are read at one go; more are read line by line.
const FIELDS: usize = 32;

/// A head's bytes so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Collector {
    bytes: Vec<u8>,
    scan: Scan,
}

/// How far a head has been searched for its end, so that no byte is searched twice.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    from: usize,
    line_checked: bool,
}

/// What more bytes made of a head.
pub(super) enum Collected {
    /// All of them belong to it and it goes on.
    More,
    /// It ended after so many of them.
    Whole {
        /// Of the new bytes.
        used: usize,
    },
    /// It is longer than [`MAX_HEAD`].
    TooLong,
    /// Its first line is none of HTTP/1's.
    NotHttp,
}

impl Collector {
    /// Adds captured bytes.
    pub(super) fn push(&mut self, data: &[u8], is_request: bool) -> Collected {
        let room = MAX_HEAD.saturating_sub(self.bytes.len());
        let part = data.get(..room).unwrap_or(data);
        // Mostly a call's bytes hold the whole head; the body behind it is not to be copied.
        if self.bytes.is_empty()
            && let Some(Ok(used)) = Scan::default().run(part, is_request)
            && let Some(head) = part.get(..used)
        {
            self.bytes.extend_from_slice(head);
            return Collected::Whole { used };
        }
        let before = self.bytes.len();
        self.bytes.extend_from_slice(part);
        match self.scan.run(&self.bytes, is_request) {
            Some(Ok(end)) => {
                self.bytes.truncate(end);
                Collected::Whole { used: end.saturating_sub(before) }
            }
            Some(Err(())) => Collected::NotHttp,
            None if self.bytes.len() >= MAX_HEAD => Collected::TooLong,
            None => Collected::More,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets everything and gives the memory back.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Scan {
    /// Looks for the blank line that ends the head (bare LF accepted, RFC 9112 section 2.2).
    fn run(&mut self, bytes: &[u8], is_request: bool) -> Option<Result<usize, ()>> {
        loop {
            let tail = bytes.get(self.from..)?;
            let Some(at) = memchr(b'\n', tail) else {
                self.from = bytes.len();
                return None;
            };
            if !self.line_checked {
                let line = bytes.get(..self.from.saturating_add(at))?;
                if !first_line_fits(line, is_request) {
                    return Some(Err(()));
                }
                self.line_checked = true;
            }
            let end = self.from.saturating_add(at).saturating_add(1);
            match bytes.get(end..)? {
                [b'\n', ..] => return Some(Ok(end + 1)),
                [b'\r', b'\n', ..] => return Some(Ok(end + 2)),
                // The line end is looked at again when there is more.
                [] | [b'\r'] => {
                    self.from = end - 1;
                    return None;
                }
                _ => self.from = end,
            }
        }
    }
}

fn first_line_fits(line: &[u8], is_request: bool) -> bool {
    if is_request {
        detect::ends_with_version(line)
    } else {
        // The code may be the line's last: no space behind it.
        line.len() >= b"HTTP/1.1 200".len() && detect::status_start(line) != detect::Verdict::No
    }
}

/// Reads a request's head. `flaw`: why it is not whole. `None` where not even its line is there.
pub(super) fn request(bytes: &[u8], flaw: Option<Flaw>) -> Option<RequestHead> {
    let (line, fields, whole) = split_line(bytes, flaw)?;
    let (method, target) = line.split_at_checked(memchr(b' ', line)?)?;
    let target = target.trim_ascii();
    let version = match target.last() {
        Some(b'0') if whole => Version::V10,
        _ => Version::V11,
    };
    let target = if whole { strip_version(target) } else { target };
    let (fields, flaw) = Fields::read(fields, flaw);
    let framing = match (flaw, &fields) {
        (None, fields) => fields.request_framing(),
        (Some(_), _) => Framing::Unknown,
    };
    Some(RequestHead {
        method: lossy(method, detect::MAX_METHOD),
        path: lossy(path_of(target, method == b"CONNECT"), MAX_PATH),
        version,
        framing,
        close: fields.closes(version),
        expects_continue: fields.expects_continue,
        upgrade: fields.upgrade,
        trace_parent: fields.trace_parent,
        flaw,
    })
}

/// Reads a response's head, like [`request`].
pub(super) fn response(bytes: &[u8], flaw: Option<Flaw>) -> Option<ResponseHead> {
    let (line, fields, _) = split_line(bytes, flaw)?;
    let version = match line.get(7) {
        Some(b'0') => Version::V10,
        _ => Version::V11,
    };
    let status = std::str::from_utf8(line.get(9..12)?).ok()?.parse().ok()?;
    let (fields, flaw) = Fields::read(fields, flaw);
    let framing = if flaw.is_some() { Framing::Unknown } else { fields.response_framing() };
    Some(ResponseHead {
        status,
        version,
        framing,
        close: fields.closes(version),
        event_stream: fields.event_stream,
        encoded: fields.encoded,
        flaw,
    })
}

/// A response's framing once its request is known (RFC 9112 section 6.3, cases 1 and 2).
pub(super) fn framing_for(head: &ResponseHead, asked: Asked) -> Framing {
    match (head.status, asked) {
        (100..=199 | 204 | 304, _) | (_, Asked::Head) | (200..=299, Asked::Connect) => {
            if head.flaw.is_some() { Framing::Unknown } else { Framing::Length(0) }
        }
        _ => head.framing,
    }
}

/// First line, the field lines that are whole, and whether the first line is.
fn split_line(bytes: &[u8], flaw: Option<Flaw>) -> Option<(&[u8], &[u8], bool)> {
    match memchr(b'\n', bytes) {
        Some(at) => {
            let (line, fields) = bytes.split_at_checked(at + 1)?;
            Some((line.trim_ascii_end(), fields, true))
        }
        None => flaw.map(|_| (bytes, &[][..], false)),
    }
}

fn strip_version(target: &[u8]) -> &[u8] {
    let end = target.len().saturating_sub(b"HTTP/1.1".len());
    target.get(..end).unwrap_or(target).trim_ascii_end()
}

/// The path in a target of any form (RFC 9112 section 3.2), without query and fragment.
fn path_of(target: &[u8], is_authority: bool) -> &[u8] {
    if is_authority {
        return target;
    }
    let mut path = target;
    if !target.starts_with(b"/")
        && let Some(after) =
            memchr::memmem::find(target, b"://").and_then(|at| target.get(at + 3..))
    {
        path = memchr(b'/', after).and_then(|at| after.get(at..)).unwrap_or(b"/");
    }
    let end = memchr::memchr2(b'?', b'#', path).unwrap_or(path.len());
    path.get(..end).unwrap_or(path)
}

/// Text of at most `limit` bytes; what is not UTF-8 is replaced.
fn lossy(bytes: &[u8], limit: usize) -> CompactString {
    let mut text = CompactString::from_utf8_lossy(bytes.get(..limit).unwrap_or(bytes));
    text.truncate(text.floor_char_boundary(limit));
    text
}

/// What the header fields say, as far as it is used.
#[derive(Debug, Default)]
struct Fields {
    length: Option<Option<u64>>,
    /// Transfer codings were named; whether the last is `chunked`.
    coding: Option<bool>,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    upgrade: bool,
    event_stream: bool,
    encoded: bool,
    trace_parent: Option<TraceParent>,
}

impl Fields {
    /// Reads field lines. Where the head is not whole, those lines that are whole count.
    fn read(lines: &[u8], flaw: Option<Flaw>) -> (Self, Option<Flaw>) {
        let mut room = [EMPTY_HEADER; FIELDS];
        if flaw.is_none()
            && let Ok(httparse::Status::Complete((_, fields))) =
                httparse::parse_headers(lines, &mut room)
        {
            let mut read = Self::default();
            fields.iter().for_each(|field| read.note(field));
            return (read, None);
        }
        let (read, framing_broken) = Self::read_by_line(lines);
        (read, flaw.or(framing_broken.then_some(Flaw::Malformed)))
    }

    /// Like most servers, passes over lines that break the grammar. Also says whether one of them
    /// seems to have been about framing.
    fn read_by_line(lines: &[u8]) -> (Self, bool) {
        let (mut read, mut framing_broken) = (Self::default(), false);
        for line in lines.split_inclusive(|b| *b == b'\n').filter(|line| line.ends_with(b"\n")) {
            let text = [line.trim_ascii_end(), b"\r\n\r\n"].concat();
            let mut room = [EMPTY_HEADER; 1];
            match httparse::parse_headers(&text, &mut room) {
                Ok(httparse::Status::Complete((_, fields))) => {
                    fields.iter().for_each(|field| read.note(field));
                }
                _ => {
                    framing_broken |=
                        [&b"content-length"[..], b"transfer-encoding"].iter().any(|name| {
                            text.get(..name.len()).is_some_and(|t| t.eq_ignore_ascii_case(name))
                        });
                }
            }
        }
        (read, framing_broken)
    }

    fn note(&mut self, field: &Header<'_>) {
        let (name, value) = (field.name, field.value);
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("content-length") {
            let length = parse_length(value);
            let same = self.length.is_none_or(|earlier| earlier == length);
            self.length = Some(length.filter(|_| same));
        } else if is("transfer-encoding") {
            if let Some(last) = list(value).next_back() {
                self.coding = Some(last.eq_ignore_ascii_case(b"chunked"));
            }
        } else if is("connection") {
            self.close |= list(value).any(|option| option.eq_ignore_ascii_case(b"close"));
            self.keep_alive |= list(value).any(|o| o.eq_ignore_ascii_case(b"keep-alive"));
        } else if is("expect") {
            self.expects_continue |= value.eq_ignore_ascii_case(b"100-continue");
        } else if is("upgrade") {
            self.upgrade = true;
        } else if is("content-type") {
            let kind = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
            self.event_stream = kind.eq_ignore_ascii_case(b"text/event-stream");
        } else if is("content-encoding") {
            self.encoded = list(value).any(|coding| !coding.eq_ignore_ascii_case(b"identity"));
        } else if is("traceparent") {
            self.trace_parent = TraceParent::parse(value);
        }
    }

    /// RFC 9112 section 6.3 for requests.
    fn request_framing(&self) -> Framing {
        match (self.coding, self.length) {
            (Some(true), _) => Framing::Chunked,
            (Some(false), _) | (None, Some(None)) => Framing::Unknown,
            (None, Some(Some(length))) => Framing::Length(length),
            (None, None) => Framing::Length(0),
        }
    }

    /// RFC 9112 section 6.3 for responses.
    fn response_framing(&self) -> Framing {
        match (self.coding, self.length) {
            (Some(false), _) | (None, None) => Framing::UntilClose,
            _ => self.request_framing(),
        }
    }

    /// RFC 9112 section 9.3.
    fn closes(&self, version: Version) -> bool {
        self.close || (version == Version::V10 && !self.keep_alive)
    }
}

/// Members of a comma-separated list (RFC 9110 section 5.6.1).
fn list(value: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}

/// A length; `5, 5` is 5 (RFC 9110 section 8.6).
fn parse_length(value: &[u8]) -> Option<u64> {
    let mut found = None;
    for member in list(value) {
        if !member.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let length: u64 = std::str::from_utf8(member).ok()?.parse().ok()?;
        if found.is_some_and(|earlier| earlier != length) {
            return None;
        }
        found = Some(length);
    }
    found
}
