//! Which timeline belongs to which request of a client: by the client's port, then by time and
//! order.
//!
//! A timeline cannot begin before its request was sent nor after its answer was there, and on one
//! connection both come in the same order. That decides without asking spanprobe for more than it
//! reports anyway.

use std::collections::HashMap;

use crate::oracles::client::ClientRequest;
use crate::timeline::Timeline;

/// The outcome, as indices.
#[derive(Debug, Default)]
pub struct Matched {
    /// Request and timeline.
    pub pairs: Vec<(usize, usize)>,
    /// Requests without timeline.
    pub missing: Vec<usize>,
    /// Timelines for requests that have one already.
    pub twice: Vec<usize>,
    /// Timelines of no request of these clients.
    pub foreign: Vec<usize>,
}

fn may_belong(request: &ClientRequest, timeline: &Timeline) -> bool {
    let last = if request.last_byte == 0 { u64::MAX } else { request.last_byte };
    (request.send_before..=last).contains(&timeline.start_monotonic_ns)
}

/// Matches.
pub fn matched(requests: &[ClientRequest], timelines: &[Timeline]) -> Matched {
    let mut by_port: HashMap<u16, (Vec<usize>, Vec<usize>)> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        by_port.entry(request.local_port).or_default().0.push(index);
    }
    let mut outcome = Matched::default();
    for (index, timeline) in timelines.iter().enumerate() {
        match timeline.peer_port().and_then(|port| by_port.get_mut(&port)) {
            Some((_, here)) => here.push(index),
            None => outcome.foreign.push(index),
        }
    }
    for (mut sent, mut seen) in by_port.into_values() {
        let request = |index: &usize| requests.get(*index);
        let timeline = |index: &usize| timelines.get(*index);
        sent.sort_by_key(|index| request(index).map(|r| (r.send_before, r.seq)));
        // Stable: pipelined requests that arrived together stay in the order of their answers.
        seen.sort_by_key(|index| timeline(index).map(|t| t.start_monotonic_ns));
        let mut next = 0;
        for at in seen {
            let Some(here) = timeline(&at) else { continue };
            let fits = |index: &usize| request(index).is_some_and(|r| may_belong(r, here));
            let found = sent.get(next..).unwrap_or_default().iter().position(fits);
            match found {
                Some(skipped) => {
                    let passed = sent.get(next..next + skipped).unwrap_or_default();
                    outcome.missing.extend(passed);
                    outcome.pairs.extend(sent.get(next + skipped).map(|index| (*index, at)));
                    next += skipped + 1;
                }
                None if sent.iter().any(fits) => outcome.twice.push(at),
                None => outcome.foreign.push(at),
            }
        }
        outcome.missing.extend(sent.get(next..).unwrap_or_default());
    }
    outcome.pairs.sort_unstable();
    outcome.missing.sort_unstable();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(port: u16, from: u64, to: u64) -> ClientRequest {
        serde_json::from_value(serde_json::json!({
            "tid": 1, "local_port": port, "seq": from, "rid": "r", "send_before": from,
            "send_after": from + 1, "sends": 1, "sent": from + 1, "first_byte": to,
            "last_byte": to, "status": 200, "bytes_in": 0, "body_hash": "", "raw_hash": "",
            "error": null
        }))
        .unwrap()
    }

    fn timeline(port: u16, start: u64) -> Timeline {
        serde_json::from_value(serde_json::json!({
            "trace_id": "", "span_id": "", "service": "", "pid": 1, "protocol": "http/1.1",
            "method": "GET", "route": "/", "peer": format!("127.0.0.1:{port}"),
            "arrival": "socket", "start_monotonic_ns": start, "duration_ns": 5,
            "request_bytes": 0, "response_bytes": 0, "phases": [], "links": [], "complete": true
        }))
        .unwrap()
    }

    #[test]
    fn each_finds_its_own() {
        let requests = [request(1, 10, 20), request(1, 30, 40), request(2, 10, 40)];
        let timelines = [timeline(2, 15), timeline(1, 31), timeline(1, 12)];
        let found = matched(&requests, &timelines);
        assert_eq!(found.pairs, [(0, 2), (1, 1), (2, 0)]);
        assert!(found.missing.is_empty() && found.twice.is_empty() && found.foreign.is_empty());
    }

    #[test]
    fn missing_double_and_foreign_ones_are_told_apart() {
        let requests = [request(1, 10, 20), request(1, 30, 40), request(1, 50, 60)];
        let timelines = [timeline(1, 31), timeline(1, 32), timeline(1, 70), timeline(9, 12)];
        let found = matched(&requests, &timelines);
        assert_eq!(found.pairs, [(1, 0)]);
        assert_eq!(found.missing, [0, 2]);
        assert_eq!(found.twice, [1]);
        assert_eq!(found.foreign, [3, 2]);
    }

    #[test]
    fn pipelined_requests_go_by_order() {
        let requests = [request(1, 10, 50), request(1, 11, 60)];
        let found = matched(&requests, &[timeline(1, 12), timeline(1, 12)]);
        assert_eq!(found.pairs, [(0, 0), (1, 1)]);
    }
}
