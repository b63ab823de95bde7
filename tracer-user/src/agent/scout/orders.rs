//! What the main thread wants of the scout.

use std::{collections::HashSet, sync::atomic::Ordering};

use tracer_ebpf::wire::policy::Setting;

use super::{super::glance, Availability, Identities, Message, SharedMemory, Worker, process};
use crate::{
    cost::{HEAD_BYTES, Level},
    intake::event::{Naming, ProcFact},
};

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Look what these threads are in, `(process, thread)` each.
    Look(Vec<(u32, u32)>),
    /// Look whether these descriptors still name these connections.
    Check(Vec<Naming>),
    /// Let go of every probe.
    Pause,
    /// Attach again, and trace whom it was before, whom they have become, and whoever is wanted
    /// since.
    Resume,
    /// Leave so much out, to keep to the cost budget.
    Shed(Level),
}

/// Orders that may wait.
pub const MAX_ORDERS: usize = 16;

/// Why nothing is attached.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    /// Somebody asked for it.
    by_hand: bool,
    /// What is left out to keep to the budget.
    level: Level,
    /// Nothing is attached.
    pub(super) resting: bool,
}

impl Rest {
    /// What is left out to keep to the budget.
    pub(super) fn level(self) -> Level {
        self.level
    }
}

impl Worker {
    /// Does what has been ordered meanwhile.
    pub(super) fn obey(&mut self) {
        while let Ok(order) = self.with.orders.try_recv() {
            match order {
                Order::Look(threads) => self.look(&threads),
                Order::Check(doubts) => self.check(&doubts),
                Order::Pause => self.rest.by_hand = true,
                Order::Resume => self.rest.by_hand = false,
                Order::Shed(level) => self.shed(level),
            }
            self.settle();
        }
    }

    fn look(&self, threads: &[(u32, u32)]) {
        for doing in glance::glance(threads, &self.with.door) {
            self.fact(ProcFact::Doing(doing));
        }
    }

    /// Attaches or lets go, as is wanted now.
    fn settle(&mut self) {
        let wanted = self.rest.by_hand || self.rest.level == Level::Nothing;
        if wanted == self.rest.resting {
            return;
        }
        if wanted {
            self.let_go()
        } else {
            self.attach_again()
        }
        self.with.drain.resting.store(self.rest.resting, Ordering::Relaxed);
        let _ = self.with.messages.send(Message::Paused(self.rest.resting));
    }

    /// Lets go of every probe, and forgets what only probes keep true.
    fn let_go(&mut self) {
        self.with.probes.detach_all();
        self.with.drain.launches_gather.store(false, Ordering::Relaxed);
        self.with.drain.forget_gathering.store(true, Ordering::Release);
        for pid in self.targets.keys() {
            self.fact(ProcFact::Paused { pid: *pid });
        }
        self.told("forgetting what is traced", |door| door.forget_everything());
        self.identities = Identities::default();
        self.memory = SharedMemory::default();
        self.policies.clear();
        self.tables = None;
        self.rest.resting = true;
    }

    /// Attaches again. What ran meanwhile is met as at the start.
    fn attach_again(&mut self) {
        let sees_sched =
            self.rest.level.sees_scheduler() && self.with.probes.sched == Availability::Available;
        if sees_sched {
            self.told("the scheduler", |door| door.turn_on(Setting::Sched));
        } else {
            self.told("the scheduler", |door| door.turn_off(Setting::Sched));
        }
        if let Err(error) = self.with.probes.attach_all(!sees_sched) {
            self.note(format!("tracing cannot go on: {error}"));
            self.with.probes.detach_all();
            return;
        }
        self.rest.resting = false;
        let before: HashSet<u32> = self.targets.drain().map(|(pid, _)| pid).collect();
        // Twice, as at the start.
        for _ in 0..2 {
            let running = self.with.selectors.running();
            let again = before.iter().copied().filter(|pid| process::exists(*pid));
            let all: HashSet<u32> = running.into_iter().chain(again).collect();
            all.into_iter().for_each(|pid| self.adopt(pid));
        }
        self.counts.targets.store(self.targets.len(), Ordering::Relaxed);
        for pid in before {
            if !self.targets.contains_key(&pid) {
                self.fact(ProcFact::Gone { pid });
            }
        }
    }

    /// Leaves more or less out than before.
    fn shed(&mut self, level: Level) {
        let before = std::mem::replace(&mut self.rest.level, level);
        // What is not seen any more is said before, what is seen again afterwards.
        if level > before {
            self.fact(ProcFact::Shed { level: level.number() });
        }
        let cap = (level >= Level::Heads).then_some(HEAD_BYTES);
        self.told("taking less payload", |door| door.cap_capture(cap));
        if !self.rest.resting {
            if before.sees_scheduler() != level.sees_scheduler() {
                self.watch_scheduler(level.sees_scheduler());
            }
            if before.sees_launches() && !level.sees_launches() {
                self.with.probes.detach_launches();
            } else if !before.sees_launches() && level.sees_launches() {
                self.hook_again();
            }
        }
        if level < before {
            self.fact(ProcFact::Shed { level: level.number() });
        }
    }

    fn watch_scheduler(&mut self, on: bool) {
        if on {
            match self.with.probes.attach_sched() {
                Ok(()) => self.told("the scheduler", |door| door.turn_on(Setting::Sched)),
                Err(error) => self.note(format!("the scheduler is not seen: {error}")),
            }
        } else {
            // First, or threads that end would wait for their last switch.
            self.told("the scheduler", |door| door.turn_off(Setting::Sched));
            self.with.probes.detach_sched();
        }
    }

    /// Hooks every driver anew.
    fn hook_again(&mut self) {
        self.with.probes.detach_libraries();
        let users: Vec<u32> =
            self.targets.iter().filter(|(_, cuda)| **cuda).map(|(pid, _)| *pid).collect();
        for pid in users {
            self.mapped(pid);
        }
    }
}
