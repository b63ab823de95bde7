//! Threads and contexts as they come and go, losses, and the end of a process.

use super::context::{Ctx, CtxStack};
use super::decode::ContextCall;
use super::op::{Op, StreamKey};
use super::proc::{At, Env, Proc, Thread};
use super::stream::StreamId;

impl Proc {
    /// The thread's state, made where it is new.
    pub(super) fn thread(&mut self, tid: u32, now_ns: u64, env: &mut Env<'_>) -> &mut Thread {
        self.used_ns = self.used_ns.max(now_ns);
        if !self.threads.contains_key(&tid) && self.threads.len() >= env.limits.threads {
            let stalest = self.threads.iter().min_by_key(|(_, thread)| thread.used_ns);
            if let Some(stale) = stalest.map(|(tid, _)| *tid) {
                env.counters.threads_evicted += 1;
                self.end_thread(stale, now_ns, env);
            }
        }
        let thread = self.threads.entry(tid).or_default();
        thread.used_ns = thread.used_ns.max(now_ns);
        thread
    }

    /// A thread was created.
    pub(super) fn on_new_thread(&mut self, tid: u32, now_ns: u64, env: &mut Env<'_>) {
        self.end_thread(tid, now_ns, env);
        self.thread(tid, now_ns, env).born = true;
    }

    /// A thread moved bytes: it was not only asking for the device.
    pub(super) fn on_socket(&mut self, tid: u32, exit_ns: u64, env: &mut Env<'_>) {
        self.end_streak(tid, env);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.busy_ns = thread.busy_ns.max(exit_ns);
        }
    }

    /// A thread is gone, or forgotten.
    pub(super) fn end_thread(&mut self, tid: u32, now_ns: u64, env: &mut Env<'_>) {
        self.close_run(tid, now_ns);
        self.end_streak(tid, env);
        self.threads.remove(&tid);
        for key in self.streams.keys(|key| matches!(key, StreamKey::PerThread(_, t) if *t == tid)) {
            self.streams.unlink(key);
        }
    }

    pub(super) fn on_context(
        &mut self,
        at: &At,
        call: ContextCall,
        out: Option<u64>,
        env: &mut Env<'_>,
    ) {
        let out = out.unwrap_or(0);
        let Some(thread) = self.threads.get_mut(&at.tid) else { return };
        let several = match call {
            ContextCall::Create => {
                thread.ctx.push(out);
                self.contexts.created(out)
            }
            ContextCall::Set(handle) => {
                thread.ctx.set(handle);
                self.contexts.learn(handle)
            }
            ContextCall::Push(handle) => {
                thread.ctx.push(handle);
                self.contexts.learn(handle)
            }
            ContextCall::Pop => {
                thread.ctx.pop();
                self.contexts.learn(out)
            }
            ContextCall::Retain => self.contexts.learn(out),
            ContextCall::Release => {
                // With the last reference the context goes, and what it had page-locked.
                self.ranges.clear();
                false
            }
            ContextCall::Destroy(handle) => {
                self.destroy_context(at, handle, env);
                false
            }
        };
        if several {
            self.part_contexts(at.exit_ns, env);
        }
    }

    fn destroy_context(&mut self, at: &At, handle: u64, env: &mut Env<'_>) {
        let ctx = self.contexts.named(handle);
        for thread in self.threads.values_mut() {
            thread.ctx.forget(handle);
        }
        self.ranges.clear();
        let gone = |of: Option<Ctx>| of == Some(ctx) || of.is_none() && !self.contexts.several();
        let streams: Vec<StreamId> =
            self.streams.iter().filter(|(_, s)| gone(s.ctx)).map(|(id, _)| id).collect();
        for id in streams {
            let ops = self.streams.take_all(id);
            self.give_up(id, ops, at.exit_ns, env);
            self.streams.remove(id);
        }
        self.contexts.destroyed(handle);
    }

    /// The process has turned out to have several contexts: work on default streams of threads
    /// whose context was not known can no longer be placed.
    fn part_contexts(&mut self, now_ns: u64, env: &mut Env<'_>) {
        let keys = self.streams.keys(|key| {
            matches!(key, StreamKey::Legacy(Ctx::Main) | StreamKey::PerThread(Ctx::Main, _))
        });
        for id in keys.into_iter().filter_map(|key| self.streams.find(key)).collect::<Vec<_>>() {
            let (known, assumed): (Vec<Op>, Vec<Op>) =
                self.streams.take_all(id).into_iter().partition(|op| op.context_known);
            for op in known {
                self.streams.push(id, op);
            }
            env.counters.context_ambiguous += assumed.len() as u64;
            self.give_up(id, assumed, now_ns, env);
        }
    }

    /// CUDA events were lost: what was known of handles may no longer be true.
    pub(super) fn on_loss(&mut self, now_ns: u64, env: &mut Env<'_>) {
        self.doubted_ns = self.doubted_ns.max(now_ns);
        for tid in self.threads.keys().copied().collect::<Vec<_>>() {
            self.end_streak(tid, env);
        }
        for thread in self.threads.values_mut() {
            thread.ctx = CtxStack::default();
            thread.ended = None;
            thread.born = false;
        }
        for (_, stream) in self.streams.iter_mut() {
            stream.doubt();
        }
        self.contexts.doubt();
        self.events.clear();
        self.ranges.clear();
        self.graphs.clear();
        // Ends of captures may be among them; an end seen later withdraws what was recorded.
        self.captures.clear();
        self.recent.clear();
    }

    /// The process is gone or begins anew: everything outstanding is given up.
    pub(super) fn end(&mut self, now_ns: u64, env: &mut Env<'_>) {
        for tid in self.threads.keys().copied().collect::<Vec<_>>() {
            self.close_run(tid, now_ns);
            self.end_streak(tid, env);
        }
        for id in self.streams.iter().map(|(id, _)| id).collect::<Vec<_>>() {
            let ops = self.streams.take_all(id);
            self.give_up(id, ops, now_ns, env);
        }
    }

    /// Streams of the context that a `cuCtxSynchronize` means; none where it cannot be told.
    pub(super) fn context_meant(&mut self, at: &At, argument: u64) -> Option<Ctx> {
        let stack = self.threads.get(&at.tid).map(|thread| &thread.ctx);
        let (ctx, _) = self.contexts.of(at.tid, stack);
        // Only the second version takes an argument; for the first it is what the register held.
        let other = self.contexts.is_known(argument) && self.contexts.named(argument) != ctx;
        (!(self.contexts.several() && other)).then_some(ctx)
    }
}
