//! A small discrete-event model of a device and of threads that use it, written from NVIDIA's
//! pages on API synchronisation and stream synchronisation behaviour, apart from the room. What
//! the pages leave open is drawn per world.
//!
//! Everything that a stream holds is a node; a node starts when the nodes that it depends on have
//! ended and its call has taken effect. Threads act in the order in which their calls take effect.

use super::super::StreamKey;

/// What a node does, as a wait can be named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    H2d,
    Kernel,
    D2h,
    Other,
    /// A record or a wait: takes no time.
    Mark,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub work: Work,
    pub start: u64,
    pub end: u64,
    pub deps: Vec<usize>,
    pub stream: usize,
    /// Return of the enqueuing call.
    pub exit: u64,
}

/// A stream: its work in order.
#[derive(Clone, Debug)]
pub struct Lane {
    pub handle: u64,
    pub ctx: usize,
    /// Per-thread default stream of that thread.
    pub thread: Option<u32>,
    pub blocking: bool,
    pub legacy: bool,
    pub tail: Option<usize>,
    pub alive: bool,
    /// Thread that captures it, with the kinds recorded so far.
    pub captured: Option<u32>,
    /// Its handle is known from then on.
    pub made: u64,
    /// The only thread that uses it, and may destroy it.
    pub owner: Option<u32>,
}

/// What the pages leave open.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// A record, wait or synchronise on the legacy default stream is itself ordered with others.
    pub marks_order: bool,
    /// A copy from pageable memory first waits for its stream.
    pub staging_waits: bool,
    /// An asynchronous copy to pageable memory returns when it is done.
    pub pageable_async_blocks: bool,
    /// Engines are shared: starts are late by up to this, ns.
    pub contention: u64,
}

/// The device and what was put on it.
#[derive(Clone, Debug)]
pub struct Device {
    pub nodes: Vec<Node>,
    pub lanes: Vec<Lane>,
    pub habits: Habits,
}

/// Who enqueues, when.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub tid: u32,
    pub enter: u64,
    /// When the call takes effect.
    pub effect: u64,
    pub exit: u64,
}

impl Device {
    pub fn new(habits: Habits) -> Self {
        Self { nodes: Vec::new(), lanes: Vec::new(), habits }
    }

    pub fn lane(&mut self, handle: u64, ctx: usize, thread: Option<u32>, blocking: bool) -> usize {
        self.lanes.push(Lane {
            handle,
            ctx,
            thread,
            blocking,
            legacy: handle <= 1 && thread.is_none(),
            tail: None,
            alive: true,
            captured: None,
            made: 0,
            owner: None,
        });
        self.lanes.len() - 1
    }

    /// The default streams are made by their first use.
    pub fn default_lane(&mut self, ctx: usize, thread: Option<u32>) -> usize {
        let found = self
            .lanes
            .iter()
            .position(|lane| lane.ctx == ctx && lane.handle == 0 && lane.thread == thread);
        found.unwrap_or_else(|| self.lane(0, ctx, thread, true))
    }

    /// Nodes that what is put on the stream next is ordered behind.
    pub fn front(&self, lane: usize, orders: bool) -> Vec<usize> {
        let me = &self.lanes[lane];
        let mut front: Vec<usize> = me.tail.into_iter().collect();
        if !orders {
            return front;
        }
        for other in &self.lanes {
            let linked = if me.legacy {
                !other.legacy && other.blocking
            } else {
                me.blocking && other.legacy
            };
            if linked && other.ctx == me.ctx {
                front.extend(other.tail);
            }
        }
        front
    }

    /// Puts something on a stream.
    pub fn put(
        &mut self,
        lane: usize,
        work: Work,
        more: &[usize],
        duration: u64,
        delay: u64,
        caller: Caller,
    ) -> usize {
        let mut deps = self.front(lane, work != Work::Mark || self.habits.marks_order);
        deps.extend_from_slice(more);
        let ready = self.ended(&deps).max(caller.effect);
        let start = ready + if work == Work::Mark { 0 } else { delay };
        let end = start + duration;
        self.nodes.push(Node { work, start, end, deps, stream: lane, exit: caller.exit });
        let node = self.nodes.len() - 1;
        self.lanes[lane].tail = Some(node);
        node
    }

    /// When all of them have ended.
    pub fn ended(&self, nodes: &[usize]) -> u64 {
        nodes.iter().map(|node| self.nodes[*node].end).max().unwrap_or(0)
    }

    /// What a synchronise of the stream waits for.
    pub fn all_of(&self, lane: usize) -> Vec<usize> {
        self.front(lane, self.lanes[lane].legacy && self.habits.marks_order)
    }

    /// What a synchronise of the context waits for.
    pub fn all_of_ctx(&self, ctx: usize) -> Vec<usize> {
        self.lanes.iter().filter(|lane| lane.ctx == ctx).filter_map(|lane| lane.tail).collect()
    }

    /// Work that had not ended at `since` and that the nodes, or what they depend on, are.
    pub fn waited_for(&self, nodes: &[usize], since: u64) -> Vec<usize> {
        let mut seen = std::collections::BTreeSet::new();
        let mut todo = nodes.to_vec();
        while let Some(node) = todo.pop() {
            if self.nodes[node].end > since && seen.insert(node) {
                todo.extend(&self.nodes[node].deps);
            }
        }
        seen.into_iter().filter(|node| self.nodes[*node].work != Work::Mark).collect()
    }

    /// Whether the room's name for a stream can be this stream.
    pub fn is_named(&self, lane: usize, key: StreamKey) -> bool {
        let lane = &self.lanes[lane];
        match key {
            StreamKey::Handle(handle) => handle == lane.handle && handle > 2,
            StreamKey::Legacy(_) => lane.legacy,
            StreamKey::PerThread(_, tid) => lane.thread == Some(tid),
            StreamKey::Unknown => false,
        }
    }
}

/// A call that waited, and for what.
#[derive(Clone, Debug)]
pub struct Waited {
    pub tid: u32,
    pub exit: u64,
    pub targets: Vec<usize>,
}

/// A call that proves a position in one stream complete.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    pub lane: usize,
    pub cutoff: u64,
    pub enter: u64,
    pub exit: u64,
    /// The event waited for.
    pub event: Option<u64>,
}

/// Random numbers: splitmix64.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// From 1 to `most`, small ones likelier.
    pub fn time(&mut self, most: u64) -> u64 {
        let bits = 64 - most.leading_zeros();
        let shift = self.below(u64::from(bits));
        1 + self.below((most >> shift).max(1))
    }
}
