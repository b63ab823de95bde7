//! Events of the driver: positions in streams.
//!
//! Each record of an event is a new generation. A call refers to the latest record that had
//! returned when the call began; where a record overlapped the call, either may be meant, and only
//! what holds for both is used.

use std::collections::BTreeMap;

use super::stream::StreamId;

/// One record of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Stream.
    pub(super) stream: StreamId,
    /// Entry of the record call, ns: what had returned by then lies before the position.
    pub(super) enter_ns: u64,
    /// Return of the record call, ns: what was entered from then on lies behind it.
    pub(super) exit_ns: u64,
    /// The capture that it was recorded under. It then proves nothing.
    pub(super) capture: Option<u64>,
    /// Recorded under capture as an external event: graph launches record it, unseen.
    pub(super) external: bool,
}

impl Record {
    fn is_real(&self) -> bool {
        self.capture.is_none()
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Created under trace by a call that returned then (ns), and not recorded yet.
    Fresh(u64),
    Recorded {
        last: Record,
        before: Option<Record>,
    },
}

/// What a call that names an event refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// Behind this record at least; `until_ns`: what was entered from then on is not meant.
    At { record: Record, until_ns: u64 },
    /// Recorded under capture.
    Captured(Record),
    /// Never recorded: complete at any time.
    Never,
    /// Not known.
    Unknown,
}

/// The events of one process, by handle.
#[derive(Clone, Debug, Default)]
pub(super) struct Events(BTreeMap<u64, State>);

impl Events {
    pub(super) fn created(&mut self, event: u64, exit_ns: u64, cap: usize) -> u64 {
        self.put(event, State::Fresh(exit_ns), cap)
    }

    /// Destroyed by a call entered at `enter_ns`. (Another thread may have been given the handle
    /// anew before that call returned.)
    pub(super) fn destroyed(&mut self, event: u64, enter_ns: u64) {
        let made_ns = match self.0.get(&event) {
            Some(State::Fresh(made_ns)) => *made_ns,
            _ => 0,
        };
        if made_ns <= enter_ns {
            self.0.remove(&event);
        }
    }

    /// Events were lost: any event may have been recorded again.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A record. Answers how many events had to go.
    pub(super) fn recorded(&mut self, event: u64, record: Record, cap: usize) -> u64 {
        let state = match self.0.get(&event) {
            Some(State::Recorded { last, .. }) if last.exit_ns <= record.enter_ns => {
                State::Recorded { last: record, before: Some(*last) }
            }
            Some(State::Recorded { last, before }) => {
                // The two overlapped: either may be the later one.
                if last.stream != record.stream || !last.is_real() || !record.is_real() {
                    self.0.remove(&event);
                    return 0;
                }
                let both = Record {
                    enter_ns: last.enter_ns.min(record.enter_ns),
                    exit_ns: last.exit_ns.max(record.exit_ns),
                    ..record
                };
                State::Recorded { last: both, before: *before }
            }
            _ => State::Recorded { last: record, before: None },
        };
        self.put(event, state, cap)
    }

    /// What a call entered at `enter_ns` refers to.
    pub(super) fn position(&self, event: u64, enter_ns: u64) -> Position {
        let (last, before) = match self.0.get(&event) {
            None => return Position::Unknown,
            Some(State::Fresh(_)) => return Position::Never,
            Some(State::Recorded { last, before }) => (last, before),
        };
        if last.exit_ns <= enter_ns {
            return if last.is_real() {
                Position::At { record: *last, until_ns: last.exit_ns }
            } else {
                Position::Captured(*last)
            };
        }
        match before {
            Some(before)
                if before.exit_ns <= enter_ns
                    && before.exit_ns <= last.enter_ns
                    && before.stream == last.stream
                    && before.is_real()
                    && last.is_real() =>
            {
                Position::At { record: *before, until_ns: last.exit_ns }
            }
            _ => Position::Unknown,
        }
    }

    fn put(&mut self, event: u64, state: State, cap: usize) -> u64 {
        let mut evicted = 0;
        if !self.0.contains_key(&event) && self.0.len() >= cap {
            evicted = self.evict();
        }
        self.0.insert(event, state);
        evicted
    }

    /// Makes room for a quarter: those recorded longest ago go.
    fn evict(&mut self) -> u64 {
        let age = |state: &State| match state {
            State::Fresh(made_ns) => *made_ns,
            State::Recorded { last, .. } => last.exit_ns,
        };
        let mut ages: Vec<(u64, u64)> =
            self.0.iter().map(|(event, state)| (age(state), *event)).collect();
        ages.sort_unstable();
        ages.truncate((ages.len() / 4).max(1));
        for (_, event) in &ages {
            self.0.remove(event);
        }
        ages.len() as u64
    }
}
