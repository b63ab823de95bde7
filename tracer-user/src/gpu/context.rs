//! Which context a thread works in.
//!
//! A default stream is named by its context. The driver keeps a stack of contexts per thread; what
//! was pushed before attach is unknown until a call names it. A process that has shown at most one
//! context is taken to have no other (`context_known` is then false); once a second one is seen,
//! each thread without a known context stands for itself.

use std::collections::{BTreeMap, BTreeSet};

use super::since::Since;

/// A context within one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ctx {
    /// The only one, or the first one seen.
    Main,
    /// Another one, by its handle.
    Handle(u64),
    /// That of a thread of which it is not known, in a process that has several.
    Thread(u32),
}

/// Longest stack kept per thread.
const STACK: usize = 64;
/// Handles of contexts kept per process.
const HANDLES: usize = 1_024;

/// A thread's stack of contexts, as far as it was seen. `None` is one that is not known.
#[derive(Clone, Debug, Default)]
pub(super) struct CtxStack(Vec<Option<u64>>);

impl CtxStack {
    /// Handle of the current context.
    pub(super) fn current(&self) -> Option<u64> {
        self.0.last().copied().flatten()
    }

    /// `cuCtxSetCurrent`: replaces the top. 0 unbinds.
    pub(super) fn set(&mut self, handle: u64) {
        self.0.pop();
        if handle != 0 {
            self.push(handle);
        }
    }

    /// `cuCtxPushCurrent`, `cuCtxCreate`.
    pub(super) fn push(&mut self, handle: u64) {
        if self.0.len() >= STACK {
            self.0.remove(0);
        }
        self.0.push(Some(handle));
    }

    /// `cuCtxPopCurrent`.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    /// The context is gone: wherever it stands it names nothing any more.
    pub(super) fn forget(&mut self, handle: u64) {
        for entry in &mut self.0 {
            if *entry == Some(handle) {
                *entry = None;
            }
        }
    }
}

/// The contexts of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Contexts {
    /// Handle of [`Ctx::Main`], once known.
    main: Option<u64>,
    /// More than one was seen.
    several: bool,
    /// [`Ctx::Main`] was used for a thread whose context was not known.
    assumed: bool,
    /// Handles seen.
    seen: BTreeSet<u64>,
    /// Created under trace: no work was enqueued unseen.
    fresh: BTreeSet<u64>,
    /// No work enqueued unseen on the legacy default stream is outstanding.
    settled: BTreeMap<Ctx, Since>,
    /// The context was idle at some time under trace.
    idle: BTreeMap<Ctx, Since>,
}

impl Contexts {
    /// The context of a thread with that stack, and whether it is known.
    pub(super) fn of(&mut self, tid: u32, stack: Option<&CtxStack>) -> (Ctx, bool) {
        match stack.and_then(CtxStack::current) {
            Some(handle) => (self.named(handle), true),
            None if self.several => (Ctx::Thread(tid), false),
            None => {
                self.assumed = true;
                (Ctx::Main, false)
            }
        }
    }

    /// The context with that handle.
    pub(super) fn named(&self, handle: u64) -> Ctx {
        if self.main == Some(handle) { Ctx::Main } else { Ctx::Handle(handle) }
    }

    /// Whether a handle is that of a context seen.
    pub(super) fn is_known(&self, handle: u64) -> bool {
        self.seen.contains(&handle)
    }

    /// A handle was seen. Answers true when the process has just turned out to have several.
    pub(super) fn learn(&mut self, handle: u64) -> bool {
        if handle == 0 || self.main == Some(handle) {
            return false;
        }
        if self.seen.len() < HANDLES {
            self.seen.insert(handle);
        }
        if self.main.is_none() {
            self.main = Some(handle);
            return false;
        }
        !std::mem::replace(&mut self.several, true)
    }

    /// A context was created under trace. Answers as [`Self::learn`].
    pub(super) fn created(&mut self, handle: u64) -> bool {
        if handle == 0 {
            return false;
        }
        if self.fresh.len() < HANDLES {
            self.fresh.insert(handle);
        }
        if self.seen.len() < HANDLES {
            self.seen.insert(handle);
        }
        if self.main.is_none() && self.assumed {
            // Work was seen before: in a context that is not this one.
            return !std::mem::replace(&mut self.several, true);
        }
        self.learn(handle)
    }

    /// A context was destroyed.
    pub(super) fn destroyed(&mut self, handle: u64) {
        self.fresh.remove(&handle);
        self.seen.remove(&handle);
        self.settled.remove(&self.named(handle));
        self.idle.remove(&self.named(handle));
    }

    /// Events were lost: nothing enqueued before is certain to have been seen.
    pub(super) fn doubt(&mut self) {
        self.fresh.clear();
        self.settled.clear();
        self.idle.clear();
    }

    /// The whole context is idle.
    pub(super) fn synchronised(&mut self, ctx: Ctx, now_ns: u64) {
        self.settle(ctx, now_ns);
        if self.idle.len() < HANDLES || self.idle.contains_key(&ctx) {
            self.idle.entry(ctx).or_default().set(now_ns);
        }
    }

    /// Since when the process's only context has been idle at some time: a stream not seen before
    /// holds nothing.
    pub(super) fn idle(&self) -> Since {
        if self.several {
            return Since::NEVER;
        }
        self.idle.get(&Ctx::Main).copied().unwrap_or_default()
    }

    /// At that instant no stream of the context, seen or not, held anything unseen.
    pub(super) fn was_known(&self, ctx: Ctx, at_ns: u64) -> bool {
        self.is_fresh(ctx) || self.idle.get(&ctx).is_some_and(|since| since.held(at_ns))
    }

    pub(super) fn several(&self) -> bool {
        self.several
    }

    /// Everything enqueued in the context was seen.
    pub(super) fn is_fresh(&self, ctx: Ctx) -> bool {
        match ctx {
            Ctx::Main => self.main.is_some_and(|handle| self.fresh.contains(&handle)),
            Ctx::Handle(handle) => self.fresh.contains(&handle),
            Ctx::Thread(_) => false,
        }
    }

    /// What was enqueued unseen on the context's legacy default stream is complete.
    pub(super) fn settle(&mut self, ctx: Ctx, now_ns: u64) {
        if self.settled.len() < HANDLES || self.settled.contains_key(&ctx) {
            self.settled.entry(ctx).or_default().set(now_ns);
        }
    }

    pub(super) fn was_settled(&self, ctx: Ctx, at_ns: u64) -> bool {
        self.settled.get(&ctx).is_some_and(|since| since.held(at_ns)) || self.is_fresh(ctx)
    }

    /// Whether the two are certainly one context.
    pub(super) fn same(&self, a: Option<Ctx>, b: Option<Ctx>) -> bool {
        !self.several || (a.is_some() && a == b)
    }

    /// Whether the two may be one context.
    pub(super) fn may_be_same(&self, a: Option<Ctx>, b: Option<Ctx>) -> bool {
        match (a, b) {
            (Some(Ctx::Thread(_)), _) | (_, Some(Ctx::Thread(_))) | (None, _) | (_, None) => true,
            (Some(a), Some(b)) => a == b || !self.several,
        }
    }
}
