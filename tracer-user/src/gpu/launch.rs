//! Operations as calls enqueue them, and runs of launches as the kernel half reports them.

use crate::intake::event::{Api, Launches};

use super::decode::{Enqueue, Returns, StreamRef};
use super::op::{Class, Op, OpKind};
use super::proc::{At, Env, Proc};
use super::stream::StreamId;

/// The last run of launches of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Its number: grows with each run of the thread.
    id: u64,
    place: Place,
    /// Launches accounted for.
    count: u64,
    /// Entry of the last of them, ns.
    last_ns: u64,
}

/// Where the launches of a run went.
#[derive(Clone, Copy, Debug)]
enum Place {
    Stream(StreamId, u64),
    Capture(StreamId),
}

impl Proc {
    /// A run of launches, new or grown.
    pub(super) fn on_launches(&mut self, tid: u32, run: &Launches, env: &mut Env<'_>) {
        let last_ns = run.last_ns.max(run.first_ns);
        let thread = self.thread(tid, last_ns, env);
        thread.ended = None;
        match thread.run {
            Some(known) if known.id == run.run => self.grow_run(tid, known, run, env),
            // An older run of the thread: it has been closed.
            Some(known) if known.id > run.run => env.counters.late_launch_records += 1,
            _ => {
                self.close_run(tid, run.first_ns);
                self.end_streak(tid, env);
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.busy_ns = thread.busy_ns.max(last_ns);
                }
                self.start_run(tid, run, run.first_ns, u64::from(run.count), env);
            }
        }
    }

    /// The thread entered its next call: its launches had returned. `None` for their return means
    /// that this has not been seen.
    pub(super) fn close_run(&mut self, tid: u32, enter_ns: u64) {
        let Some(run) = self.threads.get(&tid).and_then(|thread| thread.run) else { return };
        if let Place::Stream(stream, id) = run.place
            && let Some(op) = self.streams.get_mut(stream).and_then(|s| s.op_mut(id))
            && op.exit_ns.is_none()
        {
            op.exit_ns = Some(enter_ns.max(op.enqueue_last_ns));
        }
    }

    fn start_run(
        &mut self,
        tid: u32,
        run: &Launches,
        first_ns: u64,
        count: u64,
        env: &mut Env<'_>,
    ) {
        let last_ns = run.last_ns.max(first_ns);
        let at = run_at(tid, run, first_ns);
        let stream = run.stream.map_or(StreamRef::Unknown, StreamRef::Passed);
        let (id, context_known) = self.stream_of(&at, stream, env);
        let place = if self.captured(id, OpKind::Kernel, count, env).is_some() {
            Place::Capture(id)
        } else {
            if context_known {
                self.place_stream(tid, id);
            }
            let op = Op {
                enqueue_last_ns: last_ns,
                exit_ns: None,
                count,
                function: run.function,
                mixed: run.mixed,
                run: Some(run.run),
                lost: run.stream.is_none(),
                ..self.new_op(&at, OpKind::Kernel, context_known, env)
            };
            let own = self.push_op(id, op, env);
            self.reconsider(&at, id, Some(Class::Kernel), env);
            Place::Stream(id, own)
        };
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.run = Some(Run { id: run.run, place, count: u64::from(run.count), last_ns });
        }
    }

    fn grow_run(&mut self, tid: u32, known: Run, run: &Launches, env: &mut Env<'_>) {
        let count = u64::from(run.count);
        let more = count.saturating_sub(known.count);
        if more == 0 && run.last_ns <= known.last_ns {
            return;
        }
        match known.place {
            Place::Capture(stream) => {
                self.captured(stream, OpKind::Kernel, more, env);
            }
            Place::Stream(stream, id) => {
                let outstanding = self.streams.get_mut(stream).and_then(|s| s.op_mut(id));
                let Some(op) = outstanding else {
                    // What was known of it is complete: the rest is work of its own.
                    env.counters.late_launch_records += 1;
                    return self.start_run(tid, run, known.last_ns, more.max(1), env);
                };
                op.count = count.max(op.count);
                op.mixed |= run.mixed;
                op.enqueue_last_ns = op.enqueue_last_ns.max(run.last_ns);
                if op.exit_ns.is_some_and(|exit| exit < run.last_ns) {
                    op.exit_ns = None;
                }
                let at = run_at(tid, run, known.last_ns);
                self.reconsider(&at, stream, Some(Class::Kernel), env);
            }
        }
        if let Some(thread) = self.threads.get_mut(&tid)
            && let Some(known) = thread.run.as_mut()
        {
            known.count = known.count.max(count);
            known.last_ns = known.last_ns.max(run.last_ns);
        }
    }

    /// A call put work on a stream.
    pub(super) fn on_enqueue(&mut self, at: &At, enqueue: Enqueue, env: &mut Env<'_>) {
        let (id, context_known) = self.stream_of(at, enqueue.stream, env);
        if self.captured(id, enqueue.kind, enqueue.count, env).is_some() {
            return;
        }
        let graph = match enqueue.kind {
            OpKind::Graph => self.graphs.nodes_of(enqueue.exec),
            _ => None,
        };
        if enqueue.kind == OpKind::Graph && context_known {
            self.place_stream(at.tid, id);
        }
        let copies = enqueue.returns == Returns::WhenCopied;
        let before = copies.then(|| self.outlook(&[(id, at.exit_ns)], at.enter_ns));
        let op = Op {
            count: enqueue.count,
            bytes: enqueue.bytes,
            function: enqueue.exec,
            pinned: enqueue.host.and_then(|host| self.ranges.lookup(host, at.enter_ns)),
            blocking: copies,
            graph,
            lost: enqueue.stream == StreamRef::Unknown,
            ..self.new_op(at, enqueue.kind, context_known, env)
        };
        let (kind, pinned) = (op.kind, op.pinned);
        let stages = enqueue.host.is_some() && pinned != Some(true);
        let class = op.class();
        let own = self.push_op(id, op, env);
        self.reconsider(at, id, Some(class), env);
        let Some(before) = before else {
            if stages {
                self.staging_wait(at, env);
            }
            return;
        };
        let proves = kind == OpKind::D2h || kind == OpKind::H2d && pinned == Some(true);
        let steps = if proves {
            self.prove(&[(id, at.enter_ns)], Some((own, before.is_idle())), at.fact(), env)
        } else {
            Vec::new()
        };
        self.copy_wait(at, kind, proves, before, steps, env);
    }

    fn new_op(&self, at: &At, kind: OpKind, context_known: bool, env: &mut Env<'_>) -> Op {
        env.counters.ops += 1;
        Op {
            id: env.ids.op(),
            kind,
            api: at.api,
            tid: at.tid,
            enqueue_first_ns: at.enter_ns,
            enqueue_last_ns: at.enter_ns,
            exit_ns: Some(at.exit_ns),
            count: 1,
            bytes: 0,
            function: 0,
            mixed: false,
            run: None,
            pinned: None,
            blocking: false,
            graph: None,
            context_known,
            lost: false,
            elapsed: None,
        }
    }

    /// Kernels and graphs run on streams of the current context only: that tells a stream's.
    fn place_stream(&mut self, tid: u32, id: StreamId) {
        let stack = self.threads.get(&tid).map(|thread| &thread.ctx);
        let (ctx, known) = self.contexts.of(tid, stack);
        if let Some(stream) = self.streams.get_mut(id)
            && known
        {
            stream.ctx.get_or_insert(ctx);
        }
    }

    /// Puts it on the stream; where a cap is reached, the oldest are given up.
    fn push_op(&mut self, id: StreamId, op: Op, env: &mut Env<'_>) -> u64 {
        let (number, now_ns) = (op.id, op.enqueue_last_ns);
        let uncertain = self.streams.get(id).is_some_and(|stream| !stream.certain.holds());
        self.streams.push(id, Op { lost: op.lost || uncertain, ..op });
        let length = self.streams.get(id).map_or(0, |stream| stream.ops().len());
        if length > env.limits.ops_per_stream {
            self.evict(id, 1, now_ns, env);
        } else if self.streams.outstanding() > env.limits.ops_per_process
            && let Some(fullest) = self.streams.fullest()
        {
            self.evict(fullest, 64, now_ns, env);
        }
        number
    }

    fn evict(&mut self, id: StreamId, count: usize, now_ns: u64, env: &mut Env<'_>) {
        let ops: Vec<Op> = (0..count).map_while(|_| self.streams.take_oldest(id)).collect();
        env.counters.ops_evicted += ops.len() as u64;
        self.give_up(id, ops, now_ns, env);
    }
}

/// A run of launches, from one of its launches on, as a call.
fn run_at(tid: u32, run: &Launches, first_ns: u64) -> At {
    At {
        tid,
        api: Api::LaunchKernel,
        per_thread: run.per_thread,
        enter_ns: first_ns,
        exit_ns: run.last_ns.max(first_ns),
    }
}
