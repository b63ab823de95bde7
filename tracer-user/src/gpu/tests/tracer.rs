//! What a tracer gets of a [`World`]: records as the kernel half makes them, in the order in which
//! they are delivered.

use bytes::Bytes;

use super::model::Caller;
use super::program::{PID, Run, World};
use crate::intake::event::{Api, Call, Cuda, Event, Launches, Losses, What};

/// How long events wait to be put in order, ns.
const MARGIN: u64 = 2_000_000;
/// Longest run, ns.
const MAX_RUN: u64 = 10_000_000;

impl World {
    /// When the thread's next call begins.
    pub(super) fn after(&mut self, mind: usize, exit: u64) {
        let gap = if self.dice.chance(3) { 5_000_000 } else { 20_000 };
        let enter = exit + self.dice.time(gap);
        let effect = enter + self.dice.time(1_000);
        (self.minds[mind].enter, self.minds[mind].next) = (enter, effect);
        self.end = self.end.max(exit);
    }

    /// A call returns.
    #[expect(clippy::too_many_arguments, reason = "the parts of one call")]
    pub(super) fn told(
        &mut self,
        mind: usize,
        caller: Caller,
        api: Api,
        args: [u64; 6],
        out: Option<u64>,
        ret: i32,
        per_thread: bool,
    ) {
        self.flush(mind, caller.enter);
        let (tid, enter_ns, payload) = (caller.tid, caller.enter, Bytes::new());
        let call = Call { api, per_thread, enter_ns, args, out, ret, payload };
        if caller.enter >= self.attach {
            self.keep(tid, caller.exit, caller.exit, Cuda::Call(call));
        }
        self.after(mind, caller.exit);
    }

    /// A launch joins the thread's run.
    pub(super) fn gather(
        &mut self,
        mind: usize,
        lane: usize,
        node: Option<usize>,
        caller: Caller,
        captured: bool,
    ) {
        let joins = self.minds[mind].run.as_ref().is_some_and(|run| {
            run.lane == lane
                && run.captured == captured
                && caller.enter - run.first < MAX_RUN
                && (run.first >= self.attach) == (caller.enter >= self.attach)
        });
        if !joins {
            self.flush(mind, caller.enter);
            let (handle, thread) = (self.device.lanes[lane].handle, self.device.lanes[lane].thread);
            self.minds[mind].run = Some(Run {
                lane,
                stream: handle,
                per_thread: thread.is_some(),
                first: caller.enter,
                last: caller.enter,
                count: 0,
                captured,
            });
        }
        let Some(run) = self.minds[mind].run.as_mut() else { return };
        run.count += 1;
        run.last = caller.enter;
        let first = run.first;
        if let Some(node) = node {
            let truth = self.truth.entry((caller.tid, first)).or_default();
            truth.nodes.push(node);
            truth.told.push(None);
        }
        if self.dice.chance(10) {
            // The kernel half may tell of a run that goes on.
            self.tell_run(mind, caller.enter);
        }
    }

    /// The run is over.
    pub(super) fn flush(&mut self, mind: usize, now: u64) {
        self.tell_run(mind, now);
        self.minds[mind].run = None;
    }

    fn tell_run(&mut self, mind: usize, now: u64) {
        let tid = self.minds[mind].tid;
        let Some(run) = self.minds[mind].run.clone().filter(|run| run.first >= self.attach) else {
            return;
        };
        let launches = Launches {
            run: run.first,
            first_ns: run.first,
            last_ns: run.last,
            count: run.count,
            stream: Some(run.stream),
            per_thread: run.per_thread,
            function: 0xf,
            mixed: false,
            grid: [1; 3],
        };
        self.keep(tid, run.first, now, Cuda::Launches(launches));
    }

    fn keep(&mut self, tid: u32, time_ns: u64, arrival: u64, cuda: Cuda) {
        let event = Event { time_ns, pid: PID, tid, what: What::Cuda(cuda) };
        self.keyed.push((time_ns.max(arrival.saturating_sub(MARGIN)), arrival, event));
    }

    /// Puts the events in order, loses some, and notes when each operation was told of.
    pub(super) fn deliver(&mut self) {
        let mut keyed = std::mem::take(&mut self.keyed);
        if self.wish.losses {
            for _ in 0..1 + self.dice.below(3) {
                let from = self.dice.below(self.end);
                let to = from + self.dice.time(self.end / 4);
                keyed.retain(|(_, arrival, _)| !(from..=to).contains(arrival));
                let losses = Losses { cuda: 1, ..Losses::default() };
                let what = What::Loss(losses);
                keyed.push((to, to, Event { time_ns: to, pid: 0, tid: 0, what }));
            }
        }
        keyed.sort_by_key(|(key, arrival, _)| (*key, *arrival));
        for (key, _, event) in &keyed {
            let (first, count) = match &event.what {
                What::Cuda(Cuda::Call(call)) => (call.enter_ns, 1),
                What::Cuda(Cuda::Launches(run)) => (run.first_ns, run.count as usize),
                _ => continue,
            };
            if let Some(truth) = self.truth.get_mut(&(event.tid, first)) {
                for told in truth.told.iter_mut().take(count) {
                    told.get_or_insert(*key);
                }
            }
        }
        self.events = keyed.into_iter().map(|(_, _, event)| event).collect();
    }
}
