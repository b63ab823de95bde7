//! The exchanges of one connection: what the parser says, with the calls it was said about.

use std::collections::VecDeque;

use super::context::{Call, Cause, Context, Shared};
use super::exchange::{Exchange, Out, Role, Stamp, reason};
use super::open::{Open, ask_arrival, emit, outcome_of};
use crate::protocol::http1::event::{Framing, RequestHead, ResponseHead};
use crate::protocol::http1::{Event, Http1, Passed, Side, Tally};
use crate::stream::Outcome;

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
        self.open.iter().map(|open| &*open.exchange)
    }

    /// What arrived before this time belongs to answered requests, ns. `None` while a request is
    /// open, and where requests are pipelined.
    pub fn idle_since(&self) -> Option<u64> {
        self.answered_ns.filter(|_| self.open.is_empty() && !self.pipelined)
    }

    /// Takes the bytes of one call.
    pub fn feed(
        &mut self,
        call: &Call<'_>,
        ctx: &Context,
        shared: &mut Shared,
        out: &mut Vec<Out>,
    ) {
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
                open.exchange.end_inferred = true;
                None
            }
        };
        let end_ns = time_ns.max(open.last_seen());
        emit(open, outcome, end_ns, ctx, shared, out);
    }
}
