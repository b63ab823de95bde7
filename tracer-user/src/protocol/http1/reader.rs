//! One side of a connection: finds its messages.

use super::body::{Body, Meter, Progress};
use super::event::{Event, Flaw, Framing, Passed, Side, Tally};
use super::head::{self, Collected, Collector};
use super::ledger::{Asked, Ledger};
use super::segment::Segment;
use crate::protocol::detect::{self, Trust, Verdict};
use crate::protocol::sse::Sse;

/// Where in its side's bytes.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// Nothing is known: a message is looked for where a call's bytes begin.
    Seek,
    /// A message is due.
    Due,
    /// In a head.
    Head,
    /// In a body.
    Body(Body),
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// All bytes are taken.
    Wait,
    /// There may be more to do.
    Again,
    /// A message began.
    Began(u64),
    /// A final response's head is done.
    Answered(u64),
    /// The bytes are not HTTP/1.
    Foreign(Passed),
}

#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) side: Side,
    pub(super) state: State,
    pub(super) head: Collector,
    /// The message in progress.
    pub(super) index: u64,
    /// It began where nothing was known.
    pub(super) found: bool,
    /// It is a response to a request that was not seen.
    pub(super) unasked: bool,
    /// Bytes of it may be lost: a good head at the start of a call ends it.
    pub(super) suspect: bool,
    /// No head has been read on this side since the connection began.
    pub(super) fresh: bool,
    pub(super) sse: Option<Sse>,
    pub(super) tally: Tally,
}

impl Reader {
    pub(super) fn new(side: Side, fresh: bool) -> Self {
        Self {
            side,
            state: if fresh { State::Due } else { State::Seek },
            head: Collector::default(),
            index: 0,
            found: false,
            unasked: false,
            suspect: false,
            fresh,
            sse: None,
            tally: Tally::default(),
        }
    }

    pub(super) fn is_request(&self) -> bool {
        self.side == Side::Request
    }

    pub(super) fn is_seeking(&self) -> bool {
        matches!(self.state, State::Seek)
    }

    /// Between messages, or not knowing better.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Seek | State::Due)
    }

    /// Bytes of heads that are held.
    pub(super) fn buffered(&self) -> usize {
        self.head.bytes().len()
    }

    /// Looks at what is left of the call's bytes. Every step takes bytes or changes the state.
    pub(super) fn step(
        &mut self,
        seg: &mut Segment<'_>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        if seg.left() == 0 {
            return Signal::Wait;
        }
        if seg.at_start() && self.is_interrupted(seg, ledger) {
            self.interrupt(ledger, out);
        }
        match &self.state {
            State::Seek => self.seek(seg, ledger, out),
            State::Due => self.begin_due(seg, ledger, out),
            State::Head => self.collect(seg, ledger, out),
            State::Body(_) => self.take_body(seg, ledger, out),
        }
    }

    fn judge(&self, data: &[u8], trust: Trust) -> Verdict {
        if self.is_request() {
            detect::request_start(data, trust)
        } else {
            detect::status_start(data)
        }
    }

    /// A message begins here although the one before it has not ended: bytes of that one were lost.
    /// Believed where there is other evidence, or nothing else could tell its end.
    fn is_interrupted(&self, seg: &Segment<'_>, ledger: &Ledger) -> bool {
        let other_side = match self.side {
            Side::Request => ledger.is_answered(self.index),
            Side::Response => ledger.is_followed(self.index),
        };
        let evidence = match &self.state {
            State::Seek | State::Due => return false,
            State::Head => self.buffered() > 0 && (self.found || self.suspect || other_side),
            State::Body(body) => self.suspect || body.is_opaque() || other_side,
        };
        evidence && self.judge(seg.rest(), Trust::Found) == Verdict::Sure
    }

    fn interrupt(&mut self, ledger: &mut Ledger, out: &mut Vec<Event>) {
        if matches!(self.state, State::Head) {
            self.drop_head(ledger, out);
        } else {
            self.end(true, ledger, out);
        }
        self.state = State::Due;
    }

    /// Looks for a message where nothing is known.
    fn seek(&mut self, seg: &mut Segment<'_>, ledger: &mut Ledger, out: &mut Vec<Event>) -> Signal {
        let verdict = if seg.at_start() && !seg.rest().is_empty() {
            self.judge(seg.rest(), Trust::Found)
        } else {
            Verdict::No
        };
        let expected = self.is_request() || ledger.awaits_response();
        let least = if expected { Verdict::Maybe } else { Verdict::Sure };
        if verdict < least {
            seg.take_all();
            return Signal::Wait;
        }
        out.push(Event::Resync { side: self.side, found: true });
        self.begin(true, seg, ledger, out)
    }

    /// Takes the beginning of a message that is due.
    fn begin_due(
        &mut self,
        seg: &mut Segment<'_>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        // RFC 9112 section 2.2: empty lines before a message are passed over.
        let blank = seg.rest().iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
        seg.take(blank as u64);
        if seg.left() == 0 {
            return Signal::Wait;
        }
        if seg.in_gap() {
            if !self.is_request() && !ledger.awaits_response() {
                return self.give_up(seg, out);
            }
            let signal = self.begin(false, seg, ledger, out);
            self.head_unknown(out);
            return signal;
        }
        match self.judge(seg.rest(), Trust::Due) {
            Verdict::No if self.fresh && (self.is_request() || ledger.is_new()) => {
                Signal::Foreign(kind_of(seg.rest()))
            }
            Verdict::No => self.give_up(seg, out),
            _ => self.begin(false, seg, ledger, out),
        }
    }

    /// Not a message where one was due: looks for the next one from the next call on.
    fn give_up(&mut self, seg: &mut Segment<'_>, out: &mut Vec<Event>) -> Signal {
        out.push(Event::Resync { side: self.side, found: false });
        self.state = State::Seek;
        seg.take_all();
        Signal::Wait
    }

    fn begin(
        &mut self,
        found: bool,
        seg: &Segment<'_>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        let (index, unasked) = match self.side {
            Side::Request => (ledger.start_request(), false),
            Side::Response => ledger.start_response(),
        };
        // After an interim response the final one begins under the same number.
        self.unasked = unasked || (self.unasked && self.index == index);
        (self.index, self.found) = (index, found);
        self.suspect = false;
        self.state = State::Head;
        out.push(Event::Start { side: self.side, index, offset: seg.offset(), unasked });
        Signal::Began(index)
    }

    /// The head lies in a gap.
    fn head_unknown(&mut self, out: &mut Vec<Event>) {
        self.head.clear();
        self.fresh = false;
        out.push(Event::HeadUnknown { side: self.side, index: self.index });
        self.state = State::Body(Body::Opaque { chunked: true });
    }

    /// What was collected is no head, or cannot be finished.
    pub(super) fn drop_head(&mut self, ledger: &mut Ledger, out: &mut Vec<Event>) {
        let (side, index) = (self.side, self.index);
        let retracted = match side {
            Side::Request => ledger.retract_request(index),
            Side::Response => {
                ledger.retract_response(std::mem::take(&mut self.unasked));
                true
            }
        };
        self.head.clear();
        self.state = State::Seek;
        if retracted {
            self.tally = Tally::default();
            out.push(Event::Retract { side, index });
        } else {
            out.push(Event::HeadUnknown { side, index });
            self.end(true, ledger, out);
            self.state = State::Seek;
        }
    }

    /// Adds to the head, and reads it when it is whole or when the rest of it was not captured.
    fn collect(
        &mut self,
        seg: &mut Segment<'_>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        let collected = self.head.push(seg.rest(), self.is_request());
        let (used, flaw) = match collected {
            Collected::Whole { used } => (used, None),
            Collected::TooLong => (0, Some(Flaw::TooLong)),
            Collected::More => {
                self.count(seg.take(seg.rest().len() as u64));
                if !seg.in_gap() {
                    return Signal::Wait;
                }
                (0, Some(Flaw::Gap))
            }
            Collected::NotHttp => return self.refuse(seg, ledger, out),
        };
        self.count(seg.take(used as u64));
        self.read_head(flaw, ledger, out)
    }

    fn count(&mut self, (visible, gap): (&[u8], u64)) {
        let bytes = (visible.len() as u64).saturating_add(gap);
        self.tally.wire = self.tally.wire.saturating_add(bytes);
    }

    /// The first line is none of HTTP/1's.
    fn refuse(
        &mut self,
        seg: &mut Segment<'_>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        let foreign = (self.fresh && !self.found).then(|| kind_of(self.head.bytes()));
        self.drop_head(ledger, out);
        match foreign {
            Some(kind) if ledger.is_new() => Signal::Foreign(kind),
            _ => self.give_up(seg, out),
        }
    }

    pub(super) fn read_head(
        &mut self,
        flaw: Option<Flaw>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        match self.side {
            Side::Request => self.read_request(flaw, ledger, out),
            Side::Response => self.read_response(flaw, ledger, out),
        }
    }

    fn read_request(
        &mut self,
        flaw: Option<Flaw>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        let bytes = self.head.bytes();
        let doubtful = self.found && detect::request_start(bytes, Trust::Found) < Verdict::Likely;
        let Some(head) = head::request(bytes, flaw).filter(|_| !doubtful) else {
            return self.no_head(ledger, out);
        };
        self.head.clear();
        self.fresh = false;
        let asked = match head.method.as_str() {
            "HEAD" => Asked::Head,
            "CONNECT" => Asked::Connect,
            _ => Asked::Other,
        };
        ledger.describe(self.index, asked);
        let framing = head.framing;
        out.push(Event::Request { index: self.index, head: Box::new(head) });
        self.enter_body(framing, ledger, out);
        Signal::Again
    }

    fn read_response(
        &mut self,
        flaw: Option<Flaw>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        let Some(head) = head::response(self.head.bytes(), flaw) else {
            return self.no_head(ledger, out);
        };
        self.head.clear();
        self.fresh = false;
        let (index, status) = (self.index, head.status);
        if (100..=199).contains(&status) && status != 101 {
            self.flush(out);
            out.push(Event::Interim { index, status });
            self.state = State::Due;
            return Signal::Again;
        }
        let asked = ledger.asked(index);
        // Whether there is a body after all depends on a request that was not seen.
        self.suspect |= asked == Asked::Unknown;
        let framing = head::framing_for(&head, asked);
        self.sse = (head.event_stream && !head.encoded).then(Sse::default);
        out.push(Event::Response { index, head: Box::new(head) });
        if status == 101 || (asked == Asked::Connect && (200..=299).contains(&status)) {
            self.end(false, ledger, out);
            return Signal::Foreign(Passed::Tunnel);
        }
        self.enter_body(framing, ledger, out);
        Signal::Answered(index)
    }

    /// Not even the first line can be read.
    fn no_head(&mut self, ledger: &mut Ledger, out: &mut Vec<Event>) -> Signal {
        if self.found {
            self.drop_head(ledger, out);
        } else {
            self.head_unknown(out);
        }
        Signal::Again
    }

    fn enter_body(&mut self, framing: Framing, ledger: &mut Ledger, out: &mut Vec<Event>) {
        match Body::announced(framing) {
            Some(body) => self.state = State::Body(body),
            None => self.end(false, ledger, out),
        }
    }

    fn take_body(
        &mut self,
        seg: &mut Segment<'_>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) -> Signal {
        let State::Body(body) = &mut self.state else { return Signal::Again };
        let mut meter = Meter { tally: &mut self.tally, sse: self.sse.as_mut() };
        match body.take(seg, &mut meter) {
            Progress::More => Signal::Wait,
            Progress::End { inferred } => {
                let suspect = self.suspect;
                self.end(inferred, ledger, out);
                // Where bytes of it may be lost, this may not be where the next one begins.
                if suspect && self.judge(seg.rest(), Trust::Found) < Verdict::Likely {
                    self.state = State::Seek;
                }
                Signal::Again
            }
        }
    }
}

/// What bytes are that are not HTTP/1.
fn kind_of(first: &[u8]) -> Passed {
    match detect::detect(first) {
        Some(detect::Protocol::Tls) => Passed::Tls,
        Some(detect::Protocol::Http2) => Passed::Http2,
        _ => Passed::Unknown,
    }
}
