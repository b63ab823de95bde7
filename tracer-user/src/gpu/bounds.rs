//! Bounds of durations, and what `cuEventElapsedTime` adds to them.
//!
//! An operation starts no earlier than the entry of its enqueuing call and than the last instant
//! at which a query said that a position before it was not reached. It ends no later than the
//! return of the first call that proves it complete. That its predecessor was proven complete at
//! some instant says nothing about its own start: the predecessor may have ended long before. So
//! the lower bound of a duration is 0 unless the device's own clock was asked.
//!
//! `cuEventElapsedTime` answers the device's time between two records. Operations between them on
//! one stream took no more than that, plus [`margin`]. Where it was one operation and no other
//! stream of the process was active, it also took no less than that, minus the margin, the host
//! time in which the three calls were made (the device may have idled meanwhile), and
//! [`IDLE_MARGIN_NS`] for the device to notice.

use std::collections::VecDeque;

use super::event::{Position, Record};
use super::op::{Class, Op, OpDone, StreamKey};
use super::out::{Fact, Method, Out, Refine, Step, Subject};
use super::proc::{At, Env, Proc};
use super::stream::{Mark, StreamId};

/// Resolution of an event's time stamp, ns: cuda.h says about 0.5 µs, there are two.
const RESOLUTION_NS: u64 = 1_000;
/// Time that an idle device may take to begin what was enqueued, and to stamp the record behind
/// it, ns. Launch latencies are a few µs; the rest is for clocks that ramp up.
const IDLE_MARGIN_NS: u64 = 50_000;
/// How long completed operations are kept for a late answer, ns: as long as timelines wait.
const KEEP_NS: u64 = 2_000_000_000;

/// What an elapsed time may be wrong by, ns: its resolution, the rounding of the `float` (24 bits),
/// and 1/4096 for the drift between the device's clock and the host's.
fn margin(elapsed_ns: u64) -> u64 {
    RESOLUTION_NS + elapsed_ns / 4_096 + elapsed_ns / (1 << 22)
}

/// A completed operation that later answers may narrow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub(super) stream: StreamId,
    id: u64,
    pub(super) class: Class,
    pub(super) enqueue_ns: u64,
    pub(super) exit_ns: u64,
    end_ns: u64,
    lower_ns: u64,
    upper_ns: u64,
    pub(super) lost: bool,
}

impl Completed {
    pub(super) fn of(stream: StreamId, done: &OpDone) -> Self {
        Self {
            stream,
            id: done.op.id,
            class: done.op.class(),
            enqueue_ns: done.op.enqueue_first_ns,
            exit_ns: done.op.exit_ns.unwrap_or(done.latest_end_ns),
            end_ns: done.latest_end_ns,
            lower_ns: done.lower_ns,
            upper_ns: done.upper_ns,
            lost: done.op.lost,
        }
    }

    /// Whether it was enqueued between two records.
    fn lies_between(&self, start: &Record, end: &Record) -> bool {
        self.enqueue_ns >= start.exit_ns && self.exit_ns <= end.enter_ns
    }
}

/// A completed step that later answers may narrow.
#[derive(Clone, Copy, Debug)]
struct Reported {
    stream: StreamId,
    id: u64,
    first_ns: u64,
    /// The last enqueue had returned, ns.
    last_ns: u64,
    at_ns: u64,
    lower_ns: u64,
    upper_ns: u64,
}

/// What was completed lately, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    ops: VecDeque<Completed>,
    steps: VecDeque<Reported>,
    /// Waits for events that were passed: when, on which stream.
    marks: VecDeque<(u64, StreamId, Mark)>,
    /// Of what was completed before, nothing is known any more, ns.
    forgotten_ns: u64,
}

impl Recent {
    pub(super) fn push(&mut self, op: Completed, cap: usize) {
        let old = |first: &Completed| first.end_ns.saturating_add(KEEP_NS) < op.end_ns;
        while self.ops.len() >= cap.max(1) || self.ops.front().is_some_and(old) {
            if let Some(gone) = self.ops.pop_front() {
                self.forgotten_ns = self.forgotten_ns.max(gone.end_ns);
            }
        }
        self.ops.push_back(op);
    }

    /// A wait for an event was passed.
    pub(super) fn push_mark(&mut self, stream: StreamId, mark: Mark, now_ns: u64, cap: usize) {
        let old = |first: &(u64, StreamId, Mark)| first.0.saturating_add(KEEP_NS) < now_ns;
        while self.marks.len() >= cap.max(1) || self.marks.front().is_some_and(old) {
            if let Some((gone_ns, ..)) = self.marks.pop_front() {
                self.forgotten_ns = self.forgotten_ns.max(gone_ns);
            }
        }
        self.marks.push_back((now_ns, stream, mark));
    }

    /// What was completed on the stream after that instant.
    pub(super) fn ops_since(&self, id: StreamId, at_ns: u64) -> impl Iterator<Item = &Completed> {
        self.all_since(at_ns).filter(move |op| op.stream == id)
    }

    /// What was completed after that instant.
    pub(super) fn all_since(&self, at_ns: u64) -> impl Iterator<Item = &Completed> {
        self.ops.iter().rev().take_while(move |op| op.end_ns > at_ns)
    }

    /// Waits for events that were passed on the stream after that instant.
    pub(super) fn marks_since(&self, id: StreamId, at_ns: u64) -> impl Iterator<Item = &Mark> {
        let after = self.marks.iter().rev().take_while(move |mark| mark.0 > at_ns);
        after.filter(move |mark| mark.1 == id).map(|mark| &mark.2)
    }

    /// Whether something completed after that instant is no longer kept.
    pub(super) fn forgot_since(&self, at_ns: u64) -> bool {
        self.forgotten_ns > at_ns
    }

    /// `exit_ns`: the last of its enqueuing calls had returned.
    pub(super) fn push_step(&mut self, stream: StreamId, step: &Step, exit_ns: u64, cap: usize) {
        let now_ns = step.fact.exit_ns;
        let old = |first: &Reported| first.at_ns.saturating_add(KEEP_NS) < now_ns;
        while self.steps.len() >= cap.max(1) || self.steps.front().is_some_and(old) {
            self.steps.pop_front();
        }
        self.steps.push_back(Reported {
            stream,
            id: step.id,
            first_ns: step.first_enqueue_ns,
            last_ns: exit_ns,
            at_ns: now_ns,
            lower_ns: step.lower_ns,
            upper_ns: step.upper_ns,
        });
    }

    pub(super) fn clear(&mut self) {
        self.forgotten_ns = self.ops.back().map_or(self.forgotten_ns, |op| op.end_ns);
        self.ops.clear();
        self.marks.clear();
        self.steps.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.ops.len() + self.steps.len() + self.marks.len()
    }
}

/// A completed operation with its bounds.
pub(super) fn completed(
    pid: u32,
    op: Op,
    stream: StreamKey,
    step: u64,
    method: Method,
    (earliest_start_ns, fact): (u64, Fact),
) -> OpDone {
    let upper_ns = fact.exit_ns.saturating_sub(earliest_start_ns);
    let (lower_ns, upper_ns, method) = match op.elapsed {
        Some((lower, upper)) => narrowed((0, upper_ns), (lower, upper), method),
        None => (0, upper_ns, method),
    };
    OpDone {
        pid,
        op,
        stream,
        step: Some(step),
        method,
        earliest_start_ns,
        latest_end_ns: fact.exit_ns,
        lower_ns,
        upper_ns,
    }
}

/// An operation of which no fact is to be had any more.
pub(super) fn given_up(
    pid: u32,
    op: Op,
    stream: StreamKey,
    earliest_start_ns: u64,
    now_ns: u64,
) -> OpDone {
    let latest_end_ns = now_ns.max(earliest_start_ns);
    OpDone {
        pid,
        op,
        stream,
        step: None,
        method: Method::Estimated,
        earliest_start_ns,
        latest_end_ns,
        lower_ns: 0,
        upper_ns: latest_end_ns - earliest_start_ns,
    }
}

/// Old bounds and new ones: lower, upper, and the method, which changes only where they help.
fn narrowed(old: (u64, u64), new: (u64, u64), method: Method) -> (u64, u64, Method) {
    if new.0 > old.1 {
        // They contradict each other: what the host saw stands.
        return (old.0, old.1, method);
    }
    let upper = old.1.min(new.1);
    let lower = old.0.max(new.0).min(upper);
    let method = if (lower, upper) == old { method } else { Method::EventElapsed };
    (lower, upper, method)
}

/// `cuEventElapsedTime`'s answer in ns: a `float` of ms in the low four bytes.
fn elapsed_ns(out: u64) -> Option<u64> {
    let ms = f64::from(f32::from_bits(out as u32));
    (ms.is_finite() && (0.0..1e12).contains(&ms)).then_some((ms * 1e6) as u64)
}

impl Proc {
    /// The application asked for the device's time between two records.
    pub(super) fn on_elapsed(
        &mut self,
        at: &At,
        (start, end): (u64, u64),
        out: Option<u64>,
        env: &mut Env<'_>,
    ) {
        let Some(elapsed) = out.and_then(elapsed_ns) else { return };
        let (start, end) = match (
            self.events.position(start, at.enter_ns),
            self.events.position(end, at.enter_ns),
        ) {
            (
                Position::At { record: start, until_ns: a },
                Position::At { record: end, until_ns: b },
            ) if start.stream == end.stream && a == start.exit_ns && b == end.exit_ns => {
                (start, end)
            }
            _ => return,
        };
        let upper = elapsed.saturating_add(margin(elapsed));
        let lower = self.least(&start, &end, elapsed);
        self.narrow_outstanding(&start, &end, (lower, upper));
        self.refine_ops(&start, &end, (lower, upper), env);
        self.refine_steps(&start, &end, (lower, upper), env);
    }

    /// The least time that the one operation between the records took; 0 where there were others
    /// or the stream may have waited for something.
    fn least(&self, start: &Record, end: &Record, elapsed: u64) -> u64 {
        let until_ns = self.recent.ops.back().map_or(end.exit_ns, |op| op.end_ns.max(end.exit_ns));
        let apart = |enqueue_ns: u64, end_ns: u64| end_ns < start.enter_ns || enqueue_ns > until_ns;
        let mut between = 0_u32;
        for (id, stream) in self.streams.iter() {
            for op in stream.ops() {
                if id != start.stream && !apart(op.enqueue_first_ns, u64::MAX) {
                    return 0;
                }
                // Neither wholly before the first record nor behind the second.
                let inside = op.exit_ns.is_none_or(|exit| exit > start.enter_ns)
                    && op.enqueue_first_ns < end.exit_ns;
                between += u32::from(id == start.stream && inside);
            }
        }
        for op in &self.recent.ops {
            if op.stream != start.stream && !apart(op.enqueue_ns, op.end_ns) || op.lost {
                return 0;
            }
            let inside = op.exit_ns > start.enter_ns && op.enqueue_ns < end.exit_ns;
            between += u32::from(op.stream == start.stream && inside);
        }
        let known = self.recent.forgotten_ns < start.enter_ns
            && self.streams.was_clean(start.stream, &self.contexts, start.enter_ns)
            && self.streams.get(start.stream).is_some_and(|s| s.last_mark_ns < start.enter_ns);
        if between != 1 || !known {
            return 0;
        }
        let host = end.exit_ns.saturating_sub(start.enter_ns);
        elapsed.saturating_sub(margin(elapsed)).saturating_sub(host).saturating_sub(IDLE_MARGIN_NS)
    }

    fn narrow_outstanding(&mut self, start: &Record, end: &Record, bounds: (u64, u64)) {
        let Some(stream) = self.streams.get_mut(start.stream) else { return };
        for op in stream.ops_mut() {
            if op.enqueue_first_ns >= start.exit_ns
                && op.exit_ns.is_some_and(|exit| exit <= end.enter_ns)
            {
                let old = op.elapsed.unwrap_or((0, u64::MAX));
                op.elapsed = Some((old.0.max(bounds.0), old.1.min(bounds.1)));
            }
        }
    }

    fn refine_ops(&mut self, start: &Record, end: &Record, bounds: (u64, u64), env: &mut Env<'_>) {
        for op in &mut self.recent.ops {
            if op.stream != start.stream || !op.lies_between(start, end) {
                continue;
            }
            let old = (op.lower_ns, op.upper_ns);
            let (lower_ns, upper_ns, method) = narrowed(old, bounds, Method::SyncBounded);
            if method == Method::EventElapsed {
                (op.lower_ns, op.upper_ns) = (lower_ns, upper_ns);
                let subject = Subject::Op(op.id);
                let pid = self.pid;
                env.out.push(Out::Refine(Refine { pid, subject, method, lower_ns, upper_ns }));
            }
        }
    }

    fn refine_steps(
        &mut self,
        start: &Record,
        end: &Record,
        bounds: (u64, u64),
        env: &mut Env<'_>,
    ) {
        for step in &mut self.recent.steps {
            let between = step.first_ns >= start.exit_ns && step.last_ns <= end.enter_ns;
            if step.stream != start.stream || !between {
                continue;
            }
            let old = (step.lower_ns, step.upper_ns);
            let (lower_ns, upper_ns, method) = narrowed(old, bounds, Method::SyncBounded);
            if method == Method::EventElapsed {
                (step.lower_ns, step.upper_ns) = (lower_ns, upper_ns);
                let subject = Subject::Step(step.id);
                let pid = self.pid;
                env.out.push(Out::Refine(Refine { pid, subject, method, lower_ns, upper_ns }));
            }
        }
    }
}
