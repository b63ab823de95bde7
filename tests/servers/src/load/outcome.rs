//! What the client knows of each request, as lines of its oracle and as the figures of a run.

use std::fmt::Write as _;

use crate::oracle::json_string;
use crate::wire::SocketCall;

/// What happened to one request.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub(super) tid: i32,
    pub(super) local_port: u16,
    pub(super) seq: u64,
    pub(super) rid: String,
    pub(super) due: Option<u64>,
    pub(super) connect: Option<(u64, u64)>,
    pub(super) sends: u64,
    pub(super) send_before: u64,
    pub(super) send_after: u64,
    pub(super) sent: u64,
    pub(super) first_byte: u64,
    pub(super) last_byte: u64,
    pub(super) status: u16,
    pub(super) bytes_in: u64,
    pub(super) body_hash: u64,
    pub(super) raw_hash: u64,
    pub(super) chunks: Vec<u64>,
    pub(super) chunk_count: u64,
    pub(super) error: Option<String>,
    /// The number of its kind of stall, counted from 1; 0: none.
    pub(super) stall: usize,
    /// Of an upload in two parts: right before and right after the wait between.
    pub(super) upload_gap: Option<(u64, u64)>,
    /// Right before and right after the time in which the answer was left alone.
    pub(super) read_gap: Option<(u64, u64)>,
}

/// The figures of a run.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Requests sent.
    pub requests: u64,
    /// Of which failed.
    pub errors: u64,
    /// The line for standard output.
    pub line: String,
}

impl Outcome {
    /// Notes the calls that sent it.
    pub(super) fn note_sends(&mut self, calls: &[SocketCall]) {
        for call in calls {
            if self.sends == 0 {
                self.send_before = call.before;
                self.send_after = call.after;
            }
            self.sent = call.after;
            self.sends += 1;
        }
    }
}

/// Writes its line of the oracle to `out`.
pub(super) fn line(outcome: &Outcome, out: &mut String) {
    out.clear();
    let _ = write!(
        out,
        r#"{{"t":"client","tid":{},"local_port":{},"seq":{},"rid":{},"send_before":{},"send_after":{},"sends":{},"sent":{},"first_byte":{},"last_byte":{},"status":{},"bytes_in":{},"body_hash":"{:016x}","raw_hash":"{:016x}","error":{}"#,
        outcome.tid,
        outcome.local_port,
        outcome.seq,
        json_string(&outcome.rid),
        outcome.send_before,
        outcome.send_after,
        outcome.sends,
        outcome.sent,
        outcome.first_byte,
        outcome.last_byte,
        outcome.status,
        outcome.bytes_in,
        outcome.body_hash,
        outcome.raw_hash,
        outcome.error.as_deref().map_or_else(|| "null".to_owned(), json_string),
    );
    if let Some(due) = outcome.due {
        let _ = write!(out, r#","due":{due}"#);
    }
    if let Some((before, after)) = outcome.connect {
        let _ = write!(out, r#","connect":[{before},{after}]"#);
    }
    if outcome.stall > 0 {
        let _ = write!(out, r#","stall":true,"stall_kind":{}"#, outcome.stall);
    }
    for (name, gap) in [("upload_gap", outcome.upload_gap), ("read_gap", outcome.read_gap)] {
        if let Some((before, after)) = gap {
            let _ = write!(out, r#","{name}":[{before},{after}]"#);
        }
    }
    if outcome.chunk_count > 0 {
        let times: Vec<_> = outcome.chunks.iter().map(u64::to_string).collect();
        let _ =
            write!(out, r#","chunk_count":{},"chunks":[{}]"#, outcome.chunk_count, times.join(","));
    }
    out.push_str("}\n");
}

/// The figures of all requests.
pub(super) fn summarise(outcomes: &[Outcome], seconds: f64) -> Summary {
    let mut latencies: Vec<u64> = outcomes
        .iter()
        .filter(|outcome| outcome.error.is_none())
        .map(|outcome| outcome.last_byte.saturating_sub(outcome.send_before))
        .collect();
    latencies.sort_unstable();
    let at = |share: f64| {
        let rank = (latencies.len() as f64 * share).ceil() as usize;
        latencies.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    };
    let errors = outcomes.iter().filter(|outcome| outcome.error.is_some()).count() as u64;
    let first = outcomes.iter().find_map(|outcome| outcome.error.as_deref());
    let connections = outcomes.iter().filter(|outcome| outcome.connect.is_some()).count();
    let requests = outcomes.len() as u64;
    let line = format!(
        r#"{{"t":"summary","requests":{requests},"errors":{errors},"connections":{connections},"p50_ns":{},"p99_ns":{},"max_ns":{},"rps":{:.1},"seconds":{seconds:.3},"first_error":{}}}"#,
        at(0.5),
        at(0.99),
        at(1.0),
        requests as f64 / seconds.max(1e-9),
        first.map_or_else(|| "null".to_owned(), json_string),
    );
    Summary { requests, errors, line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let outcomes: Vec<_> = (1..=100)
            .map(|ns| Outcome { send_before: 0, last_byte: ns, ..Outcome::default() })
            .collect();
        let value: serde_json::Value =
            serde_json::from_str(&summarise(&outcomes, 2.0).line).unwrap();
        assert_eq!(value["p50_ns"], 50);
        assert_eq!(value["p99_ns"], 99);
        assert_eq!(value["max_ns"], 100);
        assert_eq!(value["rps"], 50.0);
    }
}
