//! Items of work: a thread's time from being handed something to its completion.
//!
//! A thread that waits is handed an item by the thread that wakes it. It completes it by writing a
//! response, by signalling through a pipe or `eventfd`, by waking the thread that handed it, or by
//! waiting again where it was handed it. A busy worker takes its next item without sleeping: that
//! one begins where the last ended.

use std::collections::{BTreeMap, VecDeque};

use foldhash::{HashMap, HashSet};

/// Items of one thread that are remembered.
const MAX_ITEMS: usize = 65_536;
/// Threads that are handed items.
const MAX_WORKERS: usize = 65_536;
/// Wakers of one thread that are told apart.
const MAX_WAKERS: usize = 8;
/// Items handed over within one.
const MAX_CHILDREN: usize = 1_024;
/// A thread's usual place to wait counts as known from this score on; at most [`MAX_SCORE`].
const HOME_SCORE: u8 = 4;
const MAX_SCORE: u8 = 8;
/// Where a thread waits that polls memory.
const POLLING: u64 = u64::MAX;

/// How an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Not yet, as far as is known.
    Open,
    /// A response was written: of this exchange.
    Reply(u64),
    /// Bytes went into a pipe, `eventfd` or `socketpair`.
    Signal,
    /// The thread that handed it was woken.
    Woke,
    /// The thread polls again, and the thread that handed it, which polled, went on.
    Polled,
    /// The thread waits for the next.
    Idle,
}

/// An item of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Its number.
    pub id: u64,
    /// Process.
    pub pid: u32,
    /// Thread that worked.
    pub tid: u32,
    /// When it was handed over (the wake), or the end of the item before it, ns.
    pub start_ns: u64,
    /// When it was taken from where it was handed over, ns: a worker that is woken from a queue that
    /// it shares takes what is there when it gets to run.
    pub taken_ns: u64,
    /// By when it was taken at the latest, ns: it had done something for it, or completed it.
    pub by_ns: u64,
    /// When it was not completed yet, as far as is known, ns: the thread still did something for it.
    pub worked_ns: u64,
    /// Thread that handed it (of a busy worker: the one that handed its last item).
    pub from: u32,
    /// There was a wake, or something like it.
    pub woken: bool,
    /// The thread was made for it.
    pub made: bool,
    /// There was none, it polled: the thread that handed it over polled from then on.
    pub polled: bool,
    /// Confidence in that wake, or in that.
    pub confidence: f64,
    /// Its end, ns; `u64::MAX` while it is open.
    pub end_ns: u64,
    /// How it ended.
    pub end: End,
    /// The item in which it was handed over, where the thread that did so was in one.
    pub parent: Option<u64>,
    /// When the thread's item before it ended, ns; 0 where there was none.
    pub free_ns: u64,
}

/// Something that a thread did, or that was done to it, with its place in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mark {
    /// A wait ended because another thread meant it to.
    Handed {
        /// That thread.
        from: u32,
        /// What the wait was for.
        object: u64,
        /// When the wait began, ns.
        since_ns: u64,
        /// When it got to run, or the wake where nobody else could take what it was woken for, ns.
        taken_ns: u64,
        /// Nobody else could.
        alone: bool,
        /// Confidence.
        confidence: f64,
    },
    /// It polled memory until another thread, which polls in turn, had put something there.
    Polled {
        /// That thread.
        from: u32,
        /// When it began to poll, ns.
        since_ns: u64,
        /// When it went on, ns.
        taken_ns: u64,
        /// Confidence.
        confidence: f64,
    },
    /// It took something out that another thread had put in.
    Took {
        /// That thread.
        from: u32,
    },
    /// It put bytes into a pipe, `eventfd` or `socketpair`.
    Signalled {
        /// The thread that takes them out, 0 where unknown.
        to: u32,
        /// End of the call, ns.
        exit_ns: u64,
    },
    /// It wrote a response.
    Replied {
        /// Which exchange's.
        exchange: u64,
        /// The thread that read the request.
        reader: u32,
        /// End of the call, ns.
        exit_ns: u64,
    },
    /// It woke a thread.
    Woke {
        /// Which.
        sleeper: u32,
    },
    /// It called the GPU's driver.
    Worked {
        /// End of the call, ns.
        exit_ns: u64,
    },
    /// It ended.
    Exited,
    /// Its process is gone.
    Gone,
}

/// What happened to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It began.
    Begun,
    /// It ended.
    Ended,
}

#[derive(Debug, Default)]
struct Worker {
    pid: u32,
    /// Begin and number, in the order of the begin; they do not overlap.
    items: VecDeque<(u64, u64)>,
    open: Option<u64>,
    /// When it last woke the thread that handed it the open item, ns: perhaps its end.
    woke_ns: u64,
    /// End of the last item, where nothing was handed since, ns.
    free_ns: u64,
    /// When it was done with giving it back, ns.
    back_ns: u64,
    /// Where it waited for the open item, 0 where it did not.
    object: u64,
    /// Who handed the last item.
    from: u32,
    /// Where it was handed its items lately, and how sure that is.
    home: u64,
    score: u8,
    /// To whom it gave them back lately, and how sure that is: only that thread hands it any.
    boss: u32,
    boss_score: u8,
    /// Threads that were seen to wake it where it may have waited for work; the first few.
    wakers: Vec<u32>,
    /// When the thread was made, where that was seen, ns: what came before was done by another of
    /// the same number.
    since_ns: u64,
    /// It has ended: it is kept only for its items.
    exited: bool,
}

/// When an item began.
#[derive(Clone, Copy)]
struct When {
    start_ns: u64,
    taken_ns: u64,
    by_ns: u64,
}

impl Worker {
    /// An item that it took without sleeping, right after the one before it.
    fn unseen(&self) -> When {
        let taken_ns = self.back_ns.max(self.free_ns);
        When { start_ns: self.free_ns, taken_ns, by_ns: u64::MAX }
    }

    fn is_handed_by(&mut self, from: u32) {
        if self.wakers.len() < MAX_WAKERS && !self.wakers.contains(&from) {
            self.wakers.push(from);
        }
    }

    fn give_back(&mut self, boss: u32) {
        if self.boss == boss {
            self.boss_score = (self.boss_score + 1).min(MAX_SCORE);
        } else {
            self.boss_score = self.boss_score.saturating_sub(1);
            if self.boss_score == 0 {
                (self.boss, self.boss_score) = (boss, 1);
            }
        }
    }
}

/// Every thread's items.
#[derive(Debug, Default)]
pub struct Items {
    next: u64,
    workers: HashMap<u32, Worker>,
    /// Threads that may have worked, as soon as there is a mark of it.
    marked: HashSet<u32>,
    /// Threads that read requests: nobody's workers.
    masters: HashSet<u32>,
    items: HashMap<u64, Item>,
    /// What was handed over within an item.
    children: HashMap<u64, Vec<u64>>,
    marks: BTreeMap<(u64, u64), (u32, u32, Mark)>,
    seq: u64,
}

impl Items {
    /// Adds a mark; it may come in any order.
    pub fn mark(&mut self, time_ns: u64, pid: u32, tid: u32, mark: Mark) {
        if matches!(
            mark,
            Mark::Handed { .. }
                | Mark::Polled { .. }
                | Mark::Signalled { .. }
                | Mark::Replied { .. }
        ) {
            if self.marked.len() >= MAX_ITEMS {
                self.marked.clear();
            }
            self.marked.insert(tid);
        }
        self.seq += 1;
        self.marks.insert((time_ns, self.seq), (pid, tid, mark));
    }

    /// Whether the thread was ever handed anything, or completed anything.
    pub fn is_worker(&self, tid: u32) -> bool {
        self.marked.contains(&tid)
    }

    /// Threads, items, and items that others were handed over in.
    #[cfg(test)]
    pub fn held(&self) -> (usize, usize, usize) {
        (self.workers.len(), self.items.len(), self.children.len())
    }

    /// Marks that wait.
    pub fn waiting(&self) -> usize {
        self.marks.len()
    }

    /// Takes in the marks up to a time, ns; what changed is added to `out` with its time.
    pub fn advance(&mut self, to_ns: u64, out: &mut Vec<(u64, u64, Change)>) {
        while self.marks.first_key_value().is_some_and(|((time_ns, _), _)| *time_ns <= to_ns) {
            let Some(((time_ns, _), (pid, tid, mark))) = self.marks.pop_first() else { break };
            self.take(time_ns, pid, tid, mark, out);
        }
    }

    fn take(
        &mut self,
        time_ns: u64,
        pid: u32,
        tid: u32,
        mark: Mark,
        out: &mut Vec<(u64, u64, Change)>,
    ) {
        if self.workers.get(&tid).is_some_and(|worker| time_ns < worker.since_ns) {
            return;
        }
        match mark {
            Mark::Exited => return self.exited(tid, time_ns, out),
            Mark::Gone => return self.gone(pid, time_ns, out),
            _ => {}
        }
        let mark = match mark {
            Mark::Polled { from, .. } if self.gives_back(from, tid, time_ns, out) => return,
            Mark::Polled { from, since_ns, taken_ns, confidence } => {
                let may_be_handed = self.masters.contains(&from)
                    || self.workers.get(&from).is_some_and(|worker| worker.open.is_some());
                let woken = |worker: &Worker| worker.home != POLLING && worker.score > 0;
                // Who has nothing hands nothing over, and who is woken for work does not poll for it.
                if !may_be_handed || self.workers.get(&tid).is_some_and(woken) {
                    return;
                }
                let (object, alone) = (POLLING, true);
                Mark::Handed { from, object, since_ns, taken_ns, alone, confidence }
            }
            mark => mark,
        };
        if self.masters.contains(&tid) {
            return;
        }
        match mark {
            Mark::Handed { from, object, since_ns, taken_ns, alone, confidence } => {
                let worker = self.worker(pid, tid);
                worker.is_handed_by(from);
                if worker.boss_score >= HOME_SCORE && worker.boss != from {
                    return;
                }
                let at_home = worker.home == object;
                let again = worker.object == object;
                if let Some(open) = worker.open {
                    if worker.woke_ns != 0 {
                        let woke_ns = worker.woke_ns;
                        self.end(open, woke_ns, End::Woke, out);
                    } else if !again && (!at_home || worker.score < HOME_SCORE) {
                        // Woken within its item, by a lock or a helper.
                        return;
                    } else {
                        self.end(open, since_ns, End::Idle, out);
                    }
                } else if !at_home && worker.score >= HOME_SCORE {
                    // A lock on the way to its usual place; should that have moved, it shows soon.
                    worker.score -= 1;
                    return;
                }
                let Some(worker) = self.workers.get_mut(&tid) else { return };
                if at_home && !again {
                    worker.score = (worker.score + 1).min(MAX_SCORE);
                } else if !at_home {
                    worker.score = worker.score.saturating_sub(1);
                    if worker.score == 0 {
                        (worker.home, worker.score) = (object, 1);
                    }
                }
                worker.from = from;
                worker.object = object;
                let by_ns = if alone { taken_ns } else { u64::MAX };
                let when = When { start_ns: time_ns, taken_ns, by_ns };
                self.begin(tid, when, Some(confidence), out);
            }
            Mark::Took { from } => {
                if let Some(worker) = self.workers.get_mut(&tid) {
                    worker.is_handed_by(from);
                }
            }
            Mark::Signalled { to, exit_ns } => {
                self.complete((time_ns, exit_ns), (pid, tid), to, End::Signal, out);
            }
            Mark::Replied { exchange, reader, exit_ns } => {
                let end = End::Reply(exchange);
                self.complete((time_ns, exit_ns), (pid, tid), reader, end, out);
            }
            Mark::Woke { sleeper } => {
                let Some(worker) = self.workers.get_mut(&tid) else { return };
                // One that gives back by other means may wake that thread for other reasons.
                let gives_back = worker.boss_score >= HOME_SCORE;
                let from = worker.from;
                if worker.open.is_some() && from == sleeper && !gives_back {
                    worker.woke_ns = time_ns;
                }
            }
            Mark::Worked { exit_ns } => {
                let Some(worker) = self.workers.get(&tid) else { return };
                if worker.open.is_none() && worker.free_ns != 0 {
                    self.begin(tid, worker.unseen(), None, out);
                }
                let open = self.workers.get(&tid).and_then(|worker| worker.open);
                if let Some(item) = open.and_then(|open| self.items.get_mut(&open)) {
                    item.by_ns = item.by_ns.min(time_ns.max(item.taken_ns));
                    item.worked_ns = item.worked_ns.max(exit_ns);
                }
            }
            Mark::Polled { .. } | Mark::Exited | Mark::Gone => {}
        }
    }

    /// A thread began to poll as another one, which polled, went on: whether it was that one's item
    /// that it is done with.
    fn gives_back(
        &mut self,
        tid: u32,
        to: u32,
        time_ns: u64,
        out: &mut Vec<(u64, u64, Change)>,
    ) -> bool {
        let worker = self.workers.get(&tid).filter(|worker| worker.from == to);
        let Some(open) = worker.and_then(|worker| worker.open) else { return false };
        self.end(open, time_ns, End::Polled, out);
        true
    }

    fn worker(&mut self, pid: u32, tid: u32) -> &mut Worker {
        self.make_room(tid);
        let worker = self.workers.entry(tid).or_default();
        worker.pid = pid;
        worker
    }

    /// Beyond the cap the room begins anew.
    fn make_room(&mut self, tid: u32) {
        if self.workers.len() >= MAX_WORKERS && !self.workers.contains_key(&tid) {
            self.workers.clear();
            self.items.clear();
            self.children.clear();
        }
    }

    /// Something was completed: the open item, or one that a busy worker took unseen.
    fn complete(
        &mut self,
        (time_ns, exit_ns): (u64, u64),
        (pid, tid): (u32, u32),
        boss: u32,
        end: End,
        out: &mut Vec<(u64, u64, Change)>,
    ) {
        let worker = self.worker(pid, tid);
        if boss != 0 && boss != tid {
            worker.give_back(boss);
        }
        let (free_ns, boss) = (worker.free_ns, worker.boss);
        if worker.open.is_none() {
            worker.from = boss;
            if free_ns == 0 {
                // The first that is seen of it: what it does next began here.
                worker.free_ns = time_ns;
                worker.back_ns = exit_ns;
                return;
            }
            let when = worker.unseen();
            self.begin(tid, when, None, out);
        }
        let Some(open) = self.workers.get(&tid).and_then(|worker| worker.open) else { return };
        if let Some(item) = self.items.get_mut(&open)
            && item.parent.is_none()
            && boss != 0
        {
            item.from = boss;
        }
        self.end(open, time_ns, end, out);
        if let Some(worker) = self.workers.get_mut(&tid) {
            worker.back_ns = exit_ns;
        }
    }

    fn begin(
        &mut self,
        tid: u32,
        when: When,
        woken: Option<f64>,
        out: &mut Vec<(u64, u64, Change)>,
    ) {
        let Some(from) = self.workers.get(&tid).map(|worker| worker.from) else { return };
        let parent = self.at(from, when.start_ns).map(|item| item.id);
        let Some(worker) = self.workers.get_mut(&tid) else { return };
        self.next += 1;
        let id = self.next;
        let item = Item {
            id,
            pid: worker.pid,
            tid,
            start_ns: when.start_ns,
            taken_ns: when.taken_ns,
            by_ns: when.by_ns,
            worked_ns: when.taken_ns,
            from,
            woken: woken.is_some(),
            made: woken.is_none() && when.start_ns == worker.since_ns,
            polled: woken.is_some() && worker.object == POLLING,
            confidence: woken.unwrap_or(1.0),
            end_ns: u64::MAX,
            end: End::Open,
            parent,
            free_ns: worker.free_ns,
        };
        if let Some(parent) = parent {
            let children = self.children.entry(parent).or_default();
            if children.len() < MAX_CHILDREN {
                children.push(id);
            }
        }
        worker.items.push_back((when.start_ns, id));
        worker.open = Some(id);
        worker.free_ns = 0;
        worker.back_ns = 0;
        if woken.is_none() {
            worker.object = 0;
        }
        if worker.items.len() > MAX_ITEMS
            && let Some((_, oldest)) = worker.items.pop_front()
        {
            self.items.remove(&oldest);
            self.children.remove(&oldest);
        }
        self.items.insert(id, item);
        out.push((when.taken_ns, id, Change::Begun));
    }

    fn end(&mut self, id: u64, time_ns: u64, end: End, out: &mut Vec<(u64, u64, Change)>) {
        let Some(item) = self.items.get_mut(&id) else { return };
        item.end_ns = time_ns.max(item.start_ns);
        item.end = end;
        item.by_ns = item.by_ns.min(item.end_ns);
        item.worked_ns = item.worked_ns.min(item.end_ns);
        if let Some(worker) = self.workers.get_mut(&item.tid) {
            worker.open = None;
            worker.woke_ns = 0;
            if end != End::Idle {
                worker.object = 0;
            }
            // Who waits for work takes none unseen.
            let waits = matches!(end, End::Idle | End::Polled);
            worker.free_ns = if waits { 0 } else { item.end_ns };
        }
        out.push((item.end_ns, id, Change::Ended));
    }

    /// Items that were handed over within an item.
    pub fn children(&self, id: u64) -> &[u64] {
        self.children.get(&id).map_or(&[], Vec::as_slice)
    }

    /// An item.
    pub fn get(&self, id: u64) -> Option<&Item> {
        self.items.get(&id)
    }

    /// The item in which the thread was at a time, ns.
    pub fn at(&self, tid: u32, time_ns: u64) -> Option<&Item> {
        let worker = self.workers.get(&tid)?;
        let after = worker.items.partition_point(|(start_ns, _)| *start_ns < time_ns);
        let (_, id) = worker.items.get(after.checked_sub(1)?)?;
        let item = self.items.get(id)?;
        (time_ns <= item.end_ns).then_some(item)
    }

    /// What the thread worked on before an item, as far as that is remembered.
    pub fn before(&self, item: &Item) -> Option<&Item> {
        let worker = self.workers.get(&item.tid)?;
        let at = worker.items.partition_point(|begun| *begun < (item.start_ns, item.id));
        let (_, id) = worker.items.get(at.checked_sub(1)?)?;
        self.items.get(id)
    }

    /// A thread has ended: so has what it worked on.
    fn exited(&mut self, tid: u32, time_ns: u64, out: &mut Vec<(u64, u64, Change)>) {
        self.masters.remove(&tid);
        let Some(worker) = self.workers.get_mut(&tid) else { return };
        worker.exited = true;
        if let Some(open) = worker.open {
            self.end(open, time_ns, End::Idle, out);
        }
    }

    /// A process is gone, and its threads with it.
    fn gone(&mut self, pid: u32, time_ns: u64, out: &mut Vec<(u64, u64, Change)>) {
        let threads = self.workers.iter().filter(|(_, worker)| worker.pid == pid);
        let mut tids: Vec<u32> = threads.map(|(tid, _)| *tid).collect();
        tids.sort_unstable();
        tids.into_iter().for_each(|tid| self.exited(tid, time_ns, out));
    }

    /// Forgets items that ended before this time, ns; `forgotten` is told each.
    pub fn forget_before(&mut self, time_ns: u64, mut forgotten: impl FnMut(u64)) {
        self.workers.retain(|_, worker| {
            while let Some((_, id)) = worker.items.front() {
                if self.items.get(id).is_some_and(|item| item.end_ns >= time_ns) {
                    break;
                }
                forgotten(*id);
                self.items.remove(id);
                self.children.remove(id);
                worker.items.pop_front();
            }
            !worker.exited || !worker.items.is_empty()
        });
    }

    /// The thread was made by another: what it does first, it was made for.
    pub fn born(&mut self, pid: u32, tid: u32, time_ns: u64, by: u32) {
        self.forget_thread(tid);
        self.make_room(tid);
        let (free_ns, since_ns) = (time_ns, time_ns);
        let worker = Worker { pid, free_ns, since_ns, from: by, ..Worker::default() };
        self.workers.insert(tid, worker);
    }

    /// The thread reads requests: it hands out, and is handed nothing.
    pub fn is_master(&mut self, tid: u32) {
        if self.masters.contains(&tid) {
            return;
        }
        if self.masters.len() >= MAX_WORKERS {
            self.masters.clear();
        }
        self.forget_thread(tid);
        self.masters.insert(tid);
    }

    /// Whether a thread was seen to hand another one something.
    pub fn hands(&self, from: u32, to: u32) -> bool {
        self.workers.get(&to).is_some_and(|worker| worker.wakers.contains(&from))
    }

    /// The thread to which this one gives back what it completes, where it does.
    pub fn boss(&self, tid: u32) -> Option<u32> {
        self.workers.get(&tid).filter(|worker| worker.boss_score > 0).map(|worker| worker.boss)
    }

    /// A thread's number may be somebody else's from now on.
    pub fn forget_thread(&mut self, tid: u32) {
        self.masters.remove(&tid);
        self.marked.remove(&tid);
        if let Some(worker) = self.workers.remove(&tid) {
            worker.items.iter().for_each(|(_, id)| {
                self.items.remove(id);
                self.children.remove(id);
            });
        }
    }
}
