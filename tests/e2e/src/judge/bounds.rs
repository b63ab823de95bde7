//! Do the bounds of GPU operations contain what the simulated device did, and how wide are they?
//!
//! An infinitely wide bound is always right and useless: the width is part of the answer.

use std::collections::{BTreeMap, HashMap};

use tracer_user::gpu::{Method, OpDone, OpKind};

use crate::measure::{Share, median};
use crate::oracles::sim::{Sim, SimOp};
use crate::session::Session;

/// The answer.
#[derive(Debug, Default)]
pub struct Bounds {
    /// Operations whose bounds contain the truth. Those that no fact proves are not in it.
    pub contain: Share,
    /// Operations given up: nothing is claimed of them.
    pub given_up: u64,
    /// Operations of the device that no operation of spanprobe stands for.
    pub unseen: u64,
    widths: BTreeMap<&'static str, Vec<f64>>,
    /// The first failures, in words.
    pub failures: Vec<String>,
}

fn method_name(method: Method) -> &'static str {
    match method {
        Method::Direct => "direct",
        Method::SyncBounded => "sync-bounded",
        Method::EventElapsed => "event-elapsed",
        Method::Estimated => "estimated",
    }
}

impl Bounds {
    /// Median of (upper − lower) ÷ true duration, per method.
    pub fn widths(&self) -> BTreeMap<&'static str, f64> {
        self.widths
            .iter()
            .filter_map(|(method, widths)| Some((*method, median(widths.iter().copied())?)))
            .collect()
    }

    /// The same over all methods.
    pub fn width(&self) -> Option<f64> {
        median(self.widths.values().flatten().copied())
    }

    fn fail(&mut self, what: impl FnOnce() -> String) {
        if self.failures.len() < 5 {
            self.failures.push(what());
        }
    }

    fn judge(&mut self, done: &OpDone, truth: &[&SimOp]) {
        let start = truth.iter().map(|op| op.start_ns).min().unwrap_or(0);
        let end = truth.iter().map(|op| op.end_ns).max().unwrap_or(0);
        if done.method == Method::Estimated || done.step.is_none() {
            self.given_up += 1;
            return;
        }
        let took = end.saturating_sub(start);
        let contained = done.earliest_start_ns <= start
            && end <= done.latest_end_ns
            && (done.lower_ns..=done.upper_ns).contains(&took);
        self.contain.add(contained);
        if !contained {
            self.fail(|| format!("{done:?} but it ran from {start} to {end} ({took} ns)"));
        }
        if took > 0 {
            let width = done.upper_ns.saturating_sub(done.lower_ns) as f64 / took as f64;
            self.widths.entry(method_name(done.method)).or_default().push(width);
        }
    }
}

/// Kinds of the driver's record that are work; the others are marks in a stream.
fn is_work(op: &SimOp) -> bool {
    matches!(
        op.kind.as_str(),
        "kernel" | "h2d" | "d2h" | "d2d" | "h2h" | "memset" | "graph" | "host"
    )
}

fn same_kind(done: &OpDone, op: &SimOp) -> bool {
    match done.op.kind {
        OpKind::Unified => matches!(op.kind.as_str(), "h2d" | "d2h" | "d2d" | "h2h"),
        kind => kind.as_str() == op.kind,
    }
}

/// What spanprobe saw a thread enqueue, and what the device did for each.
type Thread<'a> = (Vec<&'a OpDone>, Vec<Vec<&'a SimOp>>);

/// Judges every operation that was enqueued after `from_ns`. An operation of the device belongs to
/// the last one that spanprobe saw its thread enqueue before.
pub fn bounds(session: &Session, sim: &Sim, from_ns: u64) -> Bounds {
    let mut outcome = Bounds::default();
    let mut threads: HashMap<(u32, u32), Thread<'_>> = HashMap::new();
    for done in &session.ops {
        let (ops, truth) = threads.entry((done.pid, done.op.tid)).or_default();
        ops.push(done);
        truth.push(Vec::new());
    }
    for op in sim.ops.iter().filter(|op| is_work(op) && op.enqueue_ns >= from_ns) {
        let found = threads.get_mut(&(op.pid, op.tid)).and_then(|(ops, truth)| {
            let at = ops
                .partition_point(|done| done.op.enqueue_first_ns <= op.enqueue_ns)
                .checked_sub(1)?;
            let done = ops.get(at)?;
            truth.get_mut(at).filter(|_| same_kind(done, op))
        });
        match found {
            Some(truth) => truth.push(op),
            None => {
                outcome.unseen += 1;
                outcome.fail(|| format!("nothing stands for {op:?}"));
            }
        }
    }
    for (ops, truth) in threads.into_values() {
        for (done, truth) in ops.into_iter().zip(truth) {
            if truth.is_empty() {
                // A launch that failed, or one from before `from_ns`: nothing ran.
                continue;
            }
            if truth.len() as u64 != done.op.count {
                outcome.unseen += (truth.len() as u64).abs_diff(done.op.count);
                outcome.fail(|| format!("{} operations ran for {done:?}", truth.len()));
            }
            outcome.judge(done, &truth);
        }
    }
    outcome
}
