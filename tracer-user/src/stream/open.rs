//! One exchange while it is open.

use smallvec::SmallVec;

use super::arrival::Answer;
use super::context::{Call, Context, Shared};
use super::exchange::{Exchange, Out, Stamp, Tids, reason};
use crate::protocol::http1::Tally;
use crate::protocol::http1::event::Flaw;
use crate::stream::Outcome;

/// An exchange that is not finished.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) index: u64,
    pub(super) exchange: Box<Exchange>,
    /// The request was seen to begin.
    pub(super) asked: bool,
    pub(super) request_ended: bool,
    pub(super) chunked: bool,
    pub(super) encoded: bool,
    pub(super) retransmits: u32,
}

impl Open {
    pub(super) fn new(index: u64, seq: u64, id: u64, stamp: Stamp, ctx: &Context) -> Self {
        let first = seq == 0;
        let exchange = Box::new(Exchange {
            id,
            conn: ctx.conn,
            pid: ctx.pid,
            role: ctx.role,
            local: ctx.local,
            peer: ctx.peer,
            seq_on_conn: seq,
            protocol: "http/1.1",
            method: "?".into(),
            route: "?".into(),
            status: None,
            trace_parent: None,
            established_ns: ctx.established_ns.filter(|_| first),
            accepted_ns: ctx.accepted_ns.filter(|_| first),
            arrived_ns: None,
            first_read: stamp,
            last_read: stamp,
            first_write: None,
            last_write: None,
            writes: SmallVec::new(),
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
        });
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

    pub(super) fn flaw(&mut self, flaw: Option<Flaw>) {
        match flaw {
            None => {}
            Some(Flaw::Gap) => self.exchange.note(reason::HEAD_CUT),
            Some(Flaw::TooLong) => self.exchange.note(reason::HEAD_TOO_LONG),
            Some(Flaw::Malformed) => self.exchange.note(reason::HEAD_MALFORMED),
        }
    }

    /// Exit of the last call that belongs to it, ns.
    pub(super) fn last_seen(&self) -> u64 {
        self.exchange.end_ns
    }

    pub(super) fn count_chunks(&mut self, tally: Tally, time_ns: u64, limit: usize) {
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

pub(super) fn ask_arrival(call: &Call<'_>, offset: u64, shared: &mut Shared) -> Option<u64> {
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
pub(super) fn outcome_of(status: u16) -> Outcome {
    match status {
        400..=499 => Outcome::ClientError,
        500.. => Outcome::ServerError,
        _ => Outcome::Ok,
    }
}

pub(super) fn emit(
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
    out.push(Out::Exchange(exchange));
}
