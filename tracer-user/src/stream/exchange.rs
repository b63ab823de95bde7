//! What this room says: exchanges, and connections that are not parsed.

use std::net::SocketAddr;

use compact_str::CompactString;
use serde::Serialize;
use smallvec::SmallVec;

pub use crate::protocol::trace_context::TraceParent;

/// Why something about an exchange is not known ([`Exchange::incomplete`]).
pub mod reason {
    /// Events were lost while it was open: calls of it may be missing.
    pub const LOST_EVENTS: &str = "lost-events";
    /// The response of a request that was being served when tracing began. Its start is unknown:
    /// `first_read` and `last_read` are the first write's.
    pub const MID_REQUEST: &str = "mid-request";
    /// The connection was found to be gone without a close that was seen. How and when the exchange
    /// ended is not known: its end is the last that was seen of the connection.
    pub const END_NOT_SEEN: &str = "end-not-seen";
    /// A response without a request although the connection was traced from its beginning or since.
    /// Its start is unknown, like that of [`MID_REQUEST`].
    pub const REQUEST_NOT_SEEN: &str = "request-not-seen";
    /// The response was lost: another request came on the connection.
    pub const RESPONSE_NOT_SEEN: &str = "response-not-seen";
    /// The request's first line was not captured.
    pub const HEAD_UNKNOWN: &str = "head-unknown";
    /// A part of a head was not captured: where its message ends was told from what came next.
    pub const HEAD_CUT: &str = "head-cut";
    /// A head was longer than what is kept; as with [`HEAD_CUT`].
    pub const HEAD_TOO_LONG: &str = "head-too-long";
    /// A head's fields break the grammar; as with [`HEAD_CUT`].
    pub const HEAD_MALFORMED: &str = "head-malformed";
    /// Calls of several threads on the connection overlapped: the order of their bytes is a guess.
    pub const CONCURRENT_IO: &str = "concurrent-io";
    /// Server-sent events ended in bytes that were not captured: their number is a lower bound.
    pub const CHUNKS_INFERRED: &str = "chunks-inferred";
    /// Server-sent events under a content coding: a chunk is one write that carried body bytes.
    pub const CHUNKS_ENCODED: &str = "chunks-encoded";
    /// More chunks than times are kept.
    pub const CHUNK_TIMES_CAPPED: &str = "chunk-times-capped";
    /// Pipelined requests were open when events were lost: which response is whose is a guess.
    pub const PAIRING_UNKNOWN: &str = "pairing-unknown";
    /// The connection was let go because there were too many.
    pub const EVICTED: &str = "evicted";
    /// Tracing was paused while it was open.
    pub const PAUSED: &str = "paused";
    /// The connection became a tunnel before the request was answered.
    pub const TUNNELLED: &str = "tunnelled";
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// 1xx to 3xx.
    Ok,
    /// 4xx.
    ClientError,
    /// 5xx.
    ServerError,
    /// The client went away before the response ended.
    Cancelled,
    /// The connection was reset, or the server closed it before the response ended.
    Reset,
}

/// One system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Entry, ns of `CLOCK_MONOTONIC`.
    pub enter_ns: u64,
    /// Exit, ns of `CLOCK_MONOTONIC`.
    pub exit_ns: u64,
    /// Thread.
    pub tid: u32,
}

/// What the traced process is in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It answers.
    Server,
    /// It asks: a dependency.
    Client,
}

/// Threads, in the order in which they came; the first 16 are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tids {
    list: SmallVec<[u32; 2]>,
    more: bool,
}

impl Tids {
    const MAX: usize = 16;

    /// Adds a thread.
    pub fn insert(&mut self, tid: u32) {
        if !self.list.contains(&tid) {
            if self.list.len() < Self::MAX {
                self.list.push(tid);
            } else {
                self.more = true;
            }
        }
    }

    /// The threads that are told apart.
    pub fn as_slice(&self) -> &[u32] {
        &self.list
    }

    /// The thread, where there was exactly one.
    pub fn only(&self) -> Option<u32> {
        match (self.list.as_slice(), self.more) {
            ([tid], false) => Some(*tid),
            _ => None,
        }
    }

    /// There were more threads than are told apart.
    pub fn overflowed(&self) -> bool {
        self.more
    }
}

/// A request and its response on one connection.
///
/// `first_read`, `last_read`, `readers` are always the *request's* calls and `first_write`,
/// `last_write`, `writers` the *response's*: for [`Role::Client`] the request is written and the
/// response is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Number, in the order in which exchanges began. Not every number is used.
    pub id: u64,
    /// Connection.
    pub conn: u64,
    /// Process of the first call.
    pub pid: u32,
    /// What the process is in it.
    pub role: Role,
    /// This end, where known.
    pub local: Option<SocketAddr>,
    /// The other end, where known.
    pub peer: Option<SocketAddr>,
    /// How many exchanges were seen on the connection before.
    pub seq_on_conn: u64,
    /// `http/1.1` or `http/1.0`, as the request says it, or else the response.
    pub protocol: &'static str,
    /// Method, `?` where the request's first line was not seen.
    pub method: CompactString,
    /// Path without query, `?` where it was not seen.
    pub route: CompactString,
    /// Status of the final response, where its first line was seen.
    pub status: Option<u16>,
    /// Caller's trace.
    pub trace_parent: Option<TraceParent>,
    /// End of the handshake, ns; only for the first exchange of a connection.
    pub established_ns: Option<u64>,
    /// Exit of `accept`, ns; only for the first exchange of a connection.
    pub accepted_ns: Option<u64>,
    /// When the request's first byte reached the socket, ns; never for [`Role::Client`].
    pub arrived_ns: Option<u64>,
    /// The call that returned the request's first byte.
    pub first_read: Stamp,
    /// The call that returned the request's last byte, so far.
    pub last_read: Stamp,
    /// The call that took the first byte of the final response.
    pub first_write: Option<Stamp>,
    /// The call that took the response's last byte, so far.
    pub last_write: Option<Stamp>,
    /// Entry and exit of each call that took bytes of the final response, ns; at most
    /// `Limits::writes` of them.
    pub writes: SmallVec<[(u64, u64); 1]>,
    /// Threads that moved the request.
    pub readers: Tids,
    /// Threads that moved the response, interim ones included.
    pub writers: Tids,
    /// Bytes of the request, head included.
    pub request_bytes: u64,
    /// Bytes of the response, head and interim responses included.
    pub response_bytes: u64,
    /// The response is a stream of server-sent events.
    pub sse: bool,
    /// Chunks of the response: server-sent events that carry data, without `[DONE]`; of other
    /// chunked responses, calls that carried body bytes.
    pub chunks: u64,
    /// When each was complete: exit of the call, ns. At most `Limits::chunk_times` of them.
    pub chunk_times_ns: Vec<u64>,
    /// When the last was complete, ns.
    pub last_chunk_ns: Option<u64>,
    /// The longest time between two chunks: its beginning and end, ns.
    pub longest_gap: Option<(u64, u64)>,
    /// Round-trip time of the connection when the request began, ns.
    pub tcp_rtt_ns: Option<u64>,
    /// Segments that this host sent again on the connection while the exchange was open.
    pub retransmits: u32,
    /// The response ended before the request was read whole (RFC 9112 section 9.3).
    pub early_response: bool,
    /// It is still open.
    pub open: bool,
    /// How it ended. `None` while it is open, and where that was not seen.
    pub outcome: Option<Outcome>,
    /// Its end was told from something else than its last bytes.
    pub end_inferred: bool,
    /// What is not known, see [`reason`].
    pub incomplete: Vec<&'static str>,
    /// Exit of the response's last call, ns; of a request without a whole response, the close, error
    /// or other event that ended it, or, where that was not seen, the last of the connection's
    /// calls; while it is open, the last event.
    pub end_ns: u64,
}

impl Exchange {
    /// Names something that is not known.
    pub fn note(&mut self, reason: &'static str) {
        if !self.incomplete.contains(&reason) {
            self.incomplete.push(reason);
        }
    }
}

/// Why a connection is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowKind {
    /// TLS.
    Tls,
    /// HTTP/2 (and so gRPC) without TLS.
    Http2,
    /// What follows `CONNECT` or `101 Switching Protocols`.
    Tunnel,
    /// A Unix socket.
    Unix,
    /// Nothing known.
    Unknown,
}

impl FlowKind {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Http2 => "http/2",
            Self::Tunnel => "tunnel",
            Self::Unix => "unix",
            Self::Unknown => "unknown",
        }
    }
}

/// A connection that was seen and is not parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Connection.
    pub conn: u64,
    /// Process of the last call.
    pub pid: u32,
    /// Why.
    pub kind: FlowKind,
    /// What the process is, where known.
    pub role: Option<Role>,
    /// This end, where known.
    pub local: Option<SocketAddr>,
    /// The other end, where known.
    pub peer: Option<SocketAddr>,
    /// Bytes read by the process, of a tunnel from its beginning.
    pub bytes_in: u64,
    /// Bytes written by the process, of a tunnel from its beginning.
    pub bytes_out: u64,
    /// First event, ns.
    pub first_ns: u64,
    /// Last event, ns.
    pub last_ns: u64,
    /// Still open.
    pub open: bool,
}

/// What this room emits.
#[derive(Clone, Debug, PartialEq)]
pub enum Out {
    /// An exchange is finished.
    Exchange(Box<Exchange>),
    /// A connection that was not parsed is finished.
    Flow(Flow),
}
