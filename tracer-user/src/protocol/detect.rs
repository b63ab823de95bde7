//! What the first bytes of a connection, or of one call on it, look like.
//!
//! # Bias
//!
//! A request lost because its head was not recognised is one request missing; junk taken for a head
//! poisons a connection. So everything here that is used to *find* a message start in the middle of
//! a connection ([`request_start`] with [`Trust::Found`], [`status_start`]) leans to "no": it wants
//! a method that exists, a target of a known form, and as soon as the line's end is visible also
//! ` HTTP/1.0` or ` HTTP/1.1` before it. Where a message is *due* ([`Trust::Due`]) any token is
//! taken for a method. HTTP/0.9 is never recognised. One byte 0x16 at the start of a connection is
//! taken for TLS: nothing else that is common begins so.

use memchr::memchr;

/// The protocols that first bytes are sorted into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1 (RFC 9112).
    Http1,
    /// A TLS handshake (RFC 8446 section 5.1).
    Tls,
    /// HTTP/2 with prior knowledge (RFC 9113 section 3.4).
    Http2,
    /// None of these.
    Unknown,
}

/// How well bytes fit the beginning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// They do not.
    No,
    /// Nothing contradicts it, but there are too few of them.
    Maybe,
    /// Method and the beginning of the target are there, the line's end is not.
    Likely,
    /// The whole line is there and right.
    Sure,
}

/// Whether a message is expected where the bytes were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The message before it has just ended, or the connection is new.
    Due,
    /// Nothing is known about what came before.
    Found,
}

/// Longest method that is recognised, bytes.
pub const MAX_METHOD: usize = 32;

/// What a client sends first in HTTP/2 with prior knowledge, as far as it has the form of a line.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Methods that may begin a message in the middle of a connection: RFC 9110 section 9, RFC 5789,
/// RFC 4918, RFC 3253 and RFC 5323, and the draft QUERY.
const METHODS: [&[u8]; 20] = [
    b"GET",
    b"POST",
    b"PUT",
    b"HEAD",
    b"DELETE",
    b"OPTIONS",
    b"PATCH",
    b"TRACE",
    b"CONNECT",
    b"QUERY",
    b"PROPFIND",
    b"PROPPATCH",
    b"MKCOL",
    b"COPY",
    b"MOVE",
    b"LOCK",
    b"UNLOCK",
    b"REPORT",
    b"SEARCH",
    b"PURGE",
];

/// Sorts the first bytes that a client sent on a new connection. `None`: more bytes are needed.
pub fn detect(first: &[u8]) -> Option<Protocol> {
    if is_tls_start(first) {
        return Some(Protocol::Tls);
    }
    if first.starts_with(HTTP2_PREFACE) {
        return Some(Protocol::Http2);
    }
    if HTTP2_PREFACE.starts_with(first) {
        return None;
    }
    match request_start(first, Trust::Due) {
        Verdict::No => Some(Protocol::Unknown),
        Verdict::Maybe => None,
        Verdict::Likely | Verdict::Sure => Some(Protocol::Http1),
    }
}

/// A TLS handshake record, or as much of its first three bytes as there is.
fn is_tls_start(first: &[u8]) -> bool {
    match first {
        [0x16] | [0x16, 3] => true,
        [0x16, 3, minor, ..] => *minor <= 4,
        _ => false,
    }
}

/// A whole TLS record header at the start of a call in the middle of a connection: type 20 to 23,
/// version 3.0 to 3.4, a length that a record may have (RFC 8446 section 5.2). Random bytes pass
/// once in three million.
pub fn is_tls_record(data: &[u8]) -> bool {
    let Some([kind, major, minor, high, low]) = data.first_chunk::<5>() else { return false };
    let length = u16::from_be_bytes([*high, *low]);
    (20..=23).contains(kind) && *major == 3 && *minor <= 4 && (1..=16_640).contains(&length)
}

/// Whether a call's bytes (`data`, and `missing` more that were not captured) are a chain of whole
/// HTTP/2 frames (RFC 9113 section 4.1), each with flags, stream and length that its type allows.
/// Not proof by itself: callers ask for more than one such call.
pub fn is_http2_frames(data: &[u8], missing: u64) -> bool {
    let total = (data.len() as u64).saturating_add(missing);
    let (mut rest, mut at) = (data, 0u64);
    loop {
        let Some(header) = rest.first_chunk::<9>() else { return at > 0 && at == total };
        let Some(length) = http2_frame_length(*header) else { return false };
        at = at.saturating_add(9).saturating_add(length);
        if at >= total {
            return at == total;
        }
        match usize::try_from(length).ok().and_then(|n| rest.get(n.saturating_add(9)..)) {
            Some(next) => rest = next,
            // The rest of the chain lies in the gap.
            None => return missing > 0,
        }
    }
}

/// The payload length of a frame header that may exist, bytes.
fn http2_frame_length([a, b, c, kind, flags, s3, s2, s1, s0]: [u8; 9]) -> Option<u64> {
    let length = u32::from_be_bytes([0, a, b, c]);
    let stream = u32::from_be_bytes([s3, s2, s1, s0]);
    let own = stream != 0 && stream < 1 << 31;
    let fits = match kind {
        0 => own && flags & !0x09 == 0,
        1 => own && flags & !0x2d == 0 && length > 0,
        2 => own && flags == 0 && length == 5,
        3 => own && flags == 0 && length == 4,
        4 => {
            stream == 0
                && flags & !1 == 0
                && length.is_multiple_of(6)
                && length <= 96
                && (flags == 0 || length == 0)
        }
        6 => stream == 0 && flags & !1 == 0 && length == 8,
        7 => stream == 0 && flags == 0 && length >= 8,
        8 => stream < 1 << 31 && flags == 0 && length == 4,
        9 => own && flags & !4 == 0,
        _ => false,
    };
    (fits && length <= 1 << 20).then_some(u64::from(length))
}

/// Judges whether `data` begins a request line (RFC 9112 section 3).
pub fn request_start(data: &[u8], trust: Trust) -> Verdict {
    let Some((method, target)) = split_method(data) else {
        let token = data.len() <= MAX_METHOD && data.iter().copied().all(is_token);
        let known = METHODS.iter().any(|m| m.starts_with(data));
        return if token && (trust == Trust::Due || known) { Verdict::Maybe } else { Verdict::No };
    };
    let known = METHODS.contains(&method);
    if trust == Trust::Found && !known {
        return Verdict::No;
    }
    let form = match target.first() {
        None => return Verdict::Maybe,
        Some(b'/' | b'*') => true,
        Some(b'h' | b'H') => prefix_fits(target, b"http"),
        Some(_) => method == b"CONNECT",
    };
    if trust == Trust::Found && !form {
        return Verdict::No;
    }
    if let Some(end) = memchr(b'\n', target) {
        let line = target.get(..end).unwrap_or(target);
        return if ends_with_version(line) { Verdict::Sure } else { Verdict::No };
    }
    let seen = target.strip_suffix(b"\r").unwrap_or(target);
    if seen.iter().take(64).any(|b| *b < b' ' || *b == 0x7f) {
        return Verdict::No;
    }
    if known && form { Verdict::Likely } else { Verdict::Maybe }
}

/// Judges whether `data` begins a status line (RFC 9112 section 4).
pub fn status_start(data: &[u8]) -> Verdict {
    // Small letters stand for classes: version digit, digit, what may follow the code.
    const LINE: &[u8] = b"HTTP/1.v dddx";
    let fits = data.iter().zip(LINE).all(|(byte, want)| match want {
        b'v' => matches!(byte, b'0' | b'1'),
        b'd' => byte.is_ascii_digit(),
        b'x' => matches!(byte, b' ' | b'\r' | b'\n'),
        _ => byte == want,
    });
    match (fits, data.len() >= LINE.len()) {
        (false, _) => Verdict::No,
        (true, false) => Verdict::Maybe,
        (true, true) => Verdict::Sure,
    }
}

/// Whether a request's first line, without its line end, ends with a version that is parsed here.
pub fn ends_with_version(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0")
}

/// Method and what follows the space after it.
fn split_method(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let head = data.get(..MAX_METHOD + 1).unwrap_or(data);
    let (method, rest) = data.split_at_checked(memchr(b' ', head)?)?;
    (!method.is_empty() && method.iter().copied().all(is_token))
        .then(|| (method, rest.get(1..).unwrap_or_default()))
}

/// `data` begins with `want`, without regard to case, as far as it goes.
fn prefix_fits(data: &[u8], want: &[u8]) -> bool {
    data.iter().zip(want).all(|(a, b)| a.eq_ignore_ascii_case(b))
}

/// `tchar` of RFC 9110 section 5.6.2.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}
