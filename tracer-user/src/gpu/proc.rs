//! One process: what its calls of the driver have left behind.

use std::collections::{BTreeMap, VecDeque};

use crate::intake::event::{Api, Call};

use super::context::{Contexts, CtxStack};
use super::decode::{self, Action, MemoryCall, StreamRef};
use super::event::Events;
use super::graph::{Captures, Graphs, Nodes};
use super::launch::Run;
use super::limits::{Counters, Ids, Limits};
use super::names::Names;
use super::op::StreamKey;
use super::out::{Fact, Failure, Out};
use super::outlook::Named;
use super::pinned::{Memory, Ranges};
use super::recent::Recent;
use super::since::Since;
use super::streak::{Streak, Unsent};
use super::stream::{StreamId, Streams};

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;
/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED` to `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`: what
/// `cuStreamEndCapture` answers when it has ended a capture without a graph.
const CAPTURE_ENDED: std::ops::RangeInclusive<i32> = 901..=904;

/// What every step of the work needs beside the process itself.
pub(super) struct Env<'a> {
    pub(super) out: &'a mut Vec<Out>,
    pub(super) limits: &'a Limits,
    pub(super) counters: &'a mut Counters,
    pub(super) ids: &'a mut Ids,
}

/// Who calls, what, when.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) tid: u32,
    pub(super) api: Api,
    pub(super) per_thread: bool,
    pub(super) enter_ns: u64,
    pub(super) exit_ns: u64,
}

impl At {
    pub(super) fn fact(&self) -> Fact {
        Fact { api: self.api, tid: self.tid, enter_ns: self.enter_ns, exit_ns: self.exit_ns }
    }
}

/// One thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Thread {
    pub(super) ctx: CtxStack,
    pub(super) run: Option<Run>,
    pub(super) streak: Option<Streak>,
    /// The thread's last call ended a capture; what it recorded, where that is certain.
    pub(super) ended: Option<Option<Nodes>>,
    /// Its birth was seen.
    pub(super) born: bool,
    /// Return of the last call that ends a streak of queries, ns.
    pub(super) busy_ns: u64,
    /// End of the last wait reported, ns.
    pub(super) waited_ns: u64,
    pub(super) used_ns: u64,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct Proc {
    pub(super) pid: u32,
    pub(super) contexts: Contexts,
    pub(super) threads: BTreeMap<u32, Thread>,
    pub(super) streams: Streams,
    pub(super) events: Events,
    pub(super) ranges: Ranges,
    pub(super) graphs: Graphs,
    pub(super) captures: Captures,
    pub(super) names: Names,
    pub(super) recent: Recent,
    /// Named waits, in the order of their ends.
    pub(super) named: VecDeque<Named>,
    /// When the last loss of events was told, ns; 0 where there was none. A fact says something of
    /// what was lost only where its position is later.
    pub(super) doubted_ns: u64,
    /// Last event, ns.
    pub(super) used_ns: u64,
}

impl Proc {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// Entries in all tables.
    pub(super) fn held(&self) -> usize {
        let on_streams: usize =
            self.streams.iter().map(|(_, s)| s.ops().len() + s.marks().len()).sum();
        self.threads.len()
            + self.streams.len()
            + on_streams
            + self.events.len()
            + self.ranges.len()
            + self.graphs.len()
            + self.captures.len()
            + self.names.len()
            + self.recent.len()
            + self.named.len()
    }

    /// A call with entry and return.
    pub(super) fn on_call(&mut self, tid: u32, exit_ns: u64, call: &Call, env: &mut Env<'_>) {
        let at = At {
            tid,
            api: call.api,
            per_thread: call.per_thread,
            enter_ns: call.enter_ns.min(exit_ns),
            exit_ns,
        };
        self.thread(tid, exit_ns, env);
        self.close_run(tid, at.enter_ns);
        let action = decode::action(call);
        let is_context = matches!(action, Action::Context(_));
        if !is_context && !matches!(action, Action::Query(_)) {
            self.end_streak(tid, env);
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.busy_ns = thread.busy_ns.max(exit_ns);
            }
        }
        let ended = self
            .threads
            .get_mut(&tid)
            .and_then(|thread| if is_context { None } else { thread.ended.take() });
        let answered = matches!(action, Action::Query(_) | Action::Elapsed { .. });
        if call.ret == 0 {
            self.act(&at, action, call, ended, env);
        } else if call.ret == NOT_READY && answered {
            if let Action::Query(target) = action {
                self.on_not_ready(&at, target, env);
            }
        } else {
            self.on_failure(&at, action, call.ret, env);
        }
    }

    fn act(
        &mut self,
        at: &At,
        action: Action,
        call: &Call,
        ended: Option<Option<Nodes>>,
        env: &mut Env<'_>,
    ) {
        match action {
            Action::Enqueue(enqueue) => self.on_enqueue(at, enqueue, env),
            Action::Sync(target) => self.on_sync(at, target, env),
            Action::Query(target) => {
                let [.., last_ns, count] = call.args;
                self.on_ready(at, target, Unsent { last_ns, count }, env);
            }
            Action::Elapsed { start, end } => {
                self.on_elapsed(at, (start, end), call.out, env);
            }
            Action::Record { event, stream, external } => {
                self.on_record(at, event, stream, external, env);
            }
            Action::WaitEvent { stream, event } => self.on_wait_event(at, stream, event, env),
            Action::StreamCreate { flags } => self.on_stream_create(at, call.out, flags, env),
            Action::StreamDestroy(handle) => self.on_stream_destroy(at, handle),
            Action::EventCreate => {
                let cap = env.limits.events;
                let evicted = call.out.map(|event| self.events.created(event, at.exit_ns, cap));
                env.counters.events_evicted += evicted.unwrap_or(0);
            }
            Action::EventDestroy(event) => self.events.destroyed(event, at.enter_ns),
            Action::BeginCapture { stream, graph } => self.begin_capture(at, stream, graph, env),
            Action::EndCapture(stream) => self.end_capture(at, stream, env),
            Action::Instantiate { graph } => {
                let cap = env.limits.graphs;
                env.counters.graphs_evicted +=
                    self.graphs.instantiated(graph, call.out, ended.flatten(), cap);
            }
            Action::GraphCreate => {
                let cap = env.limits.graphs;
                let evicted = call.out.map(|graph| self.graphs.created(graph, cap));
                env.counters.graphs_evicted += evicted.unwrap_or(0);
            }
            Action::GraphClone { of } => {
                let cap = env.limits.graphs;
                let evicted = call.out.map(|graph| self.graphs.cloned(graph, of, cap));
                env.counters.graphs_evicted += evicted.unwrap_or(0);
            }
            Action::GraphAdd { graph, part } => self.graphs.added(graph, part),
            Action::GraphNodeGone => self.graphs.node_gone(),
            Action::GraphDestroy(graph) => self.graphs.destroyed(graph),
            Action::ExecDestroy(exec) => self.graphs.exec_destroyed(exec),
            Action::Memory(memory) => self.on_memory(at, memory, call.out, env),
            Action::Context(context) => self.on_context(at, context, call.out, env),
            Action::Load => {}
            Action::Unload(holder) => self.names.unload(holder),
            Action::Function { holder } => {
                let cap = env.limits.functions;
                let handle = call.out.unwrap_or(0);
                let kept = self.names.insert(handle, holder, &call.payload, cap);
                env.counters.functions_refused += u64::from(!kept);
            }
            Action::FunctionOf { kernel } => {
                let kept = self.names.alias(call.out.unwrap_or(0), kernel, env.limits.functions);
                env.counters.functions_refused += u64::from(!kept);
            }
        }
        self.alloc_wait(at, &action, "", env);
    }

    fn on_failure(&mut self, at: &At, action: Action, ret: i32, env: &mut Env<'_>) {
        env.counters.failed_calls += 1;
        env.out.push(Out::Failure(Failure {
            pid: self.pid,
            tid: at.tid,
            api: at.api,
            enter_ns: at.enter_ns,
            exit_ns: at.exit_ns,
            ret,
        }));
        if let Action::EndCapture(stream) = action
            && CAPTURE_ENDED.contains(&ret)
        {
            self.end_capture(at, stream, env);
            if let Some(thread) = self.threads.get_mut(&at.tid) {
                thread.ended = None;
            }
        }
        self.failed_wait(at, &action, env);
    }

    /// The stream that a call names, and whether the thread's context was known.
    pub(super) fn stream_of(
        &mut self,
        at: &At,
        stream: StreamRef,
        env: &mut Env<'_>,
    ) -> (StreamId, bool) {
        let stack = self.threads.get(&at.tid);
        let (ctx, known) = self.contexts.of(at.tid, stack.map(|thread| &thread.ctx));
        let key = match stream {
            StreamRef::Passed(0) if at.per_thread => StreamKey::PerThread(ctx, at.tid),
            StreamRef::Passed(0 | 1) => StreamKey::Legacy(ctx),
            StreamRef::Passed(2) => StreamKey::PerThread(ctx, at.tid),
            StreamRef::Passed(handle) => StreamKey::Handle(handle),
            StreamRef::Either(a, b) => [a, b]
                .into_iter()
                .map(StreamKey::Handle)
                .find(|key| self.streams.find(*key).is_some())
                .unwrap_or(StreamKey::Unknown),
            StreamRef::Unknown => StreamKey::Unknown,
        };
        if key == StreamKey::Unknown {
            env.counters.unknown_stream += 1;
        }
        let born = stack.is_some_and(|thread| thread.born);
        let (id, new) = self.streams.resolve(key, (at.exit_ns, self.used_ns), self.doubted_ns > 0);
        if new {
            let idle = self.contexts.idle();
            if let Some(stream) = self.streams.get_mut(id) {
                let born = born && matches!(key, StreamKey::PerThread(..));
                stream.quiet = if born { Since::ALWAYS } else { idle };
            }
            self.bound_streams(id, at.exit_ns, env);
        }
        (id, known && key != StreamKey::Unknown)
    }

    fn bound_streams(&mut self, new: StreamId, now_ns: u64, env: &mut Env<'_>) {
        if self.streams.len() <= env.limits.streams {
            return;
        }
        if let Some(stale) = self.streams.stalest(new) {
            env.counters.streams_evicted += 1;
            let ops = self.streams.take_all(stale);
            env.counters.ops_evicted += ops.len() as u64;
            self.give_up(stale, ops, now_ns, env);
            self.streams.remove(stale);
        }
    }

    fn on_memory(&mut self, at: &At, memory: MemoryCall, out: Option<u64>, env: &mut Env<'_>) {
        let out = out.unwrap_or(0);
        let (range, memory) = match memory {
            MemoryCall::PinnedAtOut(bytes) => ((out, bytes), Memory::Pinned),
            MemoryCall::ManagedAtOut(bytes) => ((out, bytes), Memory::Managed),
            MemoryCall::Register(start, bytes) => ((start, bytes), Memory::Pinned),
            MemoryCall::Free(start) => return self.ranges.remove(start, at.enter_ns),
            MemoryCall::Other => return,
        };
        let kept = self.ranges.insert(range, memory, at.exit_ns, env.limits.ranges);
        env.counters.ranges_refused += u64::from(!kept);
    }
}
