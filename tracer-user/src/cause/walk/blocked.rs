//! Why a thread of a walk did not run: what it was blocked in, and whose work ended that.

use std::borrow::Cow;

use super::{FOLLOWED, Walk, Way};
use crate::{
    cause::{
        edge::{Edge, Refusal, edge},
        history::{Call, Thread},
        spin::{Streak, Unled},
        story::call_name,
    },
    intake::event::{SchedCall, Sleep, SleepState},
    timeline::{model::PhaseName, tile::Stretch},
};

impl Walk<'_> {
    /// The thread was blocked: why?
    pub(super) fn blocked(
        &mut self,
        thread: &Thread,
        tid: u32,
        sleep: &Sleep,
        from: u64,
        to: u64,
    ) -> Way {
        let call = thread.call_of(sleep).copied();
        let named = |phase, detail: Cow<'static, str>| Stretch {
            detail,
            ..Stretch::observed(phase, from, to)
        };
        if sleep.state == SleepState::Uninterruptible {
            self.found.io.push(named(PhaseName::Io, Cow::Borrowed("")));
            self.note(tid, from, to, || "waited for a disk or a page".to_owned());
            return Way::Through;
        }
        let in_call = call.map_or(SchedCall::None, |call| call.call);
        match in_call {
            SchedCall::Connect => {
                self.note(tid, from, to, || "connected to another server".to_owned());
                self.found.dependency.push(named(PhaseName::Dependency, "connecting".into()));
                return Way::Through;
            }
            SchedCall::Sleep | SchedCall::Yield => {
                self.found.unattributed.push(named(PhaseName::Unattributed, "sleeping".into()));
                self.note(tid, from, to, || "slept".to_owned());
                return Way::Through;
            }
            _ => {}
        }
        match edge(&self.causes.objects, (thread.pid, tid), call.as_ref(), sleep) {
            Ok(edge) => {
                let futex = call.filter(|_| in_call == SchedCall::Futex);
                let passed = futex.is_some_and(|call| self.passes_lock(&edge, &call));
                if !passed && self.completes(&edge, sleep) {
                    self.note(tid, from, to, || {
                        format!("{}: woken by thread {} as it gave back", name(in_call), edge.tid)
                    });
                    self.found.cpu.push(named(PhaseName::Cpu, "".into()));
                    return Way::Through;
                }
                let exchange = self.request.exchange.id;
                let own = self.request.own_thread == Some(edge.tid);
                let marked =
                    own || self.causes.worked_for(edge.tid, edge.at_ns, exchange).is_some();
                if marked {
                    self.note(tid, from, to, || {
                        format!("{}: woken by thread {}, followed", name(in_call), edge.tid)
                    });
                    return Way::Woken { tid: edge.tid, at_ns: edge.at_ns };
                }
                let held = futex.is_some_and(|call| self.is_lock(thread, tid, &edge, &call));
                if held {
                    let detail = format!("held by thread {}", edge.tid);
                    self.note(tid, from, to, || format!("lock {detail}"));
                    self.found.lock.push(named(PhaseName::Lock, detail.into()));
                } else {
                    self.note(tid, from, to, || {
                        format!(
                            "{}: woken by thread {}, refused: it did not work for this request",
                            name(in_call),
                            edge.tid
                        )
                    });
                    let detail = match self.elsewhere(tid, &edge, from) {
                        Some(place) => Cow::Owned(format!("elsewhere: woken from {place}")),
                        None => Cow::Borrowed("ambiguous"),
                    };
                    self.note(tid, from, to, || detail.clone().into_owned());
                    self.found.unattributed.push(named(PhaseName::Unattributed, detail));
                }
            }
            Err(refusal) => {
                let contended = in_call == SchedCall::Futex
                    && refusal == Refusal::NothingCame
                    && call.is_some_and(|c| self.causes.waiters.is_contended(thread.pid, c.object));
                self.note(tid, from, to, || {
                    let waker = sleep.waker.map_or(0, |waker| waker.tid);
                    let call = name(in_call);
                    format!("{call}: no edge from thread {waker}: {}", refusal.as_str())
                });
                if contended {
                    self.found.lock.push(named(PhaseName::Lock, Cow::Borrowed("")));
                } else {
                    let detail = waiting(in_call);
                    self.found.unattributed.push(named(PhaseName::Unattributed, detail.into()));
                }
            }
        }
        Way::Through
    }

    /// The thread polled: until when it was handed something, and by whom?
    pub(super) fn polled(
        &mut self,
        thread: &Thread,
        tid: u32,
        streak: &Streak,
        (stop, at): (u64, u64),
    ) -> Way {
        let (from, to) = (streak.first_ns.max(stop), streak.back_ns.min(at));
        let why = match streak.led {
            Err(why) => why.as_str().to_owned(),
            Ok(edge) if edge.confidence < FOLLOWED => {
                format!("thread {} may have ended it, or worked for another then", edge.tid)
            }
            Ok(edge) => {
                let exchange = self.request.exchange.id;
                // What lies before belongs to an item, which says itself who handed it over.
                let within = edge.at_ns <= stop;
                if within
                    || self.request.own_thread == Some(edge.tid)
                    || self.causes.worked_for(edge.tid, edge.at_ns, exchange).is_some()
                {
                    let (by, since) = (edge.tid, edge.at_ns.clamp(from, to));
                    self.note(tid, since, to, || {
                        format!("polled until thread {by} began to poll in turn, followed")
                    });
                    self.noticed(thread, since, to);
                    return Way::Woken { tid: edge.tid, at_ns: edge.at_ns };
                }
                format!("thread {} ended it, but did not work for this request", edge.tid)
            }
        };
        let detail = match streak.led {
            Err(Unled::Several) | Ok(_) => "ambiguous",
            Err(_) => "sleeping",
        };
        self.note(tid, from, to, || format!("polled, not followed: {why}"));
        let detail = detail.into();
        let polled = Stretch::observed(PhaseName::Unattributed, from, to);
        self.found.unattributed.push(Stretch { detail, ..polled });
        Way::Through
    }

    /// From being handed something to going on: the thread polled, or had no core to.
    fn noticed(&mut self, thread: &Thread, from: u64, to: u64) {
        for sleep in thread.sleeps(from, to) {
            let (from, to) = (sleep.out_ns.max(from), sleep.in_ns.min(to));
            self.found.run_queue.push(Stretch::observed(PhaseName::RunQueue, from, to));
        }
        self.found.cpu.push(Stretch::observed(PhaseName::Cpu, from, to));
    }

    /// Whether the wake came out of the call that completed what this thread waited for: an item
    /// ends where that call begins, and whoever it wakes is woken before it returns.
    fn completes(&self, edge: &Edge, sleep: &Sleep) -> bool {
        self.completed.is_some_and(|(tid, end_ns)| {
            tid == edge.tid && sleep.out_ns <= end_ns && end_ns <= edge.at_ns
        })
    }

    /// The process that a wake came from, where that is another one than the request's. A thread that
    /// reads requests may have been woken by those who send them: of such a one only what came
    /// through a pipe, `eventfd` or `socketpair` counts, or by way of a thread that reads none and was
    /// itself woken meanwhile, since `from_ns`. What the other process did is not known, only that
    /// the wait ended there.
    fn elsewhere(&self, tid: u32, by: &Edge, from_ns: u64) -> Option<String> {
        let (causes, own) = (self.causes, self.request.exchange.pid);
        if by.pid != own {
            let answers = causes.objects.is_signal(by.object) || !causes.reads_requests(own, tid);
            return answers.then(|| causes.name_of(by.pid));
        }
        let between = causes.threads.get(&by.tid)?;
        let sleep = between.sleep_before(by.at_ns)?;
        let call = between.call_of(sleep);
        let before = edge(&causes.objects, (own, by.tid), call, sleep).ok()?;
        let meanwhile = before.pid != own && before.at_ns >= from_ns;
        (meanwhile && !causes.reads_requests(own, by.tid)).then(|| causes.name_of(before.pid))
    }

    /// Whether the waker waits itself where it woke this thread: then it passed a lock on, whatever
    /// else it did for this request.
    fn passes_lock(&self, edge: &Edge, call: &Call) -> bool {
        self.causes.waiters.waits_on(edge.pid, edge.tid, call.object, edge.at_ns)
    }

    /// Whether the waker let go of a lock: it passed it on, or others wait there too and it was never
    /// handed anything whose result this thread could wait for.
    fn is_lock(&self, thread: &Thread, tid: u32, edge: &Edge, call: &Call) -> bool {
        edge.pid == thread.pid
            && (self.passes_lock(edge, call)
                || !self.causes.waiters.is_own(thread.pid, tid, call.object)
                    && !self.causes.has_handed(tid, edge.tid, edge.at_ns))
    }
}

fn name(call: SchedCall) -> &'static str {
    match call_name(call) {
        "" => "in no call that is followed",
        name => name,
    }
}

fn waiting(call: SchedCall) -> &'static str {
    match call {
        SchedCall::None | SchedCall::Other => "blocked outside any call that is followed",
        SchedCall::EpollWait | SchedCall::Poll | SchedCall::Select => "waiting for an event",
        SchedCall::Read | SchedCall::Accept => "waiting for bytes",
        SchedCall::Write => "waiting to write",
        SchedCall::Futex | SchedCall::FutexWaitv => "waiting for a thread",
        _ => "",
    }
}
