//! Streams: queues of operations in the order in which they were enqueued.

use std::collections::{BTreeMap, VecDeque};

use super::context::{Contexts, Ctx};
use super::op::{Op, StreamKey};
use super::since::Since;

/// Names a stream for as long as it has work, beyond the life of its handle.
pub(super) type StreamId = u64;

/// `cuStreamWaitEvent`: what is enqueued behind it waits for a position in a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) enter_ns: u64,
    pub(super) exit_ns: u64,
    /// Stream and cut-offs: what had returned by the second (ns) is certainly waited for, what was
    /// entered from the third (ns) on is certainly not. None where the event is not known.
    pub(super) source: Option<(StreamId, u64, u64)>,
}

/// A query said that a position in the stream was not reached yet.
#[derive(Clone, Copy, Debug)]
struct Floor {
    /// What was entered from then on lies behind the position, ns.
    behind_ns: u64,
    /// Not reached yet, ns.
    at_ns: u64,
}

/// One stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) key: StreamKey,
    /// Its context, where known.
    pub(super) ctx: Option<Ctx>,
    /// Whether it synchronises with the legacy default stream, where known.
    pub(super) blocking: Option<bool>,
    /// Not yet proven complete, by `enqueue_first_ns`.
    ops: VecDeque<Op>,
    marks: VecDeque<Mark>,
    floors: VecDeque<Floor>,
    /// Return of the last mark, ns.
    pub(super) last_mark_ns: u64,
    /// Return of the last record or wait on it, ns: on the legacy default stream these too may
    /// take their place behind other streams.
    pub(super) last_action_ns: Option<u64>,
    /// The capture in progress.
    pub(super) capture: Option<u64>,
    /// An operation enqueued under trace was proven complete: whatever it could have waited for
    /// unseen is over.
    pub(super) proven: Since,
    /// Nothing enqueued unseen on this stream itself is outstanding.
    pub(super) quiet: Since,
    /// No events were lost since the last fact for the whole stream.
    pub(super) certain: Since,
    /// The latest time told of when it was first used, ns.
    pub(super) seen_ns: u64,
    /// Return of the call that made it, where that was seen, ns.
    pub(super) made_ns: u64,
    /// Its handle is gone.
    pub(super) dead: bool,
    /// Last used, ns.
    used_ns: u64,
}

impl Stream {
    fn new(key: StreamKey, uncertain: bool) -> Self {
        let (ctx, blocking) = match key {
            StreamKey::Legacy(ctx) => (Some(ctx), None),
            StreamKey::PerThread(ctx, _) => (Some(ctx), Some(true)),
            StreamKey::Handle(_) | StreamKey::Unknown => (None, None),
        };
        Self {
            key,
            ctx,
            blocking,
            ops: VecDeque::new(),
            marks: VecDeque::new(),
            floors: VecDeque::new(),
            last_mark_ns: 0,
            last_action_ns: None,
            capture: None,
            proven: Since::NEVER,
            quiet: Since::NEVER,
            certain: if uncertain { Since::NEVER } else { Since::ALWAYS },
            seen_ns: 0,
            made_ns: 0,
            dead: false,
            used_ns: 0,
        }
    }

    /// Not yet proven complete, by `enqueue_first_ns`.
    pub(super) fn ops(&self) -> &VecDeque<Op> {
        &self.ops
    }

    pub(super) fn ops_mut(&mut self) -> impl Iterator<Item = &mut Op> {
        self.ops.iter_mut()
    }

    pub(super) fn marks(&self) -> &VecDeque<Mark> {
        &self.marks
    }

    pub(super) fn is_legacy(&self) -> bool {
        matches!(self.key, StreamKey::Legacy(_))
    }

    /// Its handle is gone and nothing is outstanding.
    fn is_done(&self) -> bool {
        self.dead && self.ops.is_empty() && self.marks.is_empty()
    }

    fn push(&mut self, op: Op) {
        let behind = self.ops.partition_point(|o| o.enqueue_first_ns <= op.enqueue_first_ns);
        self.ops.insert(behind, op);
    }

    /// Its operation with that number; searched from the latest on.
    pub(super) fn op_mut(&mut self, id: u64) -> Option<&mut Op> {
        self.ops.iter_mut().rev().find(|op| op.id == id)
    }

    /// Takes the operations whose calls had returned at `cutoff_ns`, and the operation `own`.
    pub(super) fn take(&mut self, cutoff_ns: u64, own: Option<u64>) -> Vec<Op> {
        let entered = self.ops.partition_point(|op| op.enqueue_first_ns <= cutoff_ns);
        let covered =
            |op: &Op| op.exit_ns.is_some_and(|exit| exit <= cutoff_ns) || own == Some(op.id);
        if self.ops.iter().take(entered).all(covered) {
            return self.ops.drain(..entered).collect();
        }
        let (taken, kept): (Vec<Op>, Vec<Op>) = self.ops.drain(..entered).partition(covered);
        for op in kept.into_iter().rev() {
            self.ops.push_front(op);
        }
        taken
    }

    /// Takes the marks whose calls had returned at `cutoff_ns`.
    pub(super) fn take_marks(&mut self, cutoff_ns: u64) -> Vec<Mark> {
        let (taken, kept): (Vec<Mark>, Vec<Mark>) =
            self.marks.drain(..).partition(|mark| mark.exit_ns <= cutoff_ns);
        self.marks = kept.into();
        taken
    }

    /// Adds a mark. Answers false where an older one had to go; what the stream waits for is then
    /// no longer known.
    pub(super) fn mark(&mut self, mark: Mark, cap: usize) -> bool {
        self.last_mark_ns = self.last_mark_ns.max(mark.exit_ns);
        self.marks.push_back(mark);
        if self.marks.len() <= cap {
            return true;
        }
        self.marks.pop_front();
        self.forgot();
        false
    }

    /// The position behind which lies what was entered from `behind_ns` on was not reached at
    /// `at_ns`.
    pub(super) fn not_ready(&mut self, behind_ns: u64, at_ns: u64, cap: usize) {
        if let Some(floor) = self.floors.iter_mut().find(|floor| floor.behind_ns == behind_ns) {
            floor.at_ns = floor.at_ns.max(at_ns);
            return;
        }
        self.floors.push_back(Floor { behind_ns, at_ns });
        if self.floors.len() > cap {
            self.floors.pop_front();
        }
    }

    /// The earliest instant at which the operation can have started, ns.
    pub(super) fn earliest_start(&self, op: &Op) -> u64 {
        self.floors
            .iter()
            .filter(|floor| floor.behind_ns <= op.enqueue_first_ns)
            .map(|floor| floor.at_ns)
            .fold(op.enqueue_first_ns, u64::max)
    }

    /// Something outstanding on it is no longer known.
    pub(super) fn forgot(&mut self) {
        self.proven = Since::NEVER;
        self.quiet = Since::NEVER;
    }

    /// Events were lost.
    pub(super) fn doubt(&mut self) {
        self.forgot();
        self.certain = Since::NEVER;
        self.capture = None;
        if matches!(self.key, StreamKey::Handle(_)) {
            self.blocking = None;
            self.ctx = None;
        }
        for op in &mut self.ops {
            op.lost = true;
        }
    }
}

/// The streams of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    by_key: BTreeMap<StreamKey, StreamId>,
    all: BTreeMap<StreamId, Stream>,
    last: StreamId,
    /// Outstanding operations on all streams.
    outstanding: usize,
}

impl Streams {
    /// The stream of that name, made where it is new; the second answer says whether it was.
    /// `told_ns`: the latest time told of so far.
    pub(super) fn resolve(
        &mut self,
        key: StreamKey,
        (now_ns, told_ns): (u64, u64),
        uncertain: bool,
    ) -> (StreamId, bool) {
        if let Some(id) = self.by_key.get(&key) {
            if let Some(stream) = self.all.get_mut(id) {
                stream.used_ns = stream.used_ns.max(now_ns);
            }
            return (*id, false);
        }
        self.last += 1;
        let mut stream = Stream::new(key, uncertain);
        stream.used_ns = now_ns;
        stream.seen_ns = told_ns;
        self.all.insert(self.last, stream);
        self.by_key.insert(key, self.last);
        (self.last, true)
    }

    pub(super) fn get(&self, id: StreamId) -> Option<&Stream> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.all.get_mut(&id)
    }

    pub(super) fn find(&self, key: StreamKey) -> Option<StreamId> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        self.all.iter().map(|(id, stream)| (*id, stream))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (StreamId, &mut Stream)> {
        self.all.iter_mut().map(|(id, stream)| (*id, stream))
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Outstanding operations on all streams.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(super) fn push(&mut self, id: StreamId, op: Op) {
        if let Some(stream) = self.all.get_mut(&id) {
            stream.push(op);
            self.outstanding += 1;
        }
    }

    /// As [`Stream::take`]; what is taken is no longer counted as outstanding.
    pub(super) fn take(&mut self, id: StreamId, cutoff_ns: u64, own: Option<u64>) -> Vec<Op> {
        let taken = self.all.get_mut(&id).map(|s| s.take(cutoff_ns, own)).unwrap_or_default();
        self.outstanding = self.outstanding.saturating_sub(taken.len());
        taken
    }

    /// Takes everything that is outstanding.
    pub(super) fn take_all(&mut self, id: StreamId) -> Vec<Op> {
        let stream = self.all.get_mut(&id);
        let taken: Vec<Op> = stream.map(|s| s.ops.drain(..).collect()).unwrap_or_default();
        self.outstanding = self.outstanding.saturating_sub(taken.len());
        taken
    }

    /// Takes what has been outstanding longest.
    pub(super) fn take_oldest(&mut self, id: StreamId) -> Option<Op> {
        let op = self.all.get_mut(&id)?.ops.pop_front()?;
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(op)
    }

    /// The stream with most outstanding operations.
    pub(super) fn fullest(&self) -> Option<StreamId> {
        self.all.iter().max_by_key(|(_, stream)| stream.ops.len()).map(|(id, _)| *id)
    }

    /// The stream used longest ago, but not that one.
    pub(super) fn stalest(&self, but: StreamId) -> Option<StreamId> {
        self.all
            .iter()
            .filter(|(id, _)| **id != but)
            .min_by_key(|(_, stream)| stream.used_ns)
            .map(|(id, _)| *id)
    }

    /// The handle is gone; the stream stays while it has work.
    pub(super) fn unlink(&mut self, key: StreamKey) {
        if let Some(id) = self.by_key.remove(&key)
            && let Some(stream) = self.all.get_mut(&id)
        {
            stream.dead = true;
            self.reap(id);
        }
    }

    /// Forgets a stream; its operations have been taken.
    pub(super) fn remove(&mut self, id: StreamId) {
        if let Some(stream) = self.all.remove(&id)
            && self.by_key.get(&stream.key) == Some(&id)
        {
            self.by_key.remove(&stream.key);
        }
    }

    /// Forgets it where its handle is gone and nothing is outstanding.
    pub(super) fn reap(&mut self, id: StreamId) {
        if self.all.get(&id).is_some_and(|stream| stream.is_done()) {
            self.all.remove(&id);
        }
    }

    /// Keys that a predicate chooses.
    pub(super) fn keys(&self, chosen: impl Fn(&StreamKey) -> bool) -> Vec<StreamKey> {
        self.by_key.keys().filter(|key| chosen(key)).copied().collect()
    }

    /// Whether from that instant on nothing unseen can have been outstanding on the stream, nor in
    /// what it waits for.
    pub(super) fn was_clean(&self, id: StreamId, contexts: &Contexts, at_ns: u64) -> bool {
        let Some(stream) = self.all.get(&id) else { return true };
        if !stream.certain.held(at_ns) {
            return false;
        }
        if stream.proven.held(at_ns) || stream.ctx.is_some_and(|ctx| contexts.is_fresh(ctx)) {
            return true;
        }
        let ctx = stream.ctx.or((!contexts.several()).then_some(Ctx::Main));
        let settled =
            ctx.is_some_and(|ctx| contexts.was_settled(ctx, at_ns)) && !stream.is_legacy();
        stream.quiet.held(at_ns) && (stream.blocking == Some(false) || settled)
    }

    /// Streams between which and `id` the legacy default stream certainly keeps order: for it,
    /// all blocking streams of its context; for a blocking stream, it.
    pub(super) fn legacy_peers(&self, id: StreamId, contexts: &Contexts) -> Vec<StreamId> {
        let Some(stream) = self.all.get(&id) else { return Vec::new() };
        let same = |other: &Stream| contexts.same(stream.ctx, other.ctx);
        if stream.is_legacy() {
            let blocks = |other: &Stream| other.blocking == Some(true) && same(other);
            return self.iter().filter(|(_, s)| blocks(s)).map(|(id, _)| id).collect();
        }
        if stream.blocking != Some(true) {
            return Vec::new();
        }
        self.legacy().filter(|id| self.get(*id).is_some_and(same)).collect()
    }

    /// As [`Self::legacy_peers`], with all streams between which order is possible.
    pub(super) fn possible_peers(&self, id: StreamId, contexts: &Contexts) -> Vec<StreamId> {
        let Some(stream) = self.all.get(&id) else { return Vec::new() };
        let may = |other: &Stream| contexts.may_be_same(stream.ctx, other.ctx);
        if stream.is_legacy() {
            let blocks =
                |other: &Stream| !other.is_legacy() && other.blocking != Some(false) && may(other);
            return self.iter().filter(|(_, s)| blocks(s)).map(|(id, _)| id).collect();
        }
        if stream.blocking == Some(false) {
            return Vec::new();
        }
        self.legacy().filter(|id| self.get(*id).is_some_and(may)).collect()
    }

    /// The legacy default streams: one per context.
    fn legacy(&self) -> impl Iterator<Item = StreamId> {
        let keys = StreamKey::Legacy(Ctx::Main)..StreamKey::PerThread(Ctx::Main, 0);
        self.by_key.range(keys).map(|(_, id)| *id)
    }
}
