//! Time that threads spend inside calls that block, and in streaks of NOT_READY queries.
//!
//! A wait is named after a kind of work only where everything that it may have waited for is of
//! that kind: own stream, streams that it is or may be ordered behind, nothing enqueued unseen.
//! Everything else is [`WaitPhase::Gpu`], undivided.
//!
//! Not reported: completion calls and queries that found nothing outstanding, calls that allocate
//! or load, and asynchronous copies that stage, when shorter than [`NOTABLE_NS`]; other asynchronous
//! calls.

use crate::intake::event::Api;

use super::decode::{Action, Target};
use super::facts::Reach;
use super::op::{Class, OpKind};
use super::out::{Method, Out, Wait, WaitPhase};
use super::outlook::Outlook;
use super::proc::{At, Env, Proc};

/// Shorter calls that waited for nothing known are not reported, ns.
pub(super) const NOTABLE_NS: u64 = 50_000;
const UNSEEN: &str = "may include work enqueued before attach or unseen";
const NOTHING_SEEN: &str = "nothing outstanding was seen";
const NOTHING_PROVEN: &str = "staged copy: its return proves no completion";
const STAGING: &str = "asynchronous copy of memory not known to be page-locked";
const FAILED: &str = "the call failed";
const FREE: &str = "cuMemFree waits for outstanding work";

impl Proc {
    /// A synchronise returned.
    pub(super) fn on_sync(&mut self, at: &At, target: Target, env: &mut Env<'_>) {
        let reach = self.reach(at, target, true, env);
        let mut outlook = self.outlook(&reach.may, at.enter_ns);
        outlook.unseen |= reach.unknown;
        if let Some(ctx) = reach.context {
            outlook.whole = true;
            outlook.unseen |= !self.contexts.was_known(ctx, at.enter_ns);
        }
        let steps = self.prove_reach(at, &reach, env);
        self.completion_wait(at, at.enter_ns, outlook, steps, env);
    }

    pub(super) fn prove_reach(&mut self, at: &At, reach: &Reach, env: &mut Env<'_>) -> Vec<u64> {
        let steps = self.prove(&reach.proof, None, at.fact(), env);
        if let Some(ctx) = reach.context
            && at.enter_ns >= self.doubted_ns
        {
            self.contexts.synchronised(ctx, at.exit_ns);
            for (id, _) in &reach.proof {
                if let Some(stream) = self.streams.get_mut(*id) {
                    stream.proven.set(at.exit_ns);
                }
            }
        }
        steps
    }

    pub(super) fn completion_wait(
        &mut self,
        at: &At,
        enter_ns: u64,
        outlook: Outlook,
        steps: Vec<u64>,
        env: &mut Env<'_>,
    ) {
        let at = At { enter_ns, ..*at };
        if steps.is_empty() && at.exit_ns - enter_ns < NOTABLE_NS {
            return;
        }
        let (method, detail) = match (steps.is_empty(), outlook.unseen) {
            (false, false) => (Method::SyncBounded, ""),
            (false, true) => (Method::SyncBounded, UNSEEN),
            (true, true) => (Method::Estimated, UNSEEN),
            (true, false) if outlook.is_blank() => (Method::Estimated, NOTHING_SEEN),
            (true, false) => (Method::Estimated, ""),
        };
        self.wait(&at, outlook, method, steps, detail, env);
    }

    /// A copy without a stream returned. `before`: what else was outstanding.
    pub(super) fn copy_wait(
        &mut self,
        at: &At,
        kind: OpKind,
        proves: bool,
        mut before: Outlook,
        steps: Vec<u64>,
        env: &mut Env<'_>,
    ) {
        let class = match kind {
            OpKind::H2d => Class::H2d,
            OpKind::D2h => Class::D2h,
            _ => Class::Other,
        };
        if kind == OpKind::H2h && before.is_idle() {
            // The processor copies.
            return;
        }
        let method = match (before.is_idle(), proves) {
            (true, _) => Method::Direct,
            (false, true) => Method::SyncBounded,
            (false, false) => Method::Estimated,
        };
        let detail = match (before.unseen, proves) {
            (true, _) => UNSEEN,
            (false, false) => NOTHING_PROVEN,
            (false, true) => "",
        };
        before.add(class);
        self.wait(at, before, method, steps, detail, env);
    }

    /// An asynchronous copy returned whose host memory is not known to be page-locked: such a call
    /// blocks while it stages, and may block until it has copied. Other asynchronous calls that
    /// took long are not waits: the thread may as well have lost its core in them.
    pub(super) fn staging_wait(&mut self, at: &At, env: &mut Env<'_>) {
        if at.exit_ns - at.enter_ns >= NOTABLE_NS {
            self.wait(at, Outlook::default(), Method::Estimated, Vec::new(), STAGING, env);
        }
    }

    /// A call that allocates, frees or loads returned.
    pub(super) fn alloc_wait(
        &mut self,
        at: &At,
        action: &Action,
        detail: &'static str,
        env: &mut Env<'_>,
    ) {
        if !allocates(action, at.api) || at.exit_ns - at.enter_ns < NOTABLE_NS {
            return;
        }
        let detail = if at.api == Api::MemFree && detail.is_empty() { FREE } else { detail };
        self.report(at, WaitPhase::Alloc, Method::Direct, Vec::new(), detail, env);
    }

    /// A call that may have waited failed: it proves nothing, but the time is spent.
    pub(super) fn failed_wait(&mut self, at: &At, action: &Action, env: &mut Env<'_>) {
        self.alloc_wait(at, action, FAILED, env);
        let completes = matches!(action, Action::Sync(_) | Action::Query(_) | Action::Enqueue(_));
        if completes && at.exit_ns - at.enter_ns >= NOTABLE_NS {
            self.wait(at, Outlook::default(), Method::Estimated, Vec::new(), FAILED, env);
        }
    }

    /// Time spent on what the outlook says.
    pub(super) fn wait(
        &mut self,
        at: &At,
        outlook: Outlook,
        method: Method,
        steps: Vec<u64>,
        detail: &'static str,
        env: &mut Env<'_>,
    ) {
        let phase = outlook.phase();
        let wait = self.report(at, phase, method, steps, detail, env);
        if let Some(wait) = wait.filter(|wait| wait.phase != WaitPhase::Gpu) {
            self.remember(&wait, outlook, env);
        }
    }

    fn report(
        &mut self,
        at: &At,
        phase: WaitPhase,
        method: Method,
        steps: Vec<u64>,
        detail: &'static str,
        env: &mut Env<'_>,
    ) -> Option<Wait> {
        // Calls nest: what lies inside another one has been reported by itself.
        let mut enter_ns = at.enter_ns;
        if let Some(thread) = self.threads.get_mut(&at.tid) {
            enter_ns = enter_ns.max(thread.waited_ns.min(at.exit_ns));
            thread.waited_ns = thread.waited_ns.max(at.exit_ns);
        }
        if enter_ns == at.exit_ns && steps.is_empty() {
            return None;
        }
        let length = at.exit_ns - enter_ns;
        let wait = Wait {
            pid: self.pid,
            tid: at.tid,
            api: at.api,
            enter_ns,
            exit_ns: at.exit_ns,
            phase,
            method,
            steps,
            lower_ns: if phase == WaitPhase::Alloc { length } else { 0 },
            upper_ns: length,
            detail,
        };
        env.out.push(Out::Wait(wait.clone()));
        Some(wait)
    }
}

/// Whether a call is about memory, modules or contexts and may take long.
fn allocates(action: &Action, api: Api) -> bool {
    match action {
        Action::Memory(_)
        | Action::Load
        | Action::Unload(_)
        | Action::Function { .. }
        | Action::FunctionOf { .. }
        | Action::Instantiate { .. } => true,
        Action::Context(_) => {
            matches!(api, Api::CtxCreate | Api::CtxDestroy | Api::DevicePrimaryCtxRetain)
        }
        _ => false,
    }
}
