//! Streams: what an operation waits for by its place in a stream, and its way into the schedule.

use crate::abi::Handle;
use crate::capture;
use crate::clock::{now, wait_until};
use crate::config::config;
use crate::error::Res;
use crate::oracle;
use crate::process::tid;
use crate::schedule::{After, Source, When, Work};
use crate::sim::{Guard, Sim, lock, wait_settled};

impl Sim {
    /// What the next operation of a stream has to wait for: the one before it, and what the
    /// legacy default stream's implicit synchronisation adds.
    pub fn order(&self, stream: Handle) -> Res<After> {
        let s = self.streams.get(stream)?;
        let ctx = self.contexts.get(s.ctx)?;
        let mut after = After::default();
        after.add(&s.tail);
        if s.is_legacy() {
            after.add_all(&ctx.blocking);
        } else if s.is_blocking() {
            after.add(&self.streams.get(ctx.legacy)?.tail);
        }
        Ok(after)
    }

    /// Who enqueues, where, and now.
    pub fn source(&self, stream: Handle) -> Res<Source> {
        let s = self.streams.get(stream)?;
        Ok(Source {
            id: oracle::next_id(),
            tid: tid(),
            ctx: s.ctx,
            stream: s.public,
            device: self.contexts.get(s.ctx)?.device,
            enqueue: now(),
            graph: 0,
            span: None,
        })
    }

    /// Notes an operation as the last of its stream.
    pub fn issued(&mut self, stream: Handle, when: &When) -> Res {
        let s = self.streams.get_mut(stream)?;
        s.tail = when.clone();
        if s.recent.len() >= config().queue_depth {
            s.recent.pop_front();
        }
        s.recent.push_back(when.clone());
        if matches!(when, When::Later(_)) {
            // A host function is involved.
            crate::callbacks::enqueued();
        }
        let (ctx, blocking) = (s.ctx, s.is_blocking());
        let context = self.contexts.get_mut(ctx)?;
        context.all.add_compact(when);
        if blocking {
            context.blocking.add_compact(when);
        }
        Ok(())
    }

    /// Enqueues an operation that also waits for `extra`.
    pub fn enqueue_after(&mut self, stream: Handle, work: Work, extra: &After) -> Res<When> {
        let mut after = self.order(stream)?;
        after.add_all(extra);
        let source = self.source(stream)?;
        let when = self.schedule.submit(work, source, after);
        self.issued(stream, &when)?;
        Ok(when)
    }

    /// Enqueues an operation, or records it if the stream is being captured (then: `None`).
    pub fn enqueue(&mut self, stream: Handle, work: Work) -> Res<Option<When>> {
        if capture::active(self, stream)? {
            capture::add(self, stream, work)?;
            return Ok(None);
        }
        let after = self.order(stream)?;
        let source = self.source(stream)?;
        let when = self.schedule.submit(work, source, after);
        self.issued(stream, &when)?;
        Ok(Some(when))
    }
}

/// Waits until the stream's launch queue has room, as an enqueueing call does when it is full.
pub fn admit(mut sim: Guard, stream: Handle) -> Res<Guard> {
    loop {
        let s = sim.streams.get(stream)?;
        if s.recent.len() < config().queue_depth {
            return Ok(sim);
        }
        let Some(oldest) = s.recent.front() else { return Ok(sim) };
        match oldest.known() {
            Some(done) if done.end <= now() => return Ok(sim),
            Some(done) => {
                let how = sim.waiting(s.ctx);
                drop(sim);
                wait_until(done.end, how);
                sim = lock();
            }
            None => sim = wait_settled(sim),
        }
    }
}
