//! HTTP/1.1 as far as both fixtures need it: heads, and chunked bodies piece by piece.

use std::fmt;

/// Why bytes are not the HTTP that these fixtures speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadHttp(pub &'static str);

impl fmt::Display for BadHttp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BadHttp {}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    Empty,
    /// A number of bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// The connection's end (responses only).
    UntilClose,
}

/// The head of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The target without its query.
    pub path: String,
    /// The query, still percent-coded.
    pub query: String,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the client waits for `100 Continue`.
    pub expect_continue: bool,
    /// Whether the connection goes on afterwards.
    pub keep_alive: bool,
    /// The `x-request-id` header.
    pub request_id: Option<String>,
}

/// The head of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// How the body ends, for a request whose response may have one.
    pub framing: Framing,
    /// Whether the connection goes on afterwards.
    pub keep_alive: bool,
    /// The `x-request-id` header.
    pub request_id: Option<String>,
}

/// The headers that decide how a message is read.
#[derive(Default)]
struct Fields {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expect_continue: bool,
    request_id: Option<String>,
}

/// The length of the head at the start of `bytes`, its empty line included, once it is whole.
pub fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4)
}

fn parse_fields<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Fields, BadHttp> {
    let mut fields = Fields::default();
    for line in lines {
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or(BadHttp("a header without a colon"))?;
        let value = value.trim();
        if name.is_empty() || name.contains([' ', '\t']) {
            return Err(BadHttp("a header name with blanks"));
        }
        if name.eq_ignore_ascii_case("content-length") {
            let length = value.parse().map_err(|_| BadHttp("Content-Length is not a number"))?;
            if fields.length.is_some_and(|other| other != length) {
                return Err(BadHttp("two different Content-Lengths"));
            }
            fields.length = Some(length);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(BadHttp("a transfer coding other than chunked"));
            }
            fields.chunked = true;
        } else if name.eq_ignore_ascii_case("connection") {
            for word in value.split(',').map(str::trim) {
                fields.close |= word.eq_ignore_ascii_case("close");
                fields.keep_alive |= word.eq_ignore_ascii_case("keep-alive");
            }
        } else if name.eq_ignore_ascii_case("expect") {
            fields.expect_continue = value.eq_ignore_ascii_case("100-continue");
        } else if name.eq_ignore_ascii_case("x-request-id") {
            fields.request_id = Some(value.to_owned());
        }
    }
    if fields.chunked && fields.length.is_some() {
        return Err(BadHttp("both Content-Length and Transfer-Encoding"));
    }
    Ok(fields)
}

/// `HTTP/1.0` or `HTTP/1.1`: whether connections stay open by default.
fn stays_open(version: &str) -> Result<bool, BadHttp> {
    match version {
        "HTTP/1.1" => Ok(true),
        "HTTP/1.0" => Ok(false),
        _ => Err(BadHttp("not HTTP/1")),
    }
}

/// Reads the head of a request; `head` ends with the empty line.
pub fn parse_request(head: &[u8]) -> Result<Request, BadHttp> {
    let text = std::str::from_utf8(head).map_err(|_| BadHttp("a head that is not text"))?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(BadHttp("a request line without three words"));
    };
    if method.is_empty() || !method.bytes().all(|b| b.is_ascii_uppercase()) {
        return Err(BadHttp("a method that is not in capitals"));
    }
    if !target.starts_with('/') {
        return Err(BadHttp("a target that is not a path"));
    }
    let open = stays_open(version)?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let fields = parse_fields(lines)?;
    let framing = match (fields.chunked, fields.length) {
        (true, _) => Framing::Chunked,
        (false, Some(0) | None) => Framing::Empty,
        (false, Some(length)) => Framing::Length(length),
    };
    Ok(Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        framing,
        expect_continue: fields.expect_continue && framing != Framing::Empty,
        keep_alive: if open { !fields.close } else { fields.keep_alive && !fields.close },
        request_id: fields.request_id,
    })
}

/// Reads the head of a response; `head` ends with the empty line.
pub fn parse_response(head: &[u8]) -> Result<Response, BadHttp> {
    let text = std::str::from_utf8(head).map_err(|_| BadHttp("a head that is not text"))?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().splitn(3, ' ');
    let open = stays_open(words.next().unwrap_or_default())?;
    let status = words
        .next()
        .filter(|word| word.len() == 3)
        .and_then(|word| word.parse::<u16>().ok())
        .ok_or(BadHttp("a status that is not three digits"))?;
    let fields = parse_fields(lines)?;
    let framing = match (fields.chunked, fields.length) {
        _ if status < 200 || status == 204 || status == 304 => Framing::Empty,
        (true, _) => Framing::Chunked,
        (false, Some(0)) => Framing::Empty,
        (false, Some(length)) => Framing::Length(length),
        (false, None) => Framing::UntilClose,
    };
    Ok(Response {
        status,
        framing,
        keep_alive: framing != Framing::UntilClose
            && if open { !fields.close } else { fields.keep_alive && !fields.close },
        request_id: fields.request_id,
    })
}

/// The value of `name` in a query, percent-decoded.
pub fn query_value(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then(|| percent_decode(value))
    })
}

fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let digit = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16));
        match byte {
            b'%' => {
                let mut ahead = bytes.clone();
                match (digit(ahead.next()), digit(ahead.next())) {
                    (Some(high), Some(low)) => {
                        out.push((high * 16 + low) as u8);
                        bytes = ahead;
                    }
                    _ => out.push(b'%'),
                }
            }
            b'+' => out.push(b' '),
            other => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A piece of a chunked body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes of the body.
    Data(&'a [u8]),
    /// The end of a chunk that had bytes.
    ChunkEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Size { size: u64, digits: u8 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    EndLf,
    Done,
}

/// Reads a chunked body, however its bytes are cut.
#[derive(Debug)]
pub struct Chunks {
    state: ChunkState,
}

impl Default for Chunks {
    fn default() -> Self {
        Chunks { state: ChunkState::Size { size: 0, digits: 0 } }
    }
}

impl Chunks {
    /// Whether the body has ended.
    pub fn done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// Takes bytes up to the body's end and returns how many.
    pub fn feed(
        &mut self,
        input: &[u8],
        mut sink: impl FnMut(Piece<'_>),
    ) -> Result<usize, BadHttp> {
        use ChunkState as S;
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            self.state = match self.state {
                S::Size { size, digits } => match (byte as char).to_digit(16) {
                    Some(digit) if digits < 15 => {
                        S::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
                    }
                    Some(_) => return Err(BadHttp("a chunk size that is too long")),
                    None if digits == 0 => return Err(BadHttp("a chunk without a size")),
                    None => match byte {
                        b'\r' => S::SizeLf { size },
                        b';' | b' ' | b'\t' => S::Extension { size },
                        _ => return Err(BadHttp("a chunk size that is not a number")),
                    },
                },
                S::Extension { size } if byte == b'\r' => S::SizeLf { size },
                S::Extension { size } => S::Extension { size },
                S::SizeLf { size } if byte == b'\n' => match size {
                    0 => S::TrailerStart,
                    left => S::Data { left },
                },
                S::Data { left } => {
                    let rest = input.get(at..).unwrap_or_default();
                    let take = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    sink(Piece::Data(rest.get(..take).unwrap_or_default()));
                    at += take;
                    self.state = match left - take as u64 {
                        0 => S::DataCr,
                        left => S::Data { left },
                    };
                    continue;
                }
                S::DataCr if byte == b'\r' => S::DataLf,
                S::DataLf if byte == b'\n' => {
                    sink(Piece::ChunkEnd);
                    S::Size { size: 0, digits: 0 }
                }
                S::TrailerStart if byte == b'\r' => S::EndLf,
                S::TrailerStart => S::Trailer,
                S::Trailer if byte == b'\n' => S::TrailerStart,
                S::Trailer => S::Trailer,
                S::EndLf if byte == b'\n' => S::Done,
                S::Done => return Ok(at),
                S::SizeLf { .. } | S::DataCr | S::DataLf | S::EndLf => {
                    return Err(BadHttp("a chunk without its line end"));
                }
            };
            at += 1;
            if self.state == S::Done {
                break;
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<Request, BadHttp> {
        parse_request(text.as_bytes())
    }

    #[test]
    fn request_heads() {
        let got = request(
            "POST /infer?plan=k:1:2&rid=a%2Fb HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\
             Expect: 100-continue\r\nX-Request-Id: r-1\r\n\r\n",
        )
        .unwrap();
        assert_eq!((got.method.as_str(), got.path.as_str()), ("POST", "/infer"));
        assert_eq!(got.framing, Framing::Length(12));
        assert!(got.expect_continue && got.keep_alive);
        assert_eq!(got.request_id.as_deref(), Some("r-1"));
        assert_eq!(query_value(&got.query, "plan").as_deref(), Some("k:1:2"));
        assert_eq!(query_value(&got.query, "rid").as_deref(), Some("a/b"));
        assert_eq!(query_value(&got.query, "none"), None);
    }

    #[test]
    fn connection_persistence() {
        let keeps = |text: &str| request(text).unwrap().keep_alive;
        assert!(keeps("GET / HTTP/1.1\r\n\r\n"));
        assert!(!keeps("GET / HTTP/1.1\r\nConnection: close\r\n\r\n"));
        assert!(!keeps("GET / HTTP/1.0\r\n\r\n"));
        assert!(keeps("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    }

    #[test]
    fn heads_that_are_refused() {
        for text in [
            "GET /\r\n\r\n",
            "get / HTTP/1.1\r\n\r\n",
            "GET x HTTP/1.1\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "GET / HTTP/1.1\r\nnonsense\r\n\r\n",
            "GET / HTTP/1.1\r\nA b: c\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        ] {
            assert!(request(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn response_heads() {
        let framing = |text: &str| parse_response(text.as_bytes()).unwrap().framing;
        assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"), Framing::Length(3));
        assert_eq!(framing("HTTP/1.1 204 No Content\r\n\r\n"), Framing::Empty);
        assert_eq!(framing("HTTP/1.1 100 Continue\r\n\r\n"), Framing::Empty);
        assert_eq!(framing("HTTP/1.1 200\r\n\r\n"), Framing::UntilClose);
        assert!(parse_response(b"HTTP/1.1 2x0 OK\r\n\r\n").is_err());
    }

    #[test]
    fn head_end() {
        assert_eq!(head_length(b"GET / HTTP/1.1\r\n\r\nrest"), Some(18));
        assert_eq!(head_length(b"GET / HTTP/1.1\r\n\r"), None);
    }

    #[test]
    fn chunks_however_they_are_cut() {
        let whole = b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\nNEXT";
        for cut in 1..whole.len() {
            let mut chunks = Chunks::default();
            let (mut body, mut ends, mut used) = (Vec::new(), 0, 0);
            for part in whole.chunks(cut) {
                used += chunks
                    .feed(part, |piece| match piece {
                        Piece::Data(data) => body.extend_from_slice(data),
                        Piece::ChunkEnd => ends += 1,
                    })
                    .unwrap();
                if chunks.done() {
                    break;
                }
            }
            assert!(chunks.done());
            assert_eq!((body.as_slice(), ends, used), (&b"hello world"[..], 2, whole.len() - 4));
        }
    }

    #[test]
    fn chunks_that_are_refused() {
        for text in
            ["\r\n", "x\r\n", "5x\r\n", "1\rx", "1\r\nab", "1111111111111111\r\n", "0\r\n\rx"]
        {
            assert!(Chunks::default().feed(text.as_bytes(), |_| {}).is_err(), "{text:?}");
        }
    }

    #[test]
    fn percent_signs_that_code_nothing_stay() {
        assert_eq!(percent_decode("a%zz%4"), "a%zz%4");
        assert_eq!(percent_decode("%41+b"), "A b");
    }
}
