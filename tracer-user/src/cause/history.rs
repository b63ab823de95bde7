//! What one thread did: when it was off the processor, and the calls in which it may have waited.

use std::collections::VecDeque;

use crate::{
    in_order::{place, up_to},
    intake::event::{SchedCall, Sleep, Timeout},
    room::give_back,
};

/// A call of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Entry, ns; 0 where that was before tracing began.
    pub enter_ns: u64,
    /// Exit, ns.
    pub exit_ns: u64,
    /// Which.
    pub call: SchedCall,
    /// What it was about, see [`SchedCall`].
    pub object: u64,
    /// What it returned.
    pub ret: i64,
    /// Longest wait that the caller allowed.
    pub timeout: Timeout,
}

/// One thread's past, as far back as any request needs it.
#[derive(Debug, Default)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// In the order of `in_ns`; they do not overlap.
    sleeps: VecDeque<Sleep>,
    /// In the order of `exit_ns`; they do not overlap.
    calls: VecDeque<Call>,
    /// It has ended: nothing more comes.
    pub ended: bool,
}

impl Thread {
    /// A thread of this process.
    pub fn new(pid: u32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// Adds time off the processor. It mostly comes in order; what a call told at its exit may lie
    /// a little before. `false` where it cannot be.
    pub fn add_sleep(&mut self, sleep: Sleep) -> bool {
        if sleep.in_ns < sleep.out_ns {
            return false;
        }
        let at = place(&self.sleeps, |other| other.in_ns > sleep.in_ns);
        self.sleeps.insert(at, sleep);
        true
    }

    /// Adds a call that has returned.
    pub fn add_call(&mut self, call: Call) {
        let at = place(&self.calls, |other| other.exit_ns > call.exit_ns);
        self.calls.insert(at, call);
    }

    /// Nothing is known of the thread's time.
    pub fn is_unknown(&self) -> bool {
        self.sleeps.is_empty() && self.calls.is_empty()
    }

    /// Records held.
    pub fn len(&self) -> usize {
        self.sleeps.len() + self.calls.len()
    }

    /// Forgets what ended before this time, ns; returns how many records that were. The last of
    /// each kind stays, for as long as the thread lives: it says that the thread is known.
    pub fn forget_before(&mut self, time_ns: u64) -> usize {
        let before = self.len();
        let kept = usize::from(!self.ended);
        let sleeps = up_to(&self.sleeps, 0, |sleep| sleep.in_ns < time_ns);
        self.sleeps.drain(..sleeps.min(self.sleeps.len().saturating_sub(kept)));
        let calls = up_to(&self.calls, 0, |call| call.exit_ns < time_ns);
        self.calls.drain(..calls.min(self.calls.len().saturating_sub(kept)));
        give_back(&mut self.sleeps);
        give_back(&mut self.calls);
        before - self.len()
    }

    /// From the first record to the last, ns; a call that began before tracing counts from its exit.
    pub fn span(&self) -> (u64, u64) {
        let enter = |call: &Call| if call.enter_ns == 0 { call.exit_ns } else { call.enter_ns };
        let first = [self.sleeps.front().map(|s| s.out_ns), self.calls.front().map(enter)];
        let last = [self.sleeps.back().map(|s| s.in_ns), self.calls.back().map(|c| c.exit_ns)];
        let (first, last) = (first.iter().flatten().min(), last.iter().flatten().max());
        (first.copied().unwrap_or(u64::MAX), last.copied().unwrap_or(0))
    }

    /// Times off the processor that touch a stretch of time, in order.
    pub fn sleeps(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &Sleep> {
        let first = up_to(&self.sleeps, 0, |sleep| sleep.in_ns <= from_ns);
        self.sleeps.range(first..).take_while(move |sleep| sleep.out_ns < to_ns)
    }

    /// The last time off the processor that began before `time_ns`.
    pub fn sleep_before(&self, time_ns: u64) -> Option<&Sleep> {
        // Mostly it is asked as soon as it is told.
        if self.sleeps.back().is_none_or(|last| last.out_ns < time_ns) {
            return self.sleeps.back();
        }
        // They do not overlap, so the order of the ends is that of the beginnings.
        let after = up_to(&self.sleeps, 0, |sleep| sleep.out_ns < time_ns);
        self.sleeps.get(after.checked_sub(1)?)
    }

    /// The call that the thread was in when it left the processor.
    pub fn call_of(&self, sleep: &Sleep) -> Option<&Call> {
        let at = up_to(&self.calls, 0, |call| call.exit_ns < sleep.in_ns);
        self.calls.get(at).filter(|call| call.enter_ns <= sleep.out_ns)
    }

    /// Calls that ended within a stretch of time, in order.
    pub fn calls(&self, from_ns: u64, to_ns: u64) -> impl DoubleEndedIterator<Item = &Call> {
        let first = up_to(&self.calls, 0, |call| call.exit_ns < from_ns);
        let last = up_to(&self.calls, first, |call| call.exit_ns <= to_ns);
        self.calls.range(first..last)
    }
}
