//! Which response belongs to which request.
//!
//! Responses come in the order of the requests (RFC 9112 section 9.3.2), so counting suffices. What
//! a response's framing needs to know of its request is kept for the first [`MAX_PENDING`]
//! unanswered ones; beyond, the count goes on.

use std::collections::VecDeque;

/// Requests whose method is remembered until they are answered.
pub const MAX_PENDING: usize = 64;

/// Methods that change how the response is framed (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// `HEAD`
    Head,
    /// `CONNECT`
    Connect,
    /// Any other.
    Other,
    /// Not seen.
    Unknown,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// Requests begun so far, unseen ones that were answered included.
    started: u64,
    /// The request that the next response, or the one in progress, belongs to.
    answered: u64,
    /// A response to `answered` has begun.
    answering: bool,
    /// The unanswered requests' methods.
    pending: VecDeque<(u64, Asked)>,
}

impl Ledger {
    /// A request began.
    pub(super) fn start_request(&mut self) -> u64 {
        let index = self.started;
        self.started += 1;
        if self.pending.len() < MAX_PENDING {
            self.pending.push_back((index, Asked::Unknown));
        }
        index
    }

    /// What the request is.
    pub(super) fn describe(&mut self, index: u64, asked: Asked) {
        if let Some(entry) = self.pending.iter_mut().rev().find(|(i, _)| *i == index) {
            entry.1 = asked;
        }
    }

    /// Takes a request back. Refused where its response has begun or another request has.
    pub(super) fn retract_request(&mut self, index: u64) -> bool {
        let answering = self.answering && self.answered == index;
        if self.started != index + 1 || answering || self.answered > index {
            return false;
        }
        self.started = index;
        self.pending.retain(|(i, _)| *i != index);
        true
    }

    /// A response began: its request, and whether that was not seen.
    pub(super) fn start_response(&mut self) -> (u64, bool) {
        let unasked = self.answered == self.started;
        if unasked {
            self.started += 1;
        }
        self.answering = true;
        (self.answered, unasked)
    }

    /// Takes a response back.
    pub(super) fn retract_response(&mut self, unasked: bool) {
        self.answering = false;
        if unasked && self.started == self.answered + 1 {
            self.started = self.answered;
        }
    }

    /// The response to `index` ended, or will never be seen.
    pub(super) fn end_response(&mut self, index: u64) {
        self.answered = self.answered.max(index + 1).min(self.started);
        self.answering = false;
        while self.pending.front().is_some_and(|(i, _)| *i < self.answered) {
            self.pending.pop_front();
        }
    }

    /// What the request was.
    pub(super) fn asked(&self, index: u64) -> Asked {
        self.pending.iter().find(|(i, _)| *i == index).map_or(Asked::Unknown, |(_, asked)| *asked)
    }

    /// A request is not answered yet.
    pub(super) fn awaits_response(&self) -> bool {
        self.answered < self.started
    }

    /// The response to `index` is complete.
    pub(super) fn is_answered(&self, index: u64) -> bool {
        self.answered > index
    }

    /// A request after `index` has begun.
    pub(super) fn is_followed(&self, index: u64) -> bool {
        self.started > index + 1
    }

    /// No request was ever begun.
    pub(super) fn is_new(&self) -> bool {
        self.started == 0
    }
}
