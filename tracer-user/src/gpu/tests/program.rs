//! Random programs on the model: threads that call the driver, and the events that a tracer gets.

use std::collections::{BTreeMap, VecDeque};

use super::model::{Device, Dice, Habits, Proof, Waited, Work};
use crate::intake::event::{Api, Event};

pub(super) const PID: u32 = 7;
const CONTEXTS: u64 = 0xc000_0000;

/// What kind of world to draw.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub seed: u64,
    pub threads: u64,
    pub calls: u64,
    pub contexts: usize,
    /// The tracer attaches when this share of the calls has been made, in percent.
    pub late: u64,
    pub losses: bool,
}

/// One launch of a run as the tracer gathers it.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) lane: usize,
    pub(super) stream: u64,
    pub(super) per_thread: bool,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) count: u32,
    pub(super) captured: bool,
}

/// An operation as the tracer is to report it: its nodes (one per launch).
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub nodes: Vec<usize>,
    /// When the tracer's record of each is delivered; none where it never is.
    pub told: Vec<Option<u64>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Mind {
    pub(super) tid: u32,
    pub(super) ctx: usize,
    /// Entry of its next call, and when that takes effect.
    pub(super) enter: u64,
    pub(super) next: u64,
    pub(super) run: Option<Run>,
    pub(super) polls: Option<Polled>,
    /// Kernel half's streak: function, object, last entry, count.
    pub(super) streak: Option<(Api, u64, u64, u64)>,
    pub(super) script: VecDeque<Step>,
    /// What the capture in progress has recorded.
    pub(super) recorded: Vec<Work>,
    pub(super) quiet: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Polled {
    Event(u64),
    Lane(usize),
}

/// What a thread is bound to do next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Launch(usize),
    Copy(usize, bool),
    Record(u64, usize),
    Join(usize, u64),
    End(usize),
    Instantiate,
    Call(Api),
    Sync(usize),
    Elapsed(u64, u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) node: usize,
    pub(super) enter: u64,
    pub(super) exit: u64,
    pub(super) seen: bool,
}

pub struct World {
    pub device: Device,
    pub events: Vec<Event>,
    pub waits: Vec<Waited>,
    pub proofs: Vec<Proof>,
    /// By thread and entry.
    pub truth: BTreeMap<(u32, u64), Truth>,
    pub end: u64,
    pub(super) keyed: Vec<(u64, u64, Event)>,
    pub(super) dice: Dice,
    pub(super) wish: Wish,
    pub(super) attach: u64,
    pub(super) minds: Vec<Mind>,
    pub(super) marks: BTreeMap<u64, Mark>,
    pub(super) pinned: Vec<bool>,
    pub(super) execs: Vec<(u64, Vec<Work>)>,
    pub(super) handles: u64,
    /// Events recorded, and when that returned.
    pub(super) records: Vec<(u64, u64)>,
}

impl World {
    pub fn draw(wish: Wish) -> Self {
        let mut dice = Dice(wish.seed);
        let habits = Habits {
            marks_order: dice.chance(50),
            staging_waits: dice.chance(50),
            pageable_async_blocks: dice.chance(50),
            contention: if dice.chance(50) { dice.time(300_000) } else { 0 },
        };
        let mut world = Self {
            device: Device::new(habits),
            events: Vec::new(),
            waits: Vec::new(),
            proofs: Vec::new(),
            truth: BTreeMap::new(),
            end: 0,
            keyed: Vec::new(),
            dice,
            wish,
            attach: 0,
            minds: Vec::new(),
            marks: BTreeMap::new(),
            pinned: vec![false; wish.threads as usize],
            execs: Vec::new(),
            handles: 0x1000,
            records: Vec::new(),
        };
        for n in 0..wish.threads {
            let ctx = n as usize % wish.contexts;
            // The first thread may create the context that all use.
            let enter = if n == 0 { 1_000 } else { 20_000 + world.dice.time(1_000) };
            let (tid, next) = (100 + n as u32, enter + 10);
            world.minds.push(Mind { tid, ctx, enter, next, ..Mind::default() });
        }
        world.live();
        world
    }

    fn live(&mut self) {
        for mind in 0..self.minds.len() {
            let ctx = CONTEXTS + self.minds[mind].ctx as u64;
            let create = self.wish.late == 0 && self.wish.contexts == 1 && mind == 0;
            let api = if create { Api::CtxCreate } else { Api::CtxSetCurrent };
            if create || self.wish.contexts > 1 || self.dice.chance(30) {
                let arg = if create { 0x10 } else { ctx };
                self.simple(mind, api, [arg, 0, 0, 0, 0, 0], Some(ctx), 0);
            }
        }
        for n in 0..self.wish.calls {
            if n * 100 / self.wish.calls.max(1) >= self.wish.late && self.attach == u64::MAX {
                self.attach = self.earliest().1;
            }
            if n == 0 && self.wish.late > 0 {
                self.attach = u64::MAX;
            }
            let (mind, _) = self.earliest();
            self.act(mind);
        }
        while let Some(mind) = (0..self.minds.len())
            .filter(|mind| !self.minds[*mind].script.is_empty())
            .min_by_key(|mind| self.minds[*mind].next)
        {
            self.act(mind);
        }
        // Everything comes to an end, and one thread waits for it.
        let last = self.minds.iter().map(|mind| mind.next).max().unwrap_or(0) + 100_000;
        for mind in 0..self.minds.len() {
            (self.minds[mind].enter, self.minds[mind].next) = (last, last + 10);
            self.sync_ctx(mind);
        }
        for mind in 0..self.minds.len() {
            let at = self.minds[mind].next;
            self.flush(mind, at);
        }
        self.deliver();
    }

    fn earliest(&self) -> (usize, u64) {
        let of = |i: usize| (i, self.minds[i].next);
        (0..self.minds.len()).map(of).min_by_key(|(i, next)| (*next, *i)).unwrap()
    }

    fn act(&mut self, mind: usize) {
        if let Some(step) = self.minds[mind].script.pop_front() {
            return self.follow(mind, step);
        }
        if let Some(polled) = self.minds[mind].polls {
            if !self.dice.chance(5) {
                return self.query(mind, polled);
            }
            self.minds[mind].polls = None;
        }
        match self.dice.below(100) {
            0..25 => {
                let lane = self.pick(mind);
                let burst = self.dice.time(6);
                self.minds[mind].script.extend((0..burst).map(|_| Step::Launch(lane)));
            }
            25..37 => self.copy_blocking(mind),
            37..49 => {
                let lane = self.pick(mind);
                let to_device = self.dice.chance(50);
                self.copy_async(mind, lane, to_device);
            }
            49..53 => self.on_device(mind),
            53..61 => {
                let lane = self.pick(mind);
                self.sync(mind, lane);
            }
            61..63 => self.sync_ctx(mind),
            63..70 => {
                let (lane, event) = (self.pick(mind), 0xe0 + self.dice.below(6));
                self.record(mind, event, lane);
            }
            70..75 => {
                let (lane, event) = (self.pick(mind), 0xe0 + self.dice.below(6));
                self.join(mind, lane, event);
            }
            75..79 => self.sync_event(mind),
            79..84 => {
                self.minds[mind].polls = Some(if self.dice.chance(70) {
                    Polled::Event(0xe0 + self.dice.below(6))
                } else {
                    Polled::Lane(self.pick(mind))
                });
                self.minds[mind].quiet = self.dice.chance(60);
            }
            84..88 => self.streams(mind),
            88..91 => self.pin(mind),
            91..93 => self.measure(mind),
            93..95 => self.capture(mind),
            95..97 => self.launch_graph(mind),
            97..99 => {
                let lane = self.pick(mind);
                let handle = self.device.lanes[lane].handle;
                let api =
                    [Api::StreamSynchronize, Api::MemcpyDtoH, Api::EventRecord, Api::MemAlloc]
                        [self.dice.below(4) as usize];
                self.simple(mind, api, [handle, handle, 64, 0, 0, 0], None, 700);
            }
            _ => self.simple(mind, Api::MemFree, [0xd000, 0, 0, 0, 0, 0], None, 0),
        }
    }

    fn follow(&mut self, mind: usize, step: Step) {
        match step {
            Step::Launch(lane) => self.launch(mind, lane),
            Step::Copy(lane, to_device) => self.copy_async(mind, lane, to_device),
            Step::Record(event, lane) => self.record(mind, event, lane),
            Step::Join(lane, event) => self.join(mind, lane, event),
            Step::Sync(lane) => self.sync(mind, lane),
            Step::Elapsed(start, end) => self.elapsed(mind, start, end),
            Step::Call(api) => self.simple(mind, api, [0x77, 64, 0, 0, 0, 0], Some(0x7_0000), 0),
            Step::End(lane) => {
                let handle = self.device.lanes[lane].handle;
                let tid = self.minds[mind].tid;
                self.simple(mind, Api::StreamEndCapture, [handle, 0x99, 0, 0, 0, 0], None, 0);
                for lane in &mut self.device.lanes {
                    if lane.captured == Some(tid) {
                        lane.captured = None;
                    }
                }
            }
            Step::Instantiate => {
                self.handles += 16;
                let (graph, exec) = (self.handles, self.handles + 8);
                let recorded = std::mem::take(&mut self.minds[mind].recorded);
                self.execs.push((exec, recorded));
                let args = [0x88, graph, 0, 0, 0, 0];
                self.simple(mind, Api::GraphInstantiateWithFlags, args, Some(exec), 0);
            }
        }
    }
}
