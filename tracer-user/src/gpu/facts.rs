//! Completion facts: what a returned call proves, and the steps that this makes.
//!
//! A fact is a position in a stream: everything whose enqueuing call had returned by the cut-off
//! lies before it and is complete when the proving call returns. From there it spreads: to what an
//! event wait before the position waited for, and over the legacy default stream, which takes its
//! place behind all earlier work of the blocking streams of its context, as they do behind it.
//! Source: NVIDIA's pages on API synchronisation and on stream synchronisation behaviour.
//!
//! Whether a synchronise, query or record on the legacy default stream itself waits for other
//! streams is not promised, so only operations on it spread.

use std::collections::BTreeMap;

use super::bounds;
use super::decode::Target;
use super::event::Position;
use super::op::{Op, OpDone, OpKind, StreamKey};
use super::out::{Fact, Method, Out, Step};
use super::proc::{At, Env, Proc};
use super::recent::Completed;
use super::stream::StreamId;

/// Stream and cut-off, ns.
pub(super) type Root = (StreamId, u64);

/// Where a completion call or query looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// What its success proves.
    pub(super) proof: Vec<Root>,
    /// What it may wait for: all that was entered before the instant.
    pub(super) may: Vec<Root>,
    /// The record behind which a query looks: return of the record call, ns.
    pub(super) behind: Option<Root>,
    /// Part of what it waits for is not known.
    pub(super) unknown: bool,
    /// The whole context.
    pub(super) context: Option<super::context::Ctx>,
}

#[derive(Debug, Default)]
struct Spread {
    taken: BTreeMap<StreamId, Vec<Op>>,
    /// Later stream, earlier stream.
    links: Vec<(StreamId, StreamId)>,
}

impl Proc {
    /// Where a call looks. `succeeded`: what contradicts that is put right.
    pub(super) fn reach(
        &mut self,
        at: &At,
        target: Target,
        succeeded: bool,
        env: &mut Env<'_>,
    ) -> Reach {
        match target {
            Target::Stream(stream) => {
                let (id, _) = self.stream_of(at, stream, env);
                let capture = self.streams.get(id).and_then(|stream| stream.capture);
                if let Some(capture) = capture.filter(|_| succeeded) {
                    self.close_capture(capture);
                }
                Reach {
                    proof: vec![(id, at.enter_ns)],
                    may: vec![(id, at.exit_ns)],
                    ..Reach::default()
                }
            }
            Target::Event(event) => match self.events.position(event, at.enter_ns) {
                Position::At { record, until_ns } => Reach {
                    proof: vec![(record.stream, record.enter_ns)],
                    may: vec![(record.stream, until_ns)],
                    behind: Some((record.stream, until_ns)),
                    ..Reach::default()
                },
                Position::Never => Reach::default(),
                Position::Captured(record) => {
                    if let Some(capture) = record.capture.filter(|_| succeeded && !record.external)
                    {
                        self.close_capture(capture);
                    }
                    Reach { unknown: true, ..Reach::default() }
                }
                Position::Unknown => Reach { unknown: true, ..Reach::default() },
            },
            Target::Context(argument) => self.context_reach(at, argument),
        }
    }

    fn context_reach(&mut self, at: &At, argument: u64) -> Reach {
        let Some(ctx) = self.context_meant(at, argument) else {
            let may = self.streams.iter().map(|(id, _)| (id, at.exit_ns)).collect();
            return Reach { may, unknown: true, ..Reach::default() };
        };
        let mut reach = Reach { context: Some(ctx), ..Reach::default() };
        for (id, stream) in self.streams.iter() {
            if self.contexts.same(stream.ctx, Some(ctx)) {
                reach.proof.push((id, at.enter_ns));
            }
            if self.contexts.may_be_same(stream.ctx, Some(ctx)) {
                reach.may.push((id, at.exit_ns));
            }
        }
        reach
    }

    /// Everything before the roots is complete at `fact.exit_ns`; `own` too, the proving copy
    /// itself (with it: whether nothing else was outstanding). Answers the steps.
    pub(super) fn prove(
        &mut self,
        roots: &[Root],
        own: Option<(u64, bool)>,
        fact: Fact,
        env: &mut Env<'_>,
    ) -> Vec<u64> {
        let spread = self.spread(roots, own.map(|own| own.0), fact.exit_ns, env);
        let numbers: BTreeMap<StreamId, u64> = spread
            .taken
            .iter()
            .filter(|(_, ops)| !ops.is_empty())
            .map(|(id, _)| (*id, env.ids.step()))
            .collect();
        for (id, ops) in spread.taken {
            let Some(number) = numbers.get(&id) else { continue };
            let mut after: Vec<u64> = spread
                .links
                .iter()
                .filter(|(later, earlier)| *later == id && *earlier != id)
                .filter_map(|(_, earlier)| numbers.get(earlier).copied())
                .collect();
            after.sort_unstable();
            after.dedup();
            let direct = ops.len() == 1 && own.is_some_and(|own| own.1);
            self.complete(id, ops, *number, after, direct, fact, env);
        }
        for (id, cutoff_ns) in roots {
            if let Some(stream) = self.streams.get_mut(*id)
                && *cutoff_ns >= self.doubted_ns
            {
                stream.quiet.set(fact.exit_ns);
                stream.certain.set(fact.exit_ns);
            }
        }
        numbers.into_values().collect()
    }

    /// Takes everything that lies before the roots.
    fn spread(&mut self, roots: &[Root], own: Option<u64>, now_ns: u64, env: &Env<'_>) -> Spread {
        let mut spread = Spread::default();
        let mut reached: BTreeMap<StreamId, u64> = BTreeMap::new();
        let mut work = roots.to_vec();
        while let Some((id, cutoff_ns)) = work.pop() {
            match reached.get_mut(&id) {
                Some(reached) if *reached >= cutoff_ns => continue,
                Some(reached) => *reached = cutoff_ns,
                None => {
                    reached.insert(id, cutoff_ns);
                }
            }
            let ops = self.streams.take(id, cutoff_ns, own);
            let marks = self.streams.get_mut(id).map(|s| s.take_marks(cutoff_ns));
            for mark in marks.into_iter().flatten() {
                self.recent.push_mark(id, mark, now_ns, env.limits.recent);
                let Some((earlier, cutoff_ns, _)) = mark.source else { continue };
                spread.links.push((id, earlier));
                work.push((earlier, cutoff_ns));
            }
            if let Some(last_ns) = ops.iter().map(|op| op.enqueue_last_ns).max() {
                for peer in self.streams.legacy_peers(id, &self.contexts) {
                    spread.links.push((id, peer));
                    work.push((peer, last_ns));
                }
                self.settle(id, &ops, now_ns);
            }
            spread.taken.entry(id).or_default().extend(ops);
        }
        spread
    }

    /// Operations enqueued under trace were complete: so is whatever came before them unseen.
    fn settle(&mut self, id: StreamId, ops: &[Op], now_ns: u64) {
        if ops.iter().all(|op| op.lost || op.enqueue_first_ns < self.doubted_ns) {
            return;
        }
        if let Some(stream) = self.streams.get_mut(id) {
            stream.proven.set(now_ns);
            if let Some(ctx) = stream.ctx
                && (stream.is_legacy() || stream.blocking == Some(true))
            {
                self.contexts.settle(ctx, now_ns);
            }
        }
    }

    /// Reports operations as complete, and their step.
    #[expect(clippy::too_many_arguments, reason = "the parts of one step")]
    fn complete(
        &mut self,
        id: StreamId,
        mut ops: Vec<Op>,
        number: u64,
        after: Vec<u64>,
        direct: bool,
        fact: Fact,
        env: &mut Env<'_>,
    ) {
        let Some(stream) = self.streams.get(id) else { return };
        ops.sort_by_key(|op| (op.enqueue_first_ns, op.id));
        let method = if direct { Method::Direct } else { Method::SyncBounded };
        let done: Vec<OpDone> = ops
            .into_iter()
            .map(|op| {
                let earliest = stream.earliest_start(&op).min(fact.exit_ns);
                bounds::completed(self.pid, op, stream.key, number, method, (earliest, fact))
            })
            .collect();
        let mut step = step_of(&done, number, fact, env.limits.step_list);
        step.pid = self.pid;
        step.stream = stream.key;
        step.after = after;
        step.lost |= !stream.certain.holds();
        let returned = done.iter().filter_map(|done| done.op.exit_ns).max();
        let returned = returned.unwrap_or(fact.exit_ns);
        self.recent.push_step(id, &step, returned, env.limits.recent);
        for done in done {
            self.recent.push(Completed::of(id, &done), env.limits.recent);
            env.out.push(Out::Op(done));
        }
        env.out.push(Out::Step(step));
        self.streams.reap(id);
    }

    /// Reports operations as given up: no fact covers them.
    pub(super) fn give_up(&mut self, id: StreamId, ops: Vec<Op>, now_ns: u64, env: &mut Env<'_>) {
        if ops.is_empty() {
            return;
        }
        env.counters.ops_estimated += ops.len() as u64;
        let mut key = StreamKey::Unknown;
        let stream = self.streams.get_mut(id);
        if let Some(stream) = &stream {
            key = stream.key;
        }
        for op in ops {
            let earliest = stream.as_ref().map_or(op.enqueue_first_ns, |s| s.earliest_start(&op));
            env.out.push(Out::Op(bounds::given_up(self.pid, op, key, earliest, now_ns)));
        }
        if let Some(stream) = stream {
            stream.forgot();
        }
    }
}

/// The step that operations in order of enqueue make.
fn step_of(done: &[OpDone], id: u64, fact: Fact, list: usize) -> Step {
    let first = done.iter().map(|done| done.op.enqueue_first_ns).min();
    let start = done.iter().map(|done| done.earliest_start_ns).min();
    let mut step = Step {
        id,
        pid: 0,
        stream: StreamKey::Unknown,
        tids: Vec::new(),
        ops: done.iter().take(list).map(|done| done.op.id).collect(),
        op_count: done.len() as u64,
        first_enqueue_ns: first.unwrap_or(fact.enter_ns),
        last_enqueue_ns: 0,
        fact,
        after: Vec::new(),
        method: Method::SyncBounded,
        lower_ns: 0,
        upper_ns: fact.exit_ns.saturating_sub(start.unwrap_or(fact.exit_ns)),
        h2d_bytes: 0,
        d2h_bytes: 0,
        launches: 0,
        graph_launches: 0,
        kinds: super::op::Kinds::default(),
        context_known: true,
        lost: false,
    };
    for done in done {
        let op = &done.op;
        match op.kind {
            OpKind::H2d => step.h2d_bytes = step.h2d_bytes.saturating_add(op.bytes),
            OpKind::D2h => step.d2h_bytes = step.d2h_bytes.saturating_add(op.bytes),
            OpKind::Kernel => step.launches = step.launches.saturating_add(op.count),
            OpKind::Graph => step.graph_launches = step.graph_launches.saturating_add(op.count),
            _ => {}
        }
        step.kinds.insert(op.kind);
        step.last_enqueue_ns = step.last_enqueue_ns.max(op.enqueue_last_ns);
        step.lower_ns = step.lower_ns.max(done.lower_ns);
        step.context_known &= op.context_known;
        step.lost |= op.lost;
        if step.tids.len() < list && !step.tids.contains(&op.tid) {
            step.tids.push(op.tid);
        }
    }
    step.tids.sort_unstable();
    if let [only] = done {
        step.method = only.method;
        step.upper_ns = step.upper_ns.min(only.upper_ns);
    }
    step
}
