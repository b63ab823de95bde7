//! The calls that threads of a [`World`] make.

use super::model::{Caller, Proof, Waited, Work};
use super::program::{Mark, Polled, Truth, World};
use crate::intake::event::Api;

pub(super) const PINNED: u64 = 0x7f00_0000_0000;
const PAGEABLE: u64 = 0x5500_0000_0000;
pub(super) const BUFFER: u64 = 1 << 20;
pub(super) const NOT_READY: i32 = 600;

impl World {
    /// The thread's next call.
    pub(super) fn caller(&mut self, mind: usize) -> Caller {
        let (tid, enter, effect) =
            (self.minds[mind].tid, self.minds[mind].enter, self.minds[mind].next);
        Caller { tid, enter, effect, exit: effect + self.dice.time(3_000) }
    }

    pub(super) fn simple(
        &mut self,
        mind: usize,
        api: Api,
        args: [u64; 6],
        out: Option<u64>,
        ret: i32,
    ) {
        let caller = self.caller(mind);
        self.told(mind, caller, api, args, out, ret, false);
    }

    /// A stream for the thread: default ones and those of its context.
    pub(super) fn pick(&mut self, mind: usize) -> usize {
        let (tid, ctx) = (self.minds[mind].tid, self.minds[mind].ctx);
        let enter = self.minds[mind].enter;
        let own: Vec<usize> = (0..self.device.lanes.len())
            .filter(|lane| {
                let lane = &self.device.lanes[*lane];
                let owned = lane.owner.is_none_or(|owner| owner == tid);
                let usable = lane.alive && lane.captured.is_none() && lane.made <= enter;
                usable && owned && lane.handle > 2 && lane.ctx == ctx
            })
            .collect();
        match self.dice.below(10) {
            0..3 => self.device.default_lane(ctx, None),
            3..5 => self.device.default_lane(ctx, Some(tid)),
            _ if own.is_empty() => self.device.default_lane(ctx, None),
            _ => own[self.dice.below(own.len() as u64) as usize],
        }
    }

    /// How a call names a stream: handle, and whether through a per-thread symbol.
    pub(super) fn name(&mut self, lane: usize) -> (u64, bool) {
        let lane = &self.device.lanes[lane];
        match (lane.handle, lane.thread) {
            (0, Some(_)) => [(0, true), (2, false)][self.dice.below(2) as usize],
            (0, None) => [(0, false), (1, false)][self.dice.below(2) as usize],
            (handle, _) => (handle, self.dice.chance(20)),
        }
    }

    fn taken(&self, mind: usize, lane: usize) -> bool {
        let lane = &self.device.lanes[lane];
        !lane.alive || lane.captured.is_some_and(|tid| tid != self.minds[mind].tid)
    }

    pub(super) fn is_captured(&self, mind: usize, lane: usize) -> bool {
        self.device.lanes[lane].captured == Some(self.minds[mind].tid)
    }

    /// How late an engine begins: shared with other streams only.
    fn delay(&mut self, lane: usize, effect: u64) -> u64 {
        let device = &self.device;
        let busy = |i: &usize| device.nodes[*i].end > effect;
        let others = device.lanes.iter().enumerate().filter(|(other, _)| *other != lane);
        let shared = others.filter_map(|(_, other)| other.tail).any(|tail| busy(&tail));
        let most = device.habits.contention;
        if shared && most > 0 { self.dice.time(most) } else { self.dice.time(2_000) }
    }

    pub(super) fn put(&mut self, lane: usize, work: Work, caller: Caller) -> usize {
        let most = if self.dice.chance(20) { 3_000_000 } else { 80_000 };
        let duration = self.dice.time(most);
        let delay = self.delay(lane, caller.effect);
        self.device.put(lane, work, &[], duration, delay, caller)
    }

    pub(super) fn note(&mut self, node: usize, caller: Caller) {
        let truth = Truth { nodes: vec![node], told: vec![None] };
        self.truth.insert((caller.tid, caller.enter), truth);
    }

    pub(super) fn launch(&mut self, mind: usize, lane: usize) {
        if self.taken(mind, lane) {
            return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
        }
        let caller = self.caller(mind);
        let captured = self.is_captured(mind, lane);
        let node = if captured {
            self.minds[mind].recorded.push(Work::Kernel);
            None
        } else {
            Some(self.put(lane, Work::Kernel, caller))
        };
        self.gather(mind, lane, node, caller, captured);
        self.after(mind, caller.exit);
    }

    pub(super) fn copy_async(&mut self, mind: usize, lane: usize, to_device: bool) {
        if self.taken(mind, lane) {
            return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
        }
        let mut caller = self.caller(mind);
        let (host, pinned) = self.buffer(mind);
        let (handle, per_thread) = self.name(lane);
        let (api, work) = if to_device {
            (Api::MemcpyHtoDAsync, Work::H2d)
        } else {
            (Api::MemcpyDtoHAsync, Work::D2h)
        };
        let (dst, src) = if to_device { (0xd000, host) } else { (host, 0xd000) };
        if self.is_captured(mind, lane) {
            self.minds[mind].recorded.push(work);
        } else {
            let node = self.put(lane, work, caller);
            if !pinned && !to_device && self.device.habits.pageable_async_blocks {
                caller.exit = caller.exit.max(self.device.nodes[node].end + 100);
                self.device.nodes[node].exit = caller.exit;
            }
            self.note(node, caller);
        }
        self.told(mind, caller, api, [dst, src, 4096, handle, 0, 0], None, 0, per_thread);
    }

    /// A thread frees no memory under another's copy.
    fn buffer(&mut self, mind: usize) -> (u64, bool) {
        if self.dice.chance(30) {
            return (PAGEABLE, false);
        }
        let n = mind as u64;
        (PINNED + n * BUFFER + self.dice.below(1_000), self.pinned[n as usize])
    }

    pub(super) fn copy_blocking(&mut self, mind: usize) {
        let mut caller = self.caller(mind);
        let (ctx, tid) = (self.minds[mind].ctx, self.minds[mind].tid);
        let per_thread = self.dice.chance(40);
        let lane = self.device.default_lane(ctx, per_thread.then_some(tid));
        let (host, pinned) = self.buffer(mind);
        let to_device = self.dice.chance(50);
        let mut targets = Vec::new();
        if to_device && !pinned && self.device.habits.staging_waits {
            targets = self.device.all_of(lane);
            caller.effect = caller.effect.max(self.device.ended(&targets));
        }
        let work = if to_device { Work::H2d } else { Work::D2h };
        let node = self.put(lane, work, caller);
        targets.push(node);
        caller.exit = if to_device && !pinned {
            caller.effect + self.dice.time(20_000)
        } else {
            self.device.nodes[node].end + self.dice.time(3_000)
        };
        self.device.nodes[node].exit = caller.exit;
        self.note(node, caller);
        let (api, dst, src) = if to_device {
            (Api::MemcpyHtoD, 0xd000, host)
        } else {
            (Api::MemcpyDtoH, host, 0xd000)
        };
        self.waits.push(Waited { tid, exit: caller.exit, targets });
        self.told(mind, caller, api, [dst, src, 4096, 0, 0, 0], None, 0, per_thread);
    }

    pub(super) fn on_device(&mut self, mind: usize) {
        let lane = self.device.default_lane(self.minds[mind].ctx, None);
        let caller = self.caller(mind);
        let node = self.put(lane, Work::Other, caller);
        self.note(node, caller);
        let api = [Api::MemcpyDtoD, Api::MemsetD8, Api::MemsetD32][self.dice.below(3) as usize];
        self.told(mind, caller, api, [0xd000, 0xd100, 64, 0, 0, 0], None, 0, false);
    }

    /// A call that waits for the nodes returns.
    #[expect(clippy::too_many_arguments, reason = "the parts of one call")]
    fn waited(
        &mut self,
        mind: usize,
        mut caller: Caller,
        api: Api,
        args: [u64; 6],
        per_thread: bool,
        targets: Vec<usize>,
        proof: Option<(usize, u64)>,
    ) {
        caller.exit = caller.exit.max(self.device.ended(&targets) + self.dice.time(2_000));
        self.waits.push(Waited { tid: caller.tid, exit: caller.exit, targets });
        if let Some((lane, cutoff)) = proof
            && caller.enter >= self.attach
        {
            let event = (api == Api::EventSynchronize).then_some(args[0]);
            let (enter, exit) = (caller.enter, caller.exit);
            self.proofs.push(Proof { lane, cutoff, enter, exit, event });
        }
        self.told(mind, caller, api, args, None, 0, per_thread);
    }

    pub(super) fn sync(&mut self, mind: usize, lane: usize) {
        if self.taken(mind, lane) {
            return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
        }
        let caller = self.caller(mind);
        let (handle, per_thread) = self.name(lane);
        let targets = self.device.all_of(lane);
        let (api, args) = (Api::StreamSynchronize, [handle, 0, 0, 0, 0, 0]);
        self.waited(mind, caller, api, args, per_thread, targets, Some((lane, caller.enter)));
    }

    pub(super) fn sync_ctx(&mut self, mind: usize) {
        if self.device.lanes.iter().any(|lane| lane.captured.is_some()) {
            return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
        }
        let caller = self.caller(mind);
        let targets = self.device.all_of_ctx(self.minds[mind].ctx);
        self.waited(mind, caller, Api::CtxSynchronize, [0x1234; 6], false, targets, None);
    }

    pub(super) fn record(&mut self, mind: usize, event: u64, lane: usize) {
        if self.taken(mind, lane) {
            return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
        }
        let caller = self.caller(mind);
        let (handle, per_thread) = self.name(lane);
        if self.is_captured(mind, lane) {
            self.marks.remove(&event);
        } else {
            let node = self.device.put(lane, Work::Mark, &[], 0, 0, caller);
            // Of two records that overlap, it cannot be told which is the last.
            let apart = self.marks.get(&event).is_none_or(|mark| mark.exit <= caller.enter);
            let seen = caller.enter >= self.attach && apart;
            self.records.push((event, caller.exit));
            self.marks.insert(event, Mark { node, enter: caller.enter, exit: caller.exit, seen });
        }
        self.told(mind, caller, Api::EventRecord, [event, handle, 0, 0, 0, 0], None, 0, per_thread);
    }

    pub(super) fn join(&mut self, mind: usize, lane: usize, event: u64) {
        if self.taken(mind, lane) || self.is_recording(mind, event) {
            return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
        }
        let caller = self.caller(mind);
        let (handle, per_thread) = self.name(lane);
        if !self.is_captured(mind, lane)
            && let Some(mark) = self.marks.get(&event).copied()
        {
            self.device.put(lane, Work::Mark, &[mark.node], 0, 0, caller);
        }
        let args = [handle, event, 0, 0, 0, 0];
        self.told(mind, caller, Api::StreamWaitEvent, args, None, 0, per_thread);
    }

    /// A thread does not use an event while another is recording it.
    fn is_recording(&self, mind: usize, event: u64) -> bool {
        self.marks.get(&event).is_some_and(|mark| mark.exit > self.minds[mind].enter)
    }

    pub(super) fn sync_event(&mut self, mind: usize) {
        let event = 0xe0 + self.dice.below(6);
        if self.is_recording(mind, event) {
            return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
        }
        let caller = self.caller(mind);
        let mark = self.marks.get(&event).copied();
        let targets = mark.iter().map(|mark| mark.node).collect();
        let proof = mark
            .filter(|mark| mark.seen && mark.exit <= caller.enter)
            .map(|mark| (self.device.nodes[mark.node].stream, mark.enter));
        let args = [event, 0, 0, 0, 0, 0];
        self.waited(mind, caller, Api::EventSynchronize, args, false, targets, proof);
    }

    pub(super) fn query(&mut self, mind: usize, polled: Polled) {
        let mut caller = self.caller(mind);
        let (api, object, targets, per_thread) = match polled {
            Polled::Event(event) if self.is_recording(mind, event) => {
                return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
            }
            Polled::Event(event) => {
                let targets = self.marks.get(&event).map(|mark| mark.node).into_iter().collect();
                (Api::EventQuery, event, targets, false)
            }
            Polled::Lane(lane) if self.taken(mind, lane) => {
                self.minds[mind].polls = None;
                return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
            }
            Polled::Lane(lane) => {
                let (handle, per_thread) = self.name(lane);
                (Api::StreamQuery, handle, self.device.all_of(lane), per_thread)
            }
        };
        caller.exit = caller.effect + 50;
        let ready = self.device.ended(&targets) <= caller.effect;
        self.waits.push(Waited { tid: caller.tid, exit: caller.exit, targets });
        let streak = self.minds[mind].streak;
        let same = streak.is_some_and(|streak| streak.0 == api && streak.1 == object);
        let mut args = [object, 0, 0, 0, 0, 0];
        let quiet = self.minds[mind].quiet && caller.enter >= self.attach;
        if ready {
            self.minds[mind].polls = None;
            if let Some((_, _, last, count)) = streak.filter(|_| same && quiet) {
                (args[4], args[5]) = (last, count);
                self.minds[mind].streak = None;
            }
        } else if quiet {
            let count = if same { streak.map_or(0, |streak| streak.3) + 1 } else { 1 };
            self.minds[mind].streak = Some((api, object, caller.enter, count));
            if same {
                let enter = caller.enter;
                self.flush(mind, enter);
                return self.after(mind, caller.exit);
            }
        }
        let ret = if ready { 0 } else { NOT_READY };
        self.told(mind, caller, api, args, None, ret, per_thread);
    }
}
