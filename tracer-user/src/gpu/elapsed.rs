//! `cuEventElapsedTime`: the device's own clock.
//!
//! It answers the time between two records. Operations between them on one stream took no more
//! than that, plus [`margin`]. Where it was one operation and no other stream of the process was
//! active, it also took no less than that, minus the margin, the host time in which the three
//! calls were made (the device may have idled meanwhile), and [`IDLE_MARGIN_NS`] for the device to
//! notice. A call of another thread that overlaps and is told later takes the lower bound back.

use super::bounds::narrowed;
use super::event::{Position, Record};
use super::out::{Method, Out, Refine, Subject};
use super::proc::{At, Env, Proc};
use super::recent::Lowered;

/// Resolution of an event's time stamp, ns: cuda.h says about 0.5 µs, there are two.
const RESOLUTION_NS: u64 = 1_000;
/// Time that an idle device may take to begin what was enqueued, and to stamp the record behind
/// it, ns. Launch latencies are a few µs; the rest is for clocks that ramp up.
const IDLE_MARGIN_NS: u64 = 50_000;
/// What an elapsed time may be wrong by, ns: its resolution, the rounding of the `float` (24 bits),
/// and 1/4096 for the drift between the device's clock and the host's.
fn margin(elapsed_ns: u64) -> u64 {
    RESOLUTION_NS + elapsed_ns / 4_096 + elapsed_ns / (1 << 22)
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
        // What is not complete yet may still turn out to have waited for something.
        self.narrow_outstanding(&start, &end, upper);
        for (subject, end_ns, lower_ns, upper_ns) in self.narrow(&start, &end, (lower, upper)) {
            let (pid, method) = (self.pid, Method::EventElapsed);
            env.out.push(Out::Refine(Refine { pid, subject, method, lower_ns, upper_ns }));
            if lower_ns > 0 {
                let lowered = Lowered { subject, tid: at.tid, end_ns, upper_ns };
                self.recent.push_lowered(lowered, env.limits.recent);
            }
        }
    }

    /// A call of another thread put something on a stream while operations ran of which it was
    /// said that they ran alone.
    pub(super) fn retract(&mut self, at: &At, env: &mut Env<'_>) {
        for lowered in self.recent.take_lowered(at.tid, at.enter_ns) {
            let Lowered { subject, upper_ns, .. } = lowered;
            let (pid, method) = (self.pid, Method::EventElapsed);
            env.out.push(Out::Refine(Refine { pid, subject, method, lower_ns: 0, upper_ns }));
        }
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
        let known = !self.recent.forgot_since(start.enter_ns)
            && self.streams.was_clean(start.stream, &self.contexts, start.enter_ns)
            && self.streams.get(start.stream).is_some_and(|s| s.last_mark_ns < start.enter_ns);
        if between != 1 || !known {
            return 0;
        }
        let host = end.exit_ns.saturating_sub(start.enter_ns);
        elapsed.saturating_sub(margin(elapsed)).saturating_sub(host).saturating_sub(IDLE_MARGIN_NS)
    }

    fn narrow_outstanding(&mut self, start: &Record, end: &Record, upper: u64) {
        let Some(stream) = self.streams.get_mut(start.stream) else { return };
        for op in stream.ops_mut() {
            if op.enqueue_first_ns >= start.exit_ns
                && op.exit_ns.is_some_and(|exit| exit <= end.enter_ns)
            {
                op.elapsed = Some(op.elapsed.unwrap_or(u64::MAX).min(upper));
            }
        }
    }

    /// Narrows what was completed between the records: subject, end, lower and upper bound.
    fn narrow(
        &mut self,
        start: &Record,
        end: &Record,
        bounds: (u64, u64),
    ) -> Vec<(Subject, u64, u64, u64)> {
        let mut changed = Vec::new();
        for op in &mut self.recent.ops {
            if op.stream == start.stream && op.lies_between(start, end) {
                let (lower, upper, helps) = narrowed((op.lower_ns, op.upper_ns), bounds);
                if helps {
                    (op.lower_ns, op.upper_ns) = (lower, upper);
                    changed.push((op.subject(), op.end_ns, lower, upper));
                }
            }
        }
        for step in &mut self.recent.steps {
            let between = step.first_ns >= start.exit_ns && step.last_ns <= end.enter_ns;
            if step.stream == start.stream && between {
                let (lower, upper, helps) = narrowed((step.lower_ns, step.upper_ns), bounds);
                if helps {
                    (step.lower_ns, step.upper_ns) = (lower, upper);
                    changed.push((Subject::Step(step.id), step.at_ns, lower, upper));
                }
            }
        }
        changed
    }
}
