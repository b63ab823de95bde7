//! When operations run.
//!
//! The times of an operation are computed when it is enqueued, from those of what it depends on
//! and from its engine. Only a host function takes a time nobody can know beforehand: what comes
//! after one is kept back until it has returned.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::abi::{Handle, HostFn, StreamCallback};
use crate::clock::now;
use crate::effects::{self, Effect};
use crate::engine::{Cost, Device, Engine};
use crate::oracle::{self, Kind, Op};

/// Completion of an operation: its end, and the number of the last effect it includes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub end: u64,
    pub effects: u64,
}

impl Done {
    fn join(self, other: Done) -> Done {
        Done { end: self.end.max(other.end), effects: self.effects.max(other.effects) }
    }
}

/// Completion of an operation that waits for a host function; set once it is known.
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    done: OnceLock<Done>,
}

/// Completion of an operation, known or not yet.
#[derive(Clone, Debug)]
pub enum When {
    At(Done),
    Later(Arc<Ticket>),
}

impl Default for When {
    fn default() -> Self {
        When::At(Done::default())
    }
}

impl When {
    /// The completion, if it is known by now.
    pub fn known(&self) -> Option<Done> {
        match self {
            When::At(done) => Some(*done),
            When::Later(ticket) => ticket.done.get().copied(),
        }
    }

    /// Whether the operation is complete at `time`.
    pub fn complete(&self, time: u64) -> bool {
        self.known().is_some_and(|d| d.end <= time && effects::done(d.effects))
    }
}

/// Completions that an operation, or somebody who waits, depends on.
#[derive(Clone, Debug, Default)]
pub struct After {
    floor: Done,
    later: Vec<Arc<Ticket>>,
}

impl After {
    /// Adds a completion.
    pub fn add(&mut self, when: &When) {
        match (when.known(), when) {
            (Some(done), _) => self.floor = self.floor.join(done),
            (None, When::Later(ticket)) => self.later.push(Arc::clone(ticket)),
            (None, When::At(_)) => {}
        }
    }

    /// Adds a completion to a set that lives long: settled tickets are thrown out as it grows.
    pub fn add_compact(&mut self, when: &When) {
        self.add(when);
        if self.later.len() >= 64 && self.later.len().is_power_of_two() {
            self.settle();
        }
    }

    /// Adds all that another set has.
    pub fn add_all(&mut self, other: &After) {
        self.floor = self.floor.join(other.floor);
        for ticket in &other.later {
            match ticket.done.get() {
                Some(done) => self.floor = self.floor.join(*done),
                None => self.later.push(Arc::clone(ticket)),
            }
        }
    }

    /// Replaces tickets that have been settled by their completion.
    pub fn settle(&mut self) {
        if !self.later.is_empty() {
            for ticket in std::mem::take(&mut self.later) {
                self.add(&When::Later(ticket));
            }
        }
    }

    /// The completion of all, if every one is known by now.
    pub fn known(&self) -> Option<Done> {
        let mut all = self.floor;
        for ticket in &self.later {
            all = all.join(*ticket.done.get()?);
        }
        Some(all)
    }

    /// Whether all are complete at `time`.
    pub fn complete(&self, time: u64) -> bool {
        self.known().is_some_and(|d| d.end <= time && effects::done(d.effects))
    }
}

/// A host function with its argument; both belong to the program.
#[derive(Clone, Copy, Debug)]
pub struct HostCall {
    pub func: HostFn,
    pub callback: StreamCallback,
    pub stream: Handle,
    pub data: *mut c_void,
}

// SAFETY: the pointer is only handed back to the program's own function, as documented.
unsafe impl Send for HostCall {}

/// What an operation does.
#[derive(Clone, Debug)]
pub struct Work {
    pub kind: Kind,
    pub engine: Option<Engine>,
    pub cost: Cost,
    pub bytes: u64,
    pub func: &'static str,
    pub pinned: bool,
    pub effect: Option<Effect>,
    pub host: Option<HostCall>,
    pub event: Handle,
    /// A kernel without a single thread: it may stand in a graph, but not be launched.
    pub empty: bool,
}

impl Work {
    /// An operation that takes no time and does nothing.
    pub fn marker(kind: Kind) -> Self {
        Work {
            kind,
            engine: None,
            cost: Cost::Fixed(0),
            bytes: 0,
            func: "",
            pinned: false,
            effect: None,
            host: None,
            event: 0,
            empty: false,
        }
    }
}

/// Who enqueued an operation, where and when.
#[derive(Clone, Debug)]
pub struct Source {
    pub id: u64,
    pub tid: u32,
    pub ctx: Handle,
    pub stream: Handle,
    pub device: i32,
    pub enqueue: u64,
    pub graph: u64,
    /// For the parts of a graph launch, and the launch itself: the earliest start.
    pub span: Option<Arc<AtomicU64>>,
}

struct Pending {
    work: Work,
    source: Source,
    floor: Done,
    missing: usize,
    ticket: Arc<Ticket>,
    followers: Vec<u64>,
}

/// A host function whose turn has come, or will come at a known time.
#[derive(Clone, Copy)]
pub struct Due {
    pub id: u64,
    pub ready: Done,
    pub call: HostCall,
}

/// The schedule of all devices.
pub struct Schedule {
    devices: Vec<Device>,
    pending: HashMap<u64, Pending>,
    due: Vec<Due>,
}

impl Schedule {
    pub fn new(devices: i32) -> Self {
        Schedule {
            devices: (0..devices.max(0) as u64).map(Device::new).collect(),
            pending: HashMap::new(),
            due: Vec::new(),
        }
    }

    /// Takes an operation on.
    pub fn submit(&mut self, work: Work, source: Source, mut after: After) -> When {
        after.settle();
        if after.later.is_empty() && work.host.is_none() {
            return When::At(self.run(work, &source, after.floor, source.enqueue));
        }
        let id = source.id;
        let ticket = Arc::new(Ticket { id, done: OnceLock::new() });
        let mut missing = 0;
        for earlier in &after.later {
            if let Some(p) = self.pending.get_mut(&earlier.id) {
                p.followers.push(id);
                missing += 1;
            }
        }
        let pending = Pending {
            work,
            source,
            floor: after.floor,
            missing,
            ticket: Arc::clone(&ticket),
            followers: Vec::new(),
        };
        self.pending.insert(id, pending);
        if missing == 0 {
            self.activate(id, now());
        }
        When::Later(ticket)
    }

    /// Computes the times of an operation whose dependencies are known at `time`, and has it done.
    fn run(&mut self, work: Work, source: &Source, after: Done, time: u64) -> Done {
        // Engines forget the past: nothing is placed before the moment at which it becomes known.
        let ready = after.end.max(time);
        let (start, end) = match (work.engine, self.devices.get_mut(source.device as usize)) {
            (Some(engine), Some(device)) => device.reserve(engine, ready, work.cost, time),
            _ => (ready, ready),
        };
        let mut effects = after.effects;
        report(&work, source, start, end);
        if let Some(effect) = work.effect {
            effects = effects.max(effects::submit(effect));
        }
        Done { end, effects }
    }

    /// The dependencies of a kept-back operation are all known.
    fn activate(&mut self, id: u64, time: u64) {
        let mut ready = vec![id];
        while let Some(id) = ready.pop() {
            let Some(p) = self.pending.get(&id) else { continue };
            if let Some(call) = p.work.host {
                let floor = Done { end: p.floor.end.max(p.source.enqueue), ..p.floor };
                self.due.push(Due { id, ready: floor, call });
                continue;
            }
            let Some(p) = self.pending.remove(&id) else { continue };
            let done = self.run(p.work, &p.source, p.floor, time.max(p.source.enqueue));
            ready.extend(self.settle_followers(&p.ticket, done, p.followers));
        }
    }

    fn settle_followers(&mut self, ticket: &Ticket, done: Done, followers: Vec<u64>) -> Vec<u64> {
        let _ = ticket.done.set(done);
        let mut ready = Vec::new();
        for id in followers {
            if let Some(p) = self.pending.get_mut(&id) {
                p.floor = p.floor.join(done);
                p.missing -= 1;
                if p.missing == 0 {
                    ready.push(id);
                }
            }
        }
        ready
    }

    /// The host function to run next, and whether its time has come.
    pub fn next_due(&self) -> Option<Due> {
        self.due.iter().min_by_key(|d| (d.ready.end, d.id)).copied()
    }

    /// A host function ran from `start` to `end`.
    pub fn host_returned(&mut self, id: u64, start: u64, end: u64) {
        self.due.retain(|d| d.id != id);
        let Some(p) = self.pending.remove(&id) else { return };
        report(&p.work, &p.source, start, end);
        let done = Done { end, effects: p.floor.effects };
        for id in self.settle_followers(&p.ticket, done, p.followers) {
            self.activate(id, end.max(now()));
        }
    }
}

/// Tells the oracle about an operation whose times are known.
fn report(work: &Work, source: &Source, start: u64, end: u64) {
    let mut start = start;
    if let Some(span) = &source.span {
        if work.kind == Kind::Graph {
            // The launch as a whole begins with its earliest part.
            start = span.load(Ordering::Relaxed).min(start);
        } else {
            span.fetch_min(start, Ordering::Relaxed);
        }
    }
    oracle::op(Op {
        id: source.id,
        kind: work.kind,
        tid: source.tid,
        ctx: source.ctx,
        stream: source.stream,
        device: source.device,
        enqueue: source.enqueue,
        start,
        end,
        bytes: work.bytes,
        func: work.func,
        pinned: work.pinned,
        graph: source.graph,
        event: work.event,
    });
}
