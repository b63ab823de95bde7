//! Events, waits for them, streams and captures as calls make them.
//!
//! Launches, copies and records on a stream under capture are recorded, not run. A stream that
//! waits for an event recorded under capture joins the capture. Success of a synchronise or query
//! on a stream or event believed to be under capture shows that it is not.

use super::decode::StreamRef;
use super::event::{Position, Record};
use super::graph::Nodes;
use super::op::{OpKind, StreamKey};
use super::proc::{At, Env, Proc};
use super::since::Since;
use super::stream::{Mark, StreamId};

impl Proc {
    pub(super) fn on_record(
        &mut self,
        at: &At,
        event: u64,
        stream: StreamRef,
        external: bool,
        env: &mut Env<'_>,
    ) {
        let (id, _) = self.stream_of(at, stream, env);
        self.acted(id, at);
        self.reconsider(at, id, None, env);
        let capture = self.streams.get(id).and_then(|stream| stream.capture);
        let record = Record {
            stream: id,
            enter_ns: at.enter_ns,
            exit_ns: at.exit_ns,
            capture,
            external: external && capture.is_some(),
        };
        env.counters.events_evicted += self.events.recorded(event, record, env.limits.events);
    }

    fn acted(&mut self, id: StreamId, at: &At) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.last_action_ns = stream.last_action_ns.max(Some(at.exit_ns));
        }
    }

    pub(super) fn on_wait_event(
        &mut self,
        at: &At,
        stream: StreamRef,
        event: u64,
        env: &mut Env<'_>,
    ) {
        let (id, _) = self.stream_of(at, stream, env);
        self.acted(id, at);
        let source = match self.events.position(event, at.enter_ns) {
            Position::Never => return,
            // The stream joins the capture.
            Position::Captured(record) if self.captures.is_active(record.capture) => {
                if let Some(stream) = self.streams.get_mut(id)
                    && !record.external
                {
                    stream.capture = record.capture;
                }
                return;
            }
            Position::At { record, until_ns } if until_ns == record.exit_ns => {
                Some((record.stream, record.enter_ns, until_ns))
            }
            Position::Captured(_) | Position::At { .. } | Position::Unknown => None,
        };
        if let Some(stream) = self.streams.get_mut(id)
            && stream.capture.is_none()
        {
            let mark = Mark { enter_ns: at.enter_ns, exit_ns: at.exit_ns, source };
            env.counters.marks_evicted += u64::from(!stream.mark(mark, env.limits.marks));
            self.reconsider(at, id, None, env);
        }
    }

    pub(super) fn on_stream_create(
        &mut self,
        at: &At,
        out: Option<u64>,
        flags: u64,
        env: &mut Env<'_>,
    ) {
        let Some(handle) = out.filter(|handle| *handle > 2) else { return };
        let key = StreamKey::Handle(handle);
        self.streams.unlink(key);
        let (id, _) = self.stream_of(at, StreamRef::Passed(handle), env);
        let stack = self.threads.get(&at.tid).map(|thread| &thread.ctx);
        let (ctx, known) = self.contexts.of(at.tid, stack);
        if let Some(stream) = self.streams.get_mut(id) {
            // `CU_STREAM_NON_BLOCKING` is 1.
            stream.blocking = Some(flags & 1 == 0);
            stream.ctx = known.then_some(ctx);
            stream.made_ns = at.exit_ns;
            stream.quiet = Since::ALWAYS;
            stream.certain = Since::ALWAYS;
        }
    }

    pub(super) fn on_stream_destroy(&mut self, at: &At, handle: u64) {
        let key = StreamKey::Handle(handle);
        let stream = self.streams.find(key).and_then(|id| self.streams.get(id));
        // Another thread may have been given the handle anew before this call returned.
        if stream.is_some_and(|stream| stream.made_ns <= at.enter_ns) {
            self.streams.unlink(key);
        }
    }

    pub(super) fn begin_capture(
        &mut self,
        at: &At,
        stream: StreamRef,
        graph: Option<u64>,
        env: &mut Env<'_>,
    ) {
        let (id, _) = self.stream_of(at, stream, env);
        let cap = env.limits.graphs;
        // What a graph held before is not known.
        let (capture, mut evicted) = self.captures.begin(graph.is_some(), cap);
        if let Some(graph) = graph {
            evicted += self.graphs.extended(graph, cap);
        }
        env.counters.graphs_evicted += evicted;
        if let Some(stream) = self.streams.get_mut(id) {
            stream.capture = Some(capture);
        }
    }

    pub(super) fn end_capture(&mut self, at: &At, stream: StreamRef, env: &mut Env<'_>) {
        let (id, _) = self.stream_of(at, stream, env);
        let nodes = match self.streams.get(id).and_then(|stream| stream.capture) {
            Some(capture) => self.close_capture(capture),
            None => {
                self.withdraw(id, env);
                None
            }
        };
        if let Some(thread) = self.threads.get_mut(&at.tid) {
            thread.ended = Some(nodes);
        }
    }

    /// Ends a capture on all streams that joined it.
    pub(super) fn close_capture(&mut self, capture: u64) -> Option<Nodes> {
        for (_, stream) in self.streams.iter_mut() {
            if stream.capture == Some(capture) {
                stream.capture = None;
            }
        }
        self.captures.end(capture)
    }

    /// The stream was capturing before its begin could be seen: what it seemed to hold did not
    /// run. The same for streams that wait for positions in it.
    fn withdraw(&mut self, id: StreamId, env: &mut Env<'_>) {
        let mut streams = vec![id];
        streams.extend(self.streams.iter().filter_map(|(other, stream)| {
            let joined = stream.marks().iter().any(|mark| mark.source.is_some_and(|s| s.0 == id));
            joined.then_some(other)
        }));
        for id in streams {
            env.counters.ops_withdrawn += self.streams.take_all(id).len() as u64;
            if let Some(stream) = self.streams.get_mut(id) {
                stream.take_marks(u64::MAX);
                stream.forgot();
            }
        }
    }

    /// Records an operation into the stream's capture. Answers the capture, where there is one.
    pub(super) fn captured(
        &mut self,
        id: StreamId,
        kind: OpKind,
        count: u64,
        env: &mut Env<'_>,
    ) -> Option<u64> {
        let capture = self.streams.get(id)?.capture?;
        self.captures.add(capture, kind, count);
        env.counters.ops_captured += count;
        Some(capture)
    }
}
