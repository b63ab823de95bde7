//! Calls of a [`World`]'s threads that make, free, measure and capture.

use super::calls::{BUFFER, NOT_READY, PINNED};
use super::model::Work;
use super::program::{Step, World};
use crate::intake::event::Api;

impl World {
    pub(super) fn streams(&mut self, mind: usize) {
        let ctx = self.minds[mind].ctx;
        if self.dice.chance(75) {
            let blocking = self.dice.chance(50);
            let free: Vec<u64> = self
                .device
                .lanes
                .iter()
                .filter(|lane| !lane.alive)
                .map(|lane| lane.handle)
                .filter(|handle| {
                    !self.device.lanes.iter().any(|lane| lane.alive && lane.handle == *handle)
                })
                .collect();
            let handle = match free.first() {
                Some(handle) if self.dice.chance(60) => *handle,
                _ => {
                    self.handles += 16;
                    self.handles
                }
            };
            let lane = self.device.lane(handle, ctx, None, blocking);
            // No sooner than its call has returned.
            self.device.lanes[lane].made = self.minds[mind].next + 3_001;
            let owned = self.dice.chance(50);
            self.device.lanes[lane].owner = owned.then_some(self.minds[mind].tid);
            let args = [0x66, u64::from(!blocking), 0, 0, 0, 0];
            return self.simple(mind, Api::StreamCreate, args, Some(handle), 0);
        }
        let lane = self.pick(mind);
        let handle = self.device.lanes[lane].handle;
        if self.device.lanes[lane].owner.is_some() {
            self.device.lanes[lane].alive = false;
            self.simple(mind, Api::StreamDestroy, [handle, 0, 0, 0, 0, 0], None, 0);
        }
    }

    pub(super) fn pin(&mut self, mind: usize) {
        let n = mind as u64;
        let at = PINNED + n * BUFFER;
        let pinned = self.pinned[n as usize];
        self.pinned[n as usize] = !pinned;
        if pinned {
            self.simple(mind, Api::MemFreeHost, [at, 0, 0, 0, 0, 0], None, 0);
        } else if self.dice.chance(50) {
            self.simple(mind, Api::MemHostAlloc, [0x55, BUFFER, 0, 0, 0, 0], Some(at), 0);
        } else {
            self.simple(mind, Api::MemHostRegister, [at, BUFFER, 0, 0, 0, 0], None, 0);
        }
    }

    pub(super) fn measure(&mut self, mind: usize) {
        let lane = self.pick(mind);
        let (start, end) = (0xa0 + 2 * mind as u64, 0xa1 + 2 * mind as u64);
        let count = if self.dice.chance(60) { 1 } else { self.dice.time(4) };
        let script = &mut self.minds[mind].script;
        script.push_back(Step::Record(start, lane));
        for _ in 0..count {
            script.push_back(match self.dice.below(3) {
                0 => Step::Copy(lane, true),
                1 => Step::Copy(lane, false),
                _ => Step::Launch(lane),
            });
        }
        script.push_back(Step::Record(end, lane));
        if self.dice.chance(80) {
            script.push_back(Step::Sync(lane));
        }
        script.push_back(Step::Elapsed(start, end));
    }

    pub(super) fn elapsed(&mut self, mind: usize, start: u64, end: u64) {
        let caller = self.caller(mind);
        let end_of = |event| self.marks.get(&event).map(|mark| self.device.nodes[mark.node].end);
        let (Some(a), Some(b)) = (end_of(start), end_of(end)) else {
            return self.simple(mind, Api::MemAlloc, [0; 6], None, 0);
        };
        if a.max(b) > caller.effect {
            let args = [0x44, start, end, 0, 0, 0];
            return self.simple(mind, Api::EventElapsedTime, args, None, NOT_READY);
        }
        let noise = self.dice.below(1_000) as f64 - 500.0;
        let ms = (b as f64 - a as f64 + noise) / 1e6;
        let out = u64::from((ms as f32).to_bits()) | 0xdead << 32;
        self.simple(mind, Api::EventElapsedTime, [0x44, start, end, 0, 0, 0], Some(out), 0);
    }

    pub(super) fn capture(&mut self, mind: usize) {
        let (lane, other) = (self.pick(mind), self.pick(mind));
        let can = |lane: usize| {
            let lane = &self.device.lanes[lane];
            lane.handle > 2 && !lane.blocking && lane.owner.is_some()
        };
        if !can(lane) {
            return;
        }
        let tid = self.minds[mind].tid;
        let forks = other != lane && can(other) && self.wish.late == 0;
        self.device.lanes[lane].captured = Some(tid);
        self.minds[mind].recorded.clear();
        let handle = self.device.lanes[lane].handle;
        self.simple(mind, Api::StreamBeginCapture, [handle, 2, 0, 0, 0, 0], None, 0);
        let copies = self.dice.chance(40);
        let (fork, back) = (0xf0 + 2 * mind as u64, 0xf1 + 2 * mind as u64);
        let mut script = vec![Step::Launch(lane)];
        if copies {
            script.push(Step::Copy(lane, self.dice.chance(50)));
        }
        if forks {
            self.device.lanes[other].captured = Some(tid);
            script.extend([Step::Record(fork, lane), Step::Join(other, fork)]);
            script.extend([Step::Launch(other), Step::Record(back, other), Step::Join(lane, back)]);
        }
        script.extend([Step::Launch(lane), Step::End(lane)]);
        if self.dice.chance(20) {
            script.push(Step::Call(Api::MemAlloc));
        }
        script.push(Step::Instantiate);
        self.minds[mind].script.extend(script);
    }

    pub(super) fn launch_graph(&mut self, mind: usize) {
        if self.execs.is_empty() {
            return;
        }
        let n = self.dice.below(self.execs.len() as u64) as usize;
        let (exec, kinds) = self.execs[n].clone();
        let kernels = !kinds.is_empty() && kinds.iter().all(|work| *work == Work::Kernel);
        let lane = self.pick(mind);
        let (handle, per_thread) = self.name(lane);
        let caller = self.caller(mind);
        let node = self.put(lane, if kernels { Work::Kernel } else { Work::Other }, caller);
        self.note(node, caller);
        let args = [exec, handle, 0, 0, 0, 0];
        self.told(mind, caller, Api::GraphLaunch, args, None, 0, per_thread);
    }
}
