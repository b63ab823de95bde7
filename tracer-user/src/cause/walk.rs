//! The walk backwards from a response to its request, along who waited for whom.

mod blocked;

use super::{
    Causes,
    history::{Call, Thread},
    item::{End, Item},
    order::{FOLLOWED, handed_by},
};
use crate::{
    intake::event::{SchedCall, SleepState},
    stream::Exchange,
    timeline::{
        model::{Evidence, PhaseName},
        tile::Stretch,
    },
};

/// Steps of one request's walk at most; what lies before is left unattributed.
pub(super) const MAX_STEPS: usize = 20_000;
/// Items within items that are followed up to the one that a request was handed in.
const MAX_DEPTH: usize = 8;
/// Confidence of what was handed over within an item that is followed.
const WITHIN: f64 = 0.95;
/// Notes of one walk at most.
const MAX_NOTES: usize = 4_096;

/// What is walked.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The request.
    pub exchange: &'a Exchange,
    /// Its end, or now, ns.
    pub end_ns: u64,
    /// From when on it was the server's turn: its last byte was read, and the response before it on
    /// its connection was written, ns.
    pub from_ns: u64,
    /// The thread that alone served it and nothing else meanwhile.
    pub own_thread: Option<u32>,
}

/// A stretch of a thread's time that belongs to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Begin, ns.
    pub from_ns: u64,
    /// End, ns.
    pub to_ns: u64,
    /// How that is known.
    pub evidence: Evidence,
    /// 0 to 1.
    pub confidence: f64,
}

/// One step of a walk, for those who want to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Begin of what it speaks of, ns.
    pub from_ns: u64,
    /// End, ns.
    pub to_ns: u64,
    /// Thread.
    pub tid: u32,
    /// What was found.
    pub text: String,
}

/// What a walk found.
#[derive(Debug, Default)]
pub struct Path {
    /// Where the time went, by precedence: an earlier one keeps what it covers. GPU phases are not
    /// among them.
    pub stretches: Vec<Stretch>,
    /// Threads' times that the walk led through: thread, begin, end.
    pub slices: Vec<(u32, u64, u64)>,
    /// Threads' times that belong to the request, on the path or beside it.
    pub segments: Vec<Segment>,
    /// What was done, where that was asked for.
    pub notes: Vec<Note>,
    /// Steps went out before the walk was through.
    pub cut: bool,
}

/// Stretches by their precedence.
#[derive(Default)]
struct Found {
    dependency: Vec<Stretch>,
    lock: Vec<Stretch>,
    io: Vec<Stretch>,
    run_queue: Vec<Stretch>,
    waits_for_worker: Vec<Stretch>,
    busy: Vec<Stretch>,
    cpu: Vec<Stretch>,
    unattributed: Vec<Stretch>,
}

/// Where a visit to a thread ended.
enum Way {
    /// At the beginning of what was asked for.
    Through,
    /// At a wake by a thread that worked for the request.
    Woken { tid: u32, at_ns: u64 },
}

struct Walk<'a> {
    causes: &'a Causes,
    request: &'a Request<'a>,
    /// The request's items that were completed, by their end: a stream has one for each chunk.
    done: Vec<&'a Item>,
    found: Found,
    path: Path,
    /// The thread whose completion the visited one waited for last, and when that began, ns.
    completed: Option<(u32, u64)>,
    steps: usize,
    wants_notes: bool,
}

impl Causes {
    /// Walks a request; `wants_notes`: with a note for each step.
    pub fn walk(&self, request: &Request<'_>, wants_notes: bool) -> Path {
        let (found, path) = (Found::default(), Path::default());
        let (completed, done) = (None, Vec::new());
        let mut walk =
            Walk { causes: self, request, done, found, path, completed, steps: 0, wants_notes };
        if self.shares_threads(request.exchange.pid) {
            walk.note(0, request.from_ns, request.end_ns, || {
                "threads of this process share its requests: none is walked".to_owned()
            });
            return walk.path;
        }
        walk.done = walk.completed();
        walk.legs();
        walk.dependencies();
        walk.segments();
        let Found { dependency, lock, io, run_queue, waits_for_worker, busy, cpu, unattributed } =
            walk.found;
        walk.path.stretches = dependency;
        // Time on the way that belongs to no one is not the GPU's either.
        for found in [lock, io, run_queue, waits_for_worker, busy, cpu, unattributed] {
            walk.path.stretches.extend(found);
        }
        walk.path
    }

    /// Whose an item is: its own owner, or that of the item that it was handed over in.
    fn root_owner(&self, item: &Item) -> Option<super::Owner> {
        let mut item = item;
        for _ in 0..MAX_DEPTH {
            if let Some(owner) = self.order.owner(item.id) {
                return Some(*owner);
            }
            item = self.items.get(item.parent?)?;
        }
        None
    }

    /// The item in which a thread worked for a request at a time, ns.
    fn worked_for(&self, tid: u32, time_ns: u64, exchange: u64) -> Option<&Item> {
        let item = self.items.at(tid, time_ns)?;
        let owner = self.root_owner(item)?;
        (owner.exchange == exchange && owner.confidence >= FOLLOWED).then_some(item)
    }

    /// Whether the thread handed something to the other lately.
    fn has_handed(&self, from: u32, to: u32, time_ns: u64) -> bool {
        let at = self.hands.get(&(from, to)).copied();
        at.is_some_and(|at| at.saturating_add(super::WAITED_NS) >= time_ns)
    }
}

impl<'a> Walk<'a> {
    fn note(&mut self, tid: u32, from_ns: u64, to_ns: u64, text: impl FnOnce() -> String) {
        if self.wants_notes && self.path.notes.len() < MAX_NOTES {
            self.path.notes.push(Note { from_ns, to_ns, tid, text: text() });
        }
    }

    /// Every stretch in which the server owed the request something, the last first.
    fn legs(&mut self) {
        let Request { exchange, end_ns, from_ns, own_thread } = *self.request;
        let reader = exchange.last_read.tid;
        let last = exchange.last_write.map(|write| write.tid);
        let mut from = from_ns;
        let mut legs = Vec::with_capacity(exchange.writes.len() + 1);
        for (at, (enter_ns, exit_ns)) in exchange.writes.iter().enumerate() {
            let first = exchange.first_write.filter(|_| at == 0).map(|write| write.tid);
            let writer = exchange.writers.only().or(first).or(last).unwrap_or(reader);
            legs.push((from, *enter_ns, writer));
            from = from.max(*exit_ns);
        }
        if from < end_ns && (exchange.open || exchange.writes.is_empty()) {
            let at_work = self.causes.order.items_of(exchange.id).iter().rev().find_map(|id| {
                let item = self.causes.items.get(*id)?;
                (item.end_ns > from && self.is_strong(item)).then_some(item.tid)
            });
            legs.push((from, end_ns, at_work.or(own_thread).unwrap_or(reader)));
        }
        for (from, to, tid) in legs.into_iter().rev() {
            if from < to {
                self.leg(from, to, tid);
            }
        }
    }

    fn is_strong(&self, item: &Item) -> bool {
        let id = self.request.exchange.id;
        let owner = self.causes.root_owner(item);
        owner.is_some_and(|owner| owner.exchange == id && owner.confidence >= FOLLOWED)
    }

    /// Walks back from `to_ns` on a thread until `from_ns`.
    fn leg(&mut self, from_ns: u64, to_ns: u64, tid: u32) {
        let (mut tid, mut hi) = (tid, to_ns);
        while hi > from_ns {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                self.path.cut = true;
                self.note(tid, from_ns, hi, || "too many steps".to_owned());
                return;
            }
            let causes = self.causes;
            let Some(thread) = causes.threads.get(&tid).filter(|t| !t.is_unknown()) else {
                self.note(tid, from_ns, hi, || "nothing is known of this thread".to_owned());
                return;
            };
            let mine = causes.worked_for(tid, hi, self.request.exchange.id);
            let floor = mine.map_or(from_ns, |item| item.start_ns.max(from_ns));
            let done = self.completed_before(tid, floor, hi);
            let stop = done.map_or(floor, |item| item.end_ns.max(floor));
            self.completed = done.map(|item| (item.tid, item.end_ns));
            match self.visit(thread, tid, (from_ns, stop), hi, mine.is_some()) {
                Way::Woken { tid: by, at_ns } => {
                    self.path.slices.push((tid, at_ns, hi));
                    (tid, hi) = (by, at_ns);
                    continue;
                }
                Way::Through => self.path.slices.push((tid, stop, hi)),
            }
            if let Some(item) = done {
                self.note(item.tid, item.start_ns, item.end_ns, || {
                    format!("worked for this request, handed over by thread {}", item.from)
                });
                (tid, hi) = (item.tid, stop);
                continue;
            }
            let Some(item) = mine.filter(|_| floor > from_ns) else { return };
            let before = self.causes.items.before(item);
            if item.woken || item.made {
                self.note(tid, floor, floor, || format!("handed over by thread {}", item.from));
                self.until_free(item, before, from_ns);
                (tid, hi) = (item.from, floor);
            } else if before.is_some_and(|before| self.is_strong(before)) {
                self.note(tid, floor, floor, || "went on with this request".to_owned());
                hi = floor;
            } else {
                self.note(tid, from_ns, floor, || "taken when the item before it ended".to_owned());
                // Between the reader and this worker there may be others, whose work is no queue.
                let hands = self.causes.items.hands(item.from, item.tid);
                if hands && item.from == self.request.exchange.last_read.tid {
                    let queue = Stretch::observed(PhaseName::Queue, from_ns, floor);
                    self.found.waits_for_worker.push(queue);
                } else {
                    let detail = "ambiguous".into();
                    let unknown = Stretch::observed(PhaseName::Unattributed, from_ns, floor);
                    self.found.unattributed.push(Stretch { detail, ..unknown });
                }
                return;
            }
        }
    }

    /// Until the worker was free of other requests there was nobody to hand this one to.
    fn until_free(&mut self, item: &Item, before: Option<&Item>, from_ns: u64) {
        let busy = before.is_some_and(|before| !self.is_strong(before));
        if busy && item.free_ns > from_ns && item.free_ns < item.start_ns {
            let queue = Stretch::observed(PhaseName::Queue, from_ns, item.free_ns);
            self.found.waits_for_worker.push(queue);
        }
    }

    fn completed(&self) -> Vec<&'a Item> {
        let causes = self.causes;
        let items = causes.order.items_of(self.request.exchange.id).iter();
        let mut done: Vec<&Item> = items
            .filter_map(|id| causes.items.get(*id))
            .filter(|item| !matches!(item.end, End::Open | End::Idle) && self.is_strong(item))
            .collect();
        done.sort_by_key(|item| item.end_ns);
        done
    }

    /// The last item of this request that another thread completed for this one between two times.
    fn completed_before(&self, tid: u32, from_ns: u64, to_ns: u64) -> Option<&'a Item> {
        let before = self.done.partition_point(|item| item.end_ns < to_ns);
        let within = self.done.iter().take(before).rev().take_while(|item| item.end_ns > from_ns);
        within.copied().find(|item| item.tid != tid && item.from == tid)
    }

    /// What a thread did from `stop` to `hi`, backwards. `leg` is where the whole leg begins.
    fn visit(
        &mut self,
        thread: &Thread,
        tid: u32,
        (leg, stop): (u64, u64),
        hi: u64,
        in_item: bool,
    ) -> Way {
        let others = if in_item { None } else { self.others(thread, stop, hi) };
        let mut at = hi;
        while at > stop {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                self.path.cut = true;
                return Way::Through;
            }
            let sleep = thread.sleep_before(at).filter(|sleep| sleep.in_ns > stop);
            let streak = self.causes.spins.before(tid, at).filter(|streak| {
                streak.back_ns > stop || streak.back_ns == stop && streak.led.is_ok()
            });
            if let Some(streak) = streak
                && sleep.is_none_or(|sleep| sleep.in_ns <= streak.back_ns)
            {
                if streak.back_ns < at {
                    self.ran(tid, streak.back_ns, at, (leg, others));
                }
                match self.polled(thread, tid, streak, (stop, at)) {
                    Way::Woken { tid, at_ns } if at_ns > stop && at_ns <= at && at_ns < hi => {
                        return Way::Woken { tid, at_ns };
                    }
                    _ => {}
                }
                at = streak.first_ns.max(stop);
                continue;
            }
            let Some(sleep) = sleep else {
                self.ran(tid, stop, at, (leg, others));
                return Way::Through;
            };
            if sleep.in_ns < at {
                self.ran(tid, sleep.in_ns, at, (leg, others));
            }
            let top = sleep.in_ns.min(at);
            let woken = sleep.woken_ns.unwrap_or(sleep.out_ns).clamp(sleep.out_ns, sleep.in_ns);
            let ready = match sleep.state {
                SleepState::Preempted => sleep.out_ns,
                _ if sleep.woken_ns.is_none() => top,
                _ => woken,
            };
            if ready < top {
                let from = ready.max(stop);
                self.found.run_queue.push(Stretch::observed(PhaseName::RunQueue, from, top));
                self.note(tid, from, top, || "could run, had no core".to_owned());
            }
            let (from, to) = (sleep.out_ns.max(stop), ready.min(top));
            if from < to {
                match self.blocked(thread, tid, sleep, from, to) {
                    // Strictly back in time, whatever the records say.
                    Way::Woken { tid, at_ns } if at_ns > stop && at_ns <= at && at_ns < hi => {
                        return Way::Woken { tid, at_ns };
                    }
                    _ => {}
                }
            }
            at = sleep.out_ns.max(stop);
        }
        Way::Through
    }

    /// When the thread first and last moved bytes of other requests.
    fn others(&self, thread: &Thread, from_ns: u64, to_ns: u64) -> Option<(u64, u64)> {
        let own = self.request.exchange.conn;
        let other = |call: &&Call| {
            matches!(call.call, SchedCall::Read | SchedCall::Write)
                && call.object != own
                && call.ret > 0
                && !self.causes.asking.contains(&call.object)
                && !self.causes.objects.is_signal(call.object)
        };
        let mut calls = thread.calls(from_ns, to_ns).filter(other);
        let first = calls.next()?;
        let last = calls.next_back().unwrap_or(first);
        Some((first.enter_ns.max(from_ns), last.exit_ns.min(to_ns)))
    }

    /// The thread ran. Between the first and the last time that it moved bytes of other requests it
    /// served those.
    fn ran(&mut self, tid: u32, from: u64, to: u64, (leg, others): (u64, Option<(u64, u64)>)) {
        let cpu = |from, to| Stretch::observed(PhaseName::Cpu, from, to);
        let Some((first, last)) = others else {
            self.found.cpu.push(cpu(from, to));
            self.note(tid, from, to, || "ran".to_owned());
            return;
        };
        // What comes first is this request's only where the leg began with its own bytes.
        let first = if from >= leg { first.max(from) } else { from };
        let (begin, end) = (first.clamp(from, to), last.clamp(from, to));
        if from < begin {
            self.found.cpu.push(cpu(from, begin));
        }
        if begin < end {
            self.found.busy.push(Stretch::observed(PhaseName::ThreadBusy, begin, end));
            self.note(tid, begin, end, || "served other requests".to_owned());
        }
        if end < to {
            self.found.cpu.push(cpu(end.max(begin), to));
            self.note(tid, end, to, || "ran".to_owned());
        }
    }

    /// The requests that the request's threads made of others, on the path.
    fn dependencies(&mut self) {
        let mut found = Vec::new();
        for (tid, from, to) in &self.path.slices {
            let Some(list) = self.causes.outgoing.get(tid) else { continue };
            let first = list.partition_point(|outgoing| outgoing.to_ns <= *from);
            // They are in the order of their ends; one that began early may end late.
            for outgoing in list.iter().skip(first).filter(|o| o.from_ns < *to) {
                let (from, to) = (outgoing.from_ns.max(*from), outgoing.to_ns.min(*to));
                // A loop that serves others meanwhile may have asked for one of those.
                let serves_others = self.causes.threads.get(tid).is_some_and(|thread| {
                    self.others(thread, outgoing.from_ns, outgoing.to_ns).is_some()
                });
                if !serves_others {
                    found.push((*tid, from, to));
                }
            }
        }
        for (tid, from, to) in found {
            self.note(tid, from, to, || "waited for another server".to_owned());
            self.found.dependency.push(Stretch::observed(PhaseName::Dependency, from, to));
        }
    }

    /// Threads' times that belong to the request.
    fn segments(&mut self) {
        let Request { exchange, end_ns, from_ns, own_thread } = *self.request;
        if let Some(tid) = own_thread {
            self.path.segments.push(Segment {
                pid: exchange.pid,
                tid,
                from_ns,
                to_ns: exchange.last_write.map_or(end_ns, |write| write.exit_ns),
                evidence: Evidence::SameThread,
                confidence: 1.0,
            });
        }
        for id in self.causes.order.items_of(exchange.id) {
            let Some(item) = self.causes.items.get(*id) else { continue };
            let Some(owner) = self.causes.order.owner(*id) else { continue };
            self.path.segments.push(Segment {
                pid: item.pid,
                tid: item.tid,
                // A busy worker's item begins where the one before it ended.
                from_ns: item.start_ns.max(exchange.first_read.exit_ns),
                to_ns: item.end_ns.min(end_ns),
                evidence: owner.evidence,
                confidence: owner.confidence,
            });
            if owner.confidence >= FOLLOWED {
                self.children(item, end_ns);
            }
        }
    }

    /// What was handed over within an item.
    fn children(&mut self, item: &Item, end_ns: u64) {
        for child in self.causes.items.children(item.id) {
            let Some(child) = self.causes.items.get(*child) else { continue };
            let owner = self.causes.order.owner(child.id);
            if owner.is_some_and(|owner| owner.exchange != self.request.exchange.id) {
                continue;
            }
            let (evidence, confidence) = within(child);
            self.path.segments.push(Segment {
                pid: child.pid,
                tid: child.tid,
                from_ns: child.start_ns,
                to_ns: child.end_ns.min(end_ns),
                evidence,
                confidence,
            });
        }
    }
}

/// How an item is known that was handed over within another one.
pub(super) fn within(item: &Item) -> (Evidence, f64) {
    match handed_by(item) {
        Evidence::Spin => (Evidence::Spin, WITHIN.min(item.confidence)),
        _ => (Evidence::WakeChain, WITHIN),
    }
}
