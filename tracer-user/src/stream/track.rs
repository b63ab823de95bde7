//! The exchanges of one connection: what the parser says, with the calls it was said about.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::arrival::{Answer, Arrivals, Read};
use super::exchange::{Exchange, Out, Role, Stamp, Tids, reason};
use super::limits::{Counters, Limits};
use crate::protocol::http1::event::{Flaw, Framing, RequestHead, ResponseHead};
use crate::protocol::http1::{Event, Http1, Passed, Side, Tally};
use crate::timeline::model::Outcome;

/// What all connections share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Caps.
    pub limits: Limits,
    /// What happened beside the exchanges.
    pub counters: Counters,
    /// Exchanges begun.
    pub next_id: u64,
    /// Exchanges open.
    pub open: usize,
    /// Bytes of unfinished heads held.
    pub head_bytes: usize,
}

/// What is known of a connection when one of its calls is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Connection.
    pub conn: u64,
    /// Process of the call.
    pub pid: u32,
    /// What it is.
    pub role: Role,
    /// This end.
    pub local: Option<SocketAddr>,
    /// The other end.
    pub peer: Option<SocketAddr>,
    /// End of the handshake, ns.
    pub established_ns: Option<u64>,
    /// Exit of `accept`, ns.
    pub accepted_ns: Option<u64>,
    /// Round-trip time, ns.
    pub rtt_ns: Option<u64>,
    /// Segments sent again so far.
    pub retransmits: u32,
}

/// One call that moved bytes.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its times and thread.
    pub stamp: Stamp,
    /// What it moved.
    pub side: Side,
    /// Captured bytes.
    pub data: &'a [u8],
    /// Bytes not captured.
    pub missing: u64,
    /// It overlapped another thread's.
    pub overlapped: bool,
    /// When its bytes reached the socket.
    pub arrivals: Option<(&'a Arrivals, Read)>,
}

/// Why everything open ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The other end went away.
    Peer,
    /// This end closed, or its process ended.
    Own,
    /// The connection is let go; how the requests end will not be seen.
    Unseen(&'static str),
}

#[derive(Clone, Debug)]
struct Open {
    index: u64,
    exchange: Exchange,
    /// The request was seen to begin.
    asked: bool,
    request_ended: bool,
    chunked: bool,
    encoded: bool,
    retransmits: u32,
}

/// Parser and open exchanges of one connection.
#[derive(Clone, Debug)]
pub struct Track {
    parser: Http1,
    open: VecDeque<Open>,
    /// Exchanges seen so far.
    seen: u64,
    /// Seen from its first byte on.
    fresh: bool,
    /// Two requests were seen in one call.
    pipelined: bool,
    /// Events were lost while exchanges were open: pairs are judged by time until one fits.
    suspect: bool,
    /// Entry of the last response's last call, ns.
    answered_ns: Option<u64>,
    events: Vec<Event>,
}

impl Track {
    /// `fresh`: the connection is seen from its first byte on.
    pub fn new(fresh: bool) -> Self {
        Self {
            parser: if fresh { Http1::fresh() } else { Http1::attached() },
            open: VecDeque::new(),
            seen: 0,
            fresh,
            pipelined: false,
            suspect: false,
            answered_ns: None,
            events: Vec::new(),
        }
    }

    /// The connection is not parsed, and why.
    pub fn passed(&self) -> Option<Passed> {
        self.parser.passed()
    }

    /// No message was ever recognised.
    pub fn is_blank(&self) -> bool {
        self.parser.is_blank()
    }

    /// Requests being served.
    pub fn open(&self) -> impl Iterator<Item = &Exchange> {
        self.open.iter().map(|open| &open.exchange)
    }

    /// What arrived before this time belongs to answered requests, ns. `None` while a request is
    /// open, and where requests are pipelined.
    pub fn idle_since(&self) -> Option<u64> {
        self.answered_ns.filter(|_| self.open.is_empty() && !self.pipelined)
    }

    /// Takes the bytes of one call.
    pub fn feed(&mut self, call: &Call<'_>, ctx: &Context, shared: &mut Shared, out: &mut Vec<Out>) {
        if self.suspect && call.side == Side::Response {
            self.settle_pairs(call.stamp, ctx, shared, out);
        }
        let held = self.parser.buffered();
        let mut events = std::mem::take(&mut self.events);
        self.parser.feed(call.side, call.data, call.missing, &mut events);
        shared.head_bytes = shared.head_bytes.saturating_sub(held) + self.parser.buffered();
        if shared.head_bytes > shared.limits.head_bytes && self.parser.buffered() > held {
            shared.head_bytes -= self.parser.buffered();
            self.parser.cut_heads(&mut events);
            shared.head_bytes += self.parser.buffered();
            shared.counters.heads_cut += 1;
        }
        self.apply(&mut events, Some(call), ctx, shared, out);
        events.shrink_to(64);
        self.events = events;
    }

    /// One side ended at `time_ns`.
    pub fn eof(
        &mut self,
        side: Side,
        (time_ns, cause): (u64, Cause),
        ctx: &Context,
        shared: &mut Shared,
        out: &mut Vec<Out>,
    ) {
        let mut events = Vec::new();
        shared.head_bytes = shared.head_bytes.saturating_sub(self.parser.buffered());
        self.parser.eof(side, &mut events);
        shared.head_bytes += self.parser.buffered();
        let cut = events.iter().find_map(|event| match event {
            Event::Cut { side: Side::Response, index } => Some(*index),
            _ => None,
        });
        self.apply(&mut events, None, ctx, shared, out);
        if let Some(at) = cut.and_then(|index| self.position(index)) {
            self.finish_cut(at, time_ns, cause, ctx, shared, out);
        }
    }

    /// Everything that is open ends at `time_ns`. `clean`: both sides were closed, so that a
    /// response that lasts until then is whole.
    pub fn finish_all(
        &mut self,
        (time_ns, cause, clean): (u64, Cause, bool),
        ctx: &Context,
        shared: &mut Shared,
        out: &mut Vec<Out>,
    ) {
        if clean && !matches!(cause, Cause::Unseen(_)) {
            for side in [Side::Response, Side::Request] {
                self.eof(side, (time_ns, cause), ctx, shared, out);
            }
        }
        shared.head_bytes = shared.head_bytes.saturating_sub(self.parser.buffered());
        for side in [Side::Response, Side::Request] {
            self.parser.eof(side, &mut self.events);
        }
        self.events.clear();
        while !self.open.is_empty() {
            self.finish_cut(0, time_ns, cause, ctx, shared, out);
        }
    }

    /// Forgets what is open: it was no connection.
    pub fn discard(&mut self, shared: &mut Shared) {
        shared.head_bytes = shared.head_bytes.saturating_sub(self.parser.buffered());
        shared.open -= self.open.len();
        self.open.clear();
    }

    /// Events were lost.
    pub fn lost(&mut self) {
        self.parser.lost();
        self.suspect = !self.open.is_empty();
        for open in &mut self.open {
            open.exchange.note(reason::LOST_EVENTS);
            if self.pipelined {
                open.exchange.note(reason::PAIRING_UNKNOWN);
            }
        }
    }

    /// After a loss: who asks again on a connection has got the answer before. So the response that
    /// comes now belongs to the last request that was read before its call was entered, and those
    /// before it were answered unseen. (Not so where requests are pipelined.)
    fn settle_pairs(
        &mut self,
        stamp: Stamp,
        ctx: &Context,
        shared: &mut Shared,
        out: &mut Vec<Out>,
    ) {
        let until = match ctx.role {
            Role::Server => stamp.enter_ns,
            Role::Client => stamp.exit_ns,
        };
        let asked = |open: &&Open| open.asked && open.exchange.first_read.exit_ns <= until;
        if self.pipelined {
            return;
        }
        let Some(index) = self.open.iter().rev().find(asked).map(|open| open.index) else { return };
        self.suspect = false;
        while self.open.front().is_some_and(|open| open.index < index) {
            let Some(mut open) = self.open.pop_front() else { break };
            open.exchange.note(reason::RESPONSE_NOT_SEEN);
            open.exchange.end_inferred = true;
            let (outcome, end_ns) = (open.exchange.status.map(outcome_of), open.last_seen());
            emit(open, outcome, end_ns, ctx, shared, out);
        }
        self.parser.abandon(index);
    }

    fn position(&self, index: u64) -> Option<usize> {
        self.open.iter().position(|open| open.index == index)
    }

    fn at(&mut self, index: u64) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.index == index)
    }

    fn apply(
        &mut self,
        events: &mut Vec<Event>,
        call: Option<&Call<'_>>,
        ctx: &Context,
        shared: &mut Shared,
        out: &mut Vec<Out>,
    ) {
        for event in events.drain(..) {
            match event {
                Event::Start { side, index, offset, unasked } => {
                    if let Some(call) = call {
                        self.start((side, index, offset, unasked), call, ctx, shared);
                    }
                }
                Event::Retract { side, index } => self.retract(side, index, shared),
                Event::Request { index, head } => self.request(index, *head),
                Event::Response { index, head } => self.response(index, &head),
                Event::HeadUnknown { side, index } => self.head_unknown(side, index),
                Event::Interim { index, .. } => self.interim(index),
                Event::Bytes { side, index, tally } => {
                    if let Some(call) = call {
                        self.bytes(side, index, tally, call, shared);
                    }
                }
                Event::End { side: Side::Request, index, inferred } => {
                    if let Some(open) = self.at(index) {
                        open.request_ended = true;
                        open.exchange.end_inferred |= inferred;
                    }
                }
                Event::End { side: Side::Response, index, inferred } => {
                    self.answered(index, inferred, ctx, shared, out);
                }
                // Requests: the close that follows says it. Responses: the caller does.
                Event::Cut { .. } => {}
                Event::Resync { .. } => shared.counters.resyncs += 1,
                Event::Unparsed(_) => {
                    let time_ns = call.map_or(0, |call| call.stamp.exit_ns);
                    let cause = Cause::Unseen(reason::TUNNELLED);
                    while !self.open.is_empty() {
                        self.finish_cut(0, time_ns, cause, ctx, shared, out);
                    }
                }
            }
        }
    }

    fn start(
        &mut self,
        (side, index, offset, unasked): (Side, u64, u64, bool),
        call: &Call<'_>,
        ctx: &Context,
        shared: &mut Shared,
    ) {
        if side == Side::Response && !unasked {
            if let Some(open) = self.at(index) {
                open.exchange.first_write = Some(call.stamp);
            }
            return;
        }
        self.pipelined |= side == Side::Request && offset > 0 && !self.open.is_empty();
        let full = self.open.len() >= shared.limits.exchanges_per_connection;
        if full || shared.open >= shared.limits.exchanges {
            shared.counters.exchanges_untracked += 1;
            return;
        }
        let mut open = Open::new(index, self.seen, shared.next_id, call.stamp, ctx);
        (self.seen, shared.next_id, shared.open) =
            (self.seen + 1, shared.next_id + 1, shared.open + 1);
        if side == Side::Request {
            open.asked = true;
            if ctx.role == Role::Server {
                open.exchange.arrived_ns = ask_arrival(call, offset, shared);
            }
        } else {
            open.request_ended = true;
            open.exchange.first_write = Some(call.stamp);
            let early = !self.fresh && self.seen == 1;
            let why = if early { reason::MID_REQUEST } else { reason::REQUEST_NOT_SEEN };
            open.exchange.note(why);
        }
        self.open.push_back(open);
    }

    fn retract(&mut self, side: Side, index: u64, shared: &mut Shared) {
        let Some(at) = self.position(index) else { return };
        if side == Side::Response && self.open.get(at).is_some_and(|open| open.asked) {
            if let Some(open) = self.open.get_mut(at) {
                (open.exchange.first_write, open.exchange.last_write) = (None, None);
                open.exchange.writes.clear();
            }
            return;
        }
        self.open.remove(at);
        self.seen -= 1;
        shared.open -= 1;
    }

    fn request(&mut self, index: u64, head: RequestHead) {
        let Some(open) = self.at(index) else { return };
        open.exchange.method = head.method;
        open.exchange.route = head.path;
        open.exchange.protocol = head.version.as_str();
        open.exchange.trace_parent = head.trace_parent;
        open.flaw(head.flaw);
    }

    fn response(&mut self, index: u64, head: &ResponseHead) {
        let Some(open) = self.at(index) else { return };
        open.exchange.status = Some(head.status);
        open.exchange.sse = head.event_stream;
        open.chunked = head.framing == Framing::Chunked;
        open.encoded = head.encoded;
        if !open.asked {
            open.exchange.protocol = head.version.as_str();
        }
        if head.event_stream && head.encoded {
            open.exchange.note(reason::CHUNKS_ENCODED);
        }
        open.flaw(head.flaw);
    }

    fn head_unknown(&mut self, side: Side, index: u64) {
        if let Some(open) = self.at(index) {
            open.exchange.note(match side {
                Side::Request => reason::HEAD_UNKNOWN,
                Side::Response => reason::HEAD_CUT,
            });
        }
    }

    fn interim(&mut self, index: u64) {
        if let Some(open) = self.at(index) {
            (open.exchange.first_write, open.exchange.last_write) = (None, None);
            open.exchange.writes.clear();
        }
    }

    fn bytes(
        &mut self,
        side: Side,
        index: u64,
        tally: Tally,
        call: &Call<'_>,
        shared: &mut Shared,
    ) {
        let Some(open) = self.at(index) else { return };
        let (stamp, exchange) = (call.stamp, &mut open.exchange);
        exchange.end_ns = exchange.end_ns.max(stamp.exit_ns);
        if call.overlapped {
            exchange.note(reason::CONCURRENT_IO);
        }
        match side {
            Side::Request => {
                exchange.request_bytes = exchange.request_bytes.saturating_add(tally.wire);
                exchange.last_read = stamp;
                exchange.readers.insert(stamp.tid);
            }
            Side::Response => {
                exchange.response_bytes = exchange.response_bytes.saturating_add(tally.wire);
                exchange.last_write = Some(stamp);
                if exchange.writes.len() < shared.limits.writes {
                    exchange.writes.push((stamp.enter_ns, stamp.exit_ns));
                }
                exchange.writers.insert(stamp.tid);
                open.count_chunks(tally, stamp.exit_ns, shared.limits.chunk_times);
            }
        }
    }

    /// The response is complete.
    fn answered(
        &mut self,
        index: u64,
        inferred: bool,
        ctx: &Context,
        shared: &mut Shared,
        out: &mut Vec<Out>,
    ) {
        let Some(mut open) = self.position(index).and_then(|at| self.open.remove(at)) else {
            return;
        };
        open.exchange.end_inferred |= inferred;
        open.exchange.early_response = open.asked && !open.request_ended;
        let last = open.exchange.last_write.or(open.exchange.first_write);
        self.answered_ns = last.map(|stamp| stamp.enter_ns).or(self.answered_ns);
        self.suspect &= !self.open.is_empty();
        let outcome = open.exchange.status.map(outcome_of);
        let end_ns = last.map_or(open.exchange.end_ns, |stamp| stamp.exit_ns);
        emit(open, outcome, end_ns, ctx, shared, out);
    }

    /// The exchange at `at` ends without the end of its response.
    fn finish_cut(
        &mut self,
        at: usize,
        time_ns: u64,
        cause: Cause,
        ctx: &Context,
        shared: &mut Shared,
        out: &mut Vec<Out>,
    ) {
        let Some(mut open) = self.open.remove(at) else { return };
        let outcome = match (cause, ctx.role) {
            (Cause::Peer, Role::Server) | (Cause::Own, Role::Client) => Some(Outcome::Cancelled),
            (Cause::Own, Role::Server) | (Cause::Peer, Role::Client) => Some(Outcome::Reset),
            (Cause::Unseen(why), _) => {
                open.exchange.note(why);
                None
            }
        };
        let end_ns = time_ns.max(open.last_seen());
        emit(open, outcome, end_ns, ctx, shared, out);
    }
}

impl Open {
    fn new(index: u64, seq: u64, id: u64, stamp: Stamp, ctx: &Context) -> Self {
        let first = seq == 0;
        let exchange = Exchange {
            id,
            conn: ctx.conn,
            pid: ctx.pid,
            role: ctx.role,
            local: ctx.local,
            peer: ctx.peer,
            seq_on_conn: seq,
            protocol: "http/1.1",
            method: "?".to_owned(),
            route: "?".to_owned(),
            status: None,
            trace_parent: None,
            established_ns: ctx.established_ns.filter(|_| first),
            accepted_ns: ctx.accepted_ns.filter(|_| first),
            arrived_ns: None,
            first_read: stamp,
            last_read: stamp,
            first_write: None,
            last_write: None,
            writes: Vec::new(),
            readers: Tids::default(),
            writers: Tids::default(),
            request_bytes: 0,
            response_bytes: 0,
            sse: false,
            chunks: 0,
            chunk_times_ns: Vec::new(),
            last_chunk_ns: None,
            longest_gap: None,
            tcp_rtt_ns: ctx.rtt_ns,
            retransmits: 0,
            early_response: false,
            open: true,
            outcome: None,
            end_inferred: false,
            incomplete: Vec::new(),
            end_ns: stamp.exit_ns,
        };
        Self {
            index,
            exchange,
            asked: false,
            request_ended: false,
            chunked: false,
            encoded: false,
            retransmits: ctx.retransmits,
        }
    }

    fn flaw(&mut self, flaw: Option<Flaw>) {
        match flaw {
            None => {}
            Some(Flaw::Gap) => self.exchange.note(reason::HEAD_CUT),
            Some(Flaw::TooLong) => self.exchange.note(reason::HEAD_TOO_LONG),
            Some(Flaw::Malformed) => self.exchange.note(reason::HEAD_MALFORMED),
        }
    }

    /// Exit of the last call that belongs to it, ns.
    fn last_seen(&self) -> u64 {
        self.exchange.end_ns
    }

    fn count_chunks(&mut self, tally: Tally, time_ns: u64, limit: usize) {
        let exchange = &mut self.exchange;
        let ended = if exchange.sse && !self.encoded {
            u64::from(tally.events)
        } else {
            u64::from((self.chunked || exchange.sse) && tally.body > 0)
        };
        if ended == 0 {
            return;
        }
        if tally.inferred > 0 {
            exchange.note(reason::CHUNKS_INFERRED);
        }
        exchange.chunks = exchange.chunks.saturating_add(ended);
        if let Some(last) = exchange.last_chunk_ns {
            let longest = exchange.longest_gap.map_or(0, |(from, to)| to.saturating_sub(from));
            if time_ns.saturating_sub(last) > longest {
                exchange.longest_gap = Some((last, time_ns));
            }
        }
        exchange.last_chunk_ns = Some(time_ns);
        let room = limit.saturating_sub(exchange.chunk_times_ns.len());
        let kept = usize::try_from(ended).unwrap_or(usize::MAX).min(room);
        exchange.chunk_times_ns.extend(std::iter::repeat_n(time_ns, kept));
        if (kept as u64) < ended {
            exchange.note(reason::CHUNK_TIMES_CAPPED);
        }
    }
}

fn ask_arrival(call: &Call<'_>, offset: u64, shared: &mut Shared) -> Option<u64> {
    let answer = call.arrivals.map_or(Answer::Unknown, |(queue, read)| queue.ask(read, offset));
    match answer {
        Answer::At(time_ns) if time_ns <= call.stamp.exit_ns => return Some(time_ns),
        Answer::Ambiguous => shared.counters.arrivals_ambiguous += 1,
        Answer::At(_) | Answer::Unknown => {}
    }
    shared.counters.arrivals_unknown += 1;
    None
}

/// RFC 9110 section 15.
fn outcome_of(status: u16) -> Outcome {
    match status {
        400..=499 => Outcome::ClientError,
        500.. => Outcome::ServerError,
        _ => Outcome::Ok,
    }
}

fn emit(
    open: Open,
    outcome: Option<Outcome>,
    end_ns: u64,
    ctx: &Context,
    shared: &mut Shared,
    out: &mut Vec<Out>,
) {
    let mut exchange = open.exchange;
    exchange.outcome = outcome;
    exchange.open = false;
    exchange.end_ns = end_ns;
    exchange.retransmits = ctx.retransmits.saturating_sub(open.retransmits);
    shared.open -= 1;
    shared.counters.exchanges += 1;
    out.push(Out::Exchange(Box::new(exchange)));
}
