//! Conversations as clients and servers have them.
mod attach;
mod gaps;
mod messages;
mod soup;

use std::collections::BTreeMap;

use super::event::{RequestHead, ResponseHead};
use super::*;

/// One call: side, captured bytes, bytes not captured.
type Call<'a> = (Side, &'a [u8], u64);

/// What was said about one exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    request: Option<RequestHead>,
    response: Option<ResponseHead>,
    interim: Vec<u16>,
    unknown: Vec<Side>,
    unasked: bool,
    request_end: Option<bool>,
    response_end: Option<bool>,
    cut: Vec<Side>,
    request_tally: Tally,
    response_tally: Tally,
    /// Calls in which each side began and ended.
    request_calls: (usize, usize),
    response_calls: (usize, usize),
}

impl Seen {
    fn method(&self) -> &str {
        self.request.as_ref().map_or("?", |head| &head.method)
    }

    fn path(&self) -> &str {
        self.request.as_ref().map_or("?", |head| &head.path)
    }

    fn status(&self) -> u16 {
        self.response.as_ref().map_or(0, |head| head.status)
    }
}

/// What was said about a connection.
#[derive(Clone, Debug, Default)]
struct Talk {
    exchanges: BTreeMap<u64, Seen>,
    passed: Option<Passed>,
    resyncs: usize,
}

impl Talk {
    fn take(&mut self, call: usize, events: &[Event]) {
        for event in events {
            self.take_one(call, event);
        }
    }

    fn take_one(&mut self, call: usize, event: &Event) {
        match event {
            Event::Start { side, index, unasked, .. } => {
                let seen = self.exchanges.entry(*index).or_default();
                seen.unasked |= unasked;
                match side {
                    Side::Request => seen.request_calls.0 = call,
                    Side::Response => seen.response_calls.0 = call,
                }
            }
            Event::Retract { side, index } => {
                if *side == Side::Request || self.exchanges[index].unasked {
                    self.exchanges.remove(index).unwrap();
                }
            }
            Event::Resync { .. } => self.resyncs += 1,
            Event::Unparsed(kind) => self.passed = Some(*kind),
            Event::Request { index, head } => {
                let old = self.at(*index).request.replace((**head).clone());
                assert_eq!(old, None);
            }
            Event::Response { index, head } => {
                let old = self.at(*index).response.replace((**head).clone());
                assert_eq!(old, None);
            }
            Event::Interim { index, status } => self.at(*index).interim.push(*status),
            Event::HeadUnknown { side, index } => self.at(*index).unknown.push(*side),
            Event::Cut { side, index } => self.at(*index).cut.push(*side),
            Event::Bytes { side, index, tally } => {
                let seen = self.at(*index);
                let (sum, calls) = match side {
                    Side::Request => (&mut seen.request_tally, &mut seen.request_calls),
                    Side::Response => (&mut seen.response_tally, &mut seen.response_calls),
                };
                sum.wire += tally.wire;
                sum.body += tally.body;
                sum.events += tally.events;
                sum.inferred += tally.inferred;
                sum.done += tally.done;
                calls.1 = call;
            }
            Event::End { side, index, inferred } => {
                let seen = self.at(*index);
                let end = match side {
                    Side::Request => &mut seen.request_end,
                    Side::Response => &mut seen.response_end,
                };
                assert_eq!(end.replace(*inferred), None, "ended twice");
            }
        }
    }

    fn at(&mut self, index: u64) -> &mut Seen {
        self.exchanges.get_mut(&index).expect("started before")
    }

    fn list(&self) -> Vec<&Seen> {
        self.exchanges.values().collect()
    }
}

fn run(mut parser: Http1, calls: &[Call<'_>]) -> Talk {
    let mut talk = Talk::default();
    for (number, (side, data, missing)) in calls.iter().enumerate() {
        let mut out = Vec::new();
        parser.feed(*side, data, *missing, &mut out);
        talk.take(number, &out);
    }
    talk
}

/// The same, both sides closed at the end.
fn run_to_close(mut parser: Http1, calls: &[Call<'_>]) -> Talk {
    let mut talk = Talk::default();
    let mut out = Vec::new();
    for (number, (side, data, missing)) in calls.iter().enumerate() {
        parser.feed(*side, data, *missing, &mut out);
        talk.take(number, &out);
        out.clear();
    }
    parser.eof(Side::Request, &mut out);
    parser.eof(Side::Response, &mut out);
    talk.take(calls.len(), &out);
    talk
}

fn req(data: &[u8]) -> Call<'_> {
    (Side::Request, data, 0)
}

fn res(data: &[u8]) -> Call<'_> {
    (Side::Response, data, 0)
}
