//! What the parser says.

use compact_str::CompactString;

use crate::protocol::trace_context::TraceParent;

/// Which half of an exchange bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Client to server.
    Request,
    /// Server to client.
    Response,
}

/// What happened in the bytes of one call, in their order. `index` numbers the requests of one
/// connection, unseen ones that were answered included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first byte of a message.
    Start {
        /// Side.
        side: Side,
        /// Exchange.
        index: u64,
        /// Where it lies in the call's bytes.
        offset: u64,
        /// A response to a request that was not seen.
        unasked: bool,
    },
    /// What was started turned out not to be a message: as if it had never been said.
    Retract {
        /// Side.
        side: Side,
        /// Exchange.
        index: u64,
    },
    /// A request's head.
    Request {
        /// Exchange.
        index: u64,
        /// Head.
        head: Box<RequestHead>,
    },
    /// An interim response (RFC 9110 section 15.2): the exchange goes on.
    Interim {
        /// Exchange.
        index: u64,
        /// Status, 100 to 199 without 101.
        status: u16,
    },
    /// A final response's head.
    Response {
        /// Exchange.
        index: u64,
        /// Head.
        head: Box<ResponseHead>,
    },
    /// A message's head was not captured, not even its first line.
    HeadUnknown {
        /// Side.
        side: Side,
        /// Exchange.
        index: u64,
    },
    /// Bytes of a message that this call carried: once per call and message, before its end.
    Bytes {
        /// Side.
        side: Side,
        /// Exchange.
        index: u64,
        /// How many.
        tally: Tally,
    },
    /// The message is complete.
    End {
        /// Side.
        side: Side,
        /// Exchange.
        index: u64,
        /// The end lies in bytes that were not captured, or was told from what came next.
        inferred: bool,
    },
    /// The side ended in the middle of the message.
    Cut {
        /// Side.
        side: Side,
        /// Exchange.
        index: u64,
    },
    /// A message was due and something else came; or the first message since was found.
    Resync {
        /// Side.
        side: Side,
        /// A message was found again.
        found: bool,
    },
    /// From here on the connection is not HTTP/1: its bytes are not looked at any more.
    Unparsed(Passed),
}

/// Bytes of one message in one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All of them: head, framing and body.
    pub wire: u64,
    /// Body, without framing. Where the framing is unknown: an upper bound.
    pub body: u64,
    /// Server-sent events that ended, see [`crate::protocol::sse::Ended`].
    pub events: u32,
    /// Those of them whose end lay in a gap.
    pub inferred: u32,
    /// `[DONE]` marks.
    pub done: u32,
}

/// Why a connection is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Passed {
    /// TLS records.
    Tls,
    /// HTTP/2 frames.
    Http2,
    /// It was HTTP/1 until `CONNECT` or `101 Switching Protocols` (RFC 9110 sections 9.3.6, 15.2.2).
    Tunnel,
    /// Nothing known.
    Unknown,
}

impl Passed {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Http2 => "http/2",
            Self::Tunnel => "tunnel",
            Self::Unknown => "unknown",
        }
    }
}

/// HTTP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// HTTP/1.0
    V10,
    /// HTTP/1.1
    V11,
}

impl Version {
    /// As it is written in a timeline.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V10 => "http/1.0",
            Self::V11 => "http/1.1",
        }
    }
}

/// How a message's body is delimited (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// By its length, bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// By the end of the connection (responses only).
    UntilClose,
    /// Not known: the fields that say it were not captured, or contradict each other.
    Unknown,
}

/// What was not seen of a head whose first line was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A part was not captured.
    Gap,
    /// It is longer than [`super::head::MAX_HEAD`].
    TooLong,
    /// Its fields break the grammar.
    Malformed,
}

/// What is kept of a request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Method.
    pub method: CompactString,
    /// Path of the target without query and fragment; `host:port` for `CONNECT`; at most
    /// [`super::head::MAX_PATH`] bytes.
    pub path: CompactString,
    /// Version.
    pub version: Version,
    /// Body.
    pub framing: Framing,
    /// The connection is to be closed after this exchange (RFC 9112 section 9.3).
    pub close: bool,
    /// `Expect: 100-continue`.
    pub expects_continue: bool,
    /// It asks to switch protocols.
    pub upgrade: bool,
    /// Caller's trace.
    pub trace_parent: Option<TraceParent>,
    /// What is missing.
    pub flaw: Option<Flaw>,
}

/// What is kept of a response's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Status code.
    pub status: u16,
    /// Version.
    pub version: Version,
    /// Body, as the head alone says it.
    pub framing: Framing,
    /// The connection is to be closed after this exchange.
    pub close: bool,
    /// `Content-Type: text/event-stream`.
    pub event_stream: bool,
    /// A content coding is applied: server-sent events in it cannot be counted.
    pub encoded: bool,
    /// What is missing.
    pub flaw: Option<Flaw>,
}
