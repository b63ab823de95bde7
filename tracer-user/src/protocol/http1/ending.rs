//! How messages of one side end.

use super::body::Body;
use super::event::{Event, Flaw, Tally};
use super::ledger::Ledger;
use super::reader::{Reader, State};

impl Reader {
    /// Gives up a head that is not whole and was found where nothing was known.
    pub(super) fn drop_found(&mut self, ledger: &mut Ledger, out: &mut Vec<Event>) {
        if self.found && matches!(self.state, State::Head) {
            self.drop_head(ledger, out);
        }
    }

    /// Says what this call added to the message.
    pub(super) fn flush(&mut self, out: &mut Vec<Event>) {
        let tally = std::mem::take(&mut self.tally);
        if tally.wire > 0 {
            out.push(Event::Bytes { side: self.side, index: self.index, tally });
        }
    }

    /// The message is complete.
    pub(super) fn end(&mut self, inferred: bool, ledger: &mut Ledger, out: &mut Vec<Event>) {
        self.flush(out);
        out.push(Event::End { side: self.side, index: self.index, inferred });
        if !self.is_request() {
            ledger.end_response(self.index);
        }
        self.sse = None;
        self.suspect = false;
        self.state = State::Due;
    }

    /// Ends a message whose end cannot be seen, or not be trusted because the request is not known,
    /// when something else tells that it is over; `only`: if it is this one, or (`None`) any.
    pub(super) fn end_opaque(
        &mut self,
        only: Option<u64>,
        ledger: &mut Ledger,
        out: &mut Vec<Event>,
    ) {
        let State::Body(body) = &self.state else { return };
        let uncertain = body.is_opaque() || (!self.is_request() && self.unasked);
        if uncertain && only.is_none_or(|index| index == self.index) {
            self.end(true, ledger, out);
            self.state = if self.is_request() { State::Seek } else { State::Due };
        }
    }

    /// The side ended.
    pub(super) fn eof(&mut self, ledger: &mut Ledger, out: &mut Vec<Event>) {
        match &self.state {
            State::Seek | State::Due => {}
            State::Head if self.found => self.drop_head(ledger, out),
            State::Body(Body::UntilClose) => self.end(false, ledger, out),
            State::Body(Body::Opaque { .. }) => self.end(true, ledger, out),
            State::Head | State::Body(_) => {
                out.push(Event::Cut { side: self.side, index: self.index });
                if !self.is_request() {
                    ledger.end_response(self.index);
                }
            }
        }
        self.head.clear();
        self.sse = None;
        self.state = State::Seek;
    }

    /// Bytes may have been lost, nobody knows how many.
    pub(super) fn lost(&mut self) {
        match self.state {
            State::Seek => {}
            State::Due => self.state = State::Seek,
            State::Head | State::Body(_) => self.suspect = true,
        }
    }

    /// Forgets a message before `index`.
    pub(super) fn abandon(&mut self, before: u64) {
        if !self.is_idle() && self.index < before {
            self.head.clear();
            self.sse = None;
            self.tally = Tally::default();
            self.state = State::Seek;
        }
    }

    /// Reads the head that is being collected as if the rest of it were too much.
    pub(super) fn cut_head(&mut self, ledger: &mut Ledger, out: &mut Vec<Event>) {
        if matches!(self.state, State::Head) {
            self.read_head(Some(Flaw::TooLong), ledger, out);
        }
    }
}
