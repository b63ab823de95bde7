//! What threads did while a request was open, and the work done for it: told, not judged, for those
//! who want to see what a walk went by.
//!
//! Times are offsets from a moment that the asker chooses (the request's start), ns.

use serde::{Serialize, Serializer};

use super::{
    Causes,
    edge::edge,
    history::Thread,
    item::{End, Item},
    order::FOLLOWED,
    walk::within,
};
use crate::{
    intake::event::{SchedCall, Sleep, SleepState},
    timeline::model::Evidence,
};

/// Doings of one thread that are told at most; further ones are counted.
const MAX_DOINGS: usize = 4_096;
/// Neither a call nor what it is about.
const NO_CALL: (SchedCall, u64) = (SchedCall::None, 0);

/// What one thread did in a stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadStory {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// One after the other, without gap.
    pub doings: Vec<Doing>,
    /// Further ones, not told.
    pub left_out: usize,
}

/// One thing that a thread did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Doing {
    /// Begin, ns.
    pub offset_ns: u64,
    /// Length, ns.
    pub duration_ns: u64,
    /// What.
    pub state: State,
    /// The call in which it was blocked.
    #[serde(serialize_with = "in_words", skip_serializing_if = "is_none")]
    pub call: SchedCall,
    /// What that call was about: an address for a futex, else the number of an open description;
    /// 0 where none is known.
    #[serde(skip_serializing_if = "is_zero")]
    pub object: u64,
    /// The wake that ended it, where there was one by the end of what is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<Wake>,
}

/// What a thread can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It ran.
    Ran,
    /// It could run and had no core.
    RunQueue,
    /// It waited.
    Blocked,
    /// It waited and could not be interrupted: mostly for a disk.
    Disk,
    /// Nothing has told: before the first record of the thread, or behind its last.
    Unknown,
}

/// A wake of a thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wake {
    /// When, ns.
    pub offset_ns: i64,
    /// Process that was current.
    pub pid: u32,
    /// Thread that was current, 0 for the idle task.
    pub tid: u32,
    /// The call that it was in, or had left last.
    #[serde(serialize_with = "in_words", skip_serializing_if = "is_none")]
    pub call: SchedCall,
    /// The wake is an edge (that thread meant it), with this confidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<f64>,
    /// Why it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<&'static str>,
}

/// An item of work that belongs to a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ItemStory {
    /// Its number.
    pub id: u64,
    /// Thread that did it.
    pub tid: u32,
    /// Thread that handed it over.
    pub from: u32,
    /// When it was handed over, or the item before it ended, ns.
    pub offset_ns: i64,
    /// Length, ns; left out while it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Confidence in the wake with which it was handed over; left out where it was taken without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<f64>,
    /// How it ended, in words.
    pub ended: &'static str,
    /// The item in which it was handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<u64>,
    /// How it is known to be the request's.
    pub evidence: Evidence,
    /// 0 to 1.
    pub confidence: f64,
}

/// A call's name, `""` where it is none.
pub fn call_name(call: SchedCall) -> &'static str {
    match call {
        SchedCall::None => "",
        SchedCall::Futex => "futex",
        SchedCall::FutexWaitv => "futex_waitv",
        SchedCall::EpollWait => "epoll_wait",
        SchedCall::Poll => "poll",
        SchedCall::Select => "select",
        SchedCall::Sleep => "nanosleep",
        SchedCall::Yield => "sched_yield",
        SchedCall::IoUring => "io_uring_enter",
        SchedCall::Read => "read",
        SchedCall::Write => "write",
        SchedCall::Accept => "accept",
        SchedCall::Connect => "connect",
        SchedCall::Close => "close",
        SchedCall::Exit => "exit",
        SchedCall::Other => "another call",
        SchedCall::Shutdown => "shutdown",
        SchedCall::Clone => "clone",
    }
}

fn in_words<S: Serializer>(call: &SchedCall, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(call_name(*call))
}

fn is_zero(object: &u64) -> bool {
    *object == 0
}

fn is_none(call: &SchedCall) -> bool {
    *call == SchedCall::None
}

/// A time as an offset, ns.
pub fn offset(time_ns: u64, zero_ns: u64) -> i64 {
    i64::try_from(i128::from(time_ns) - i128::from(zero_ns)).unwrap_or(i64::MAX)
}

impl Causes {
    /// What a thread did from `zero_ns` to `to_ns`; `None` where nothing is known of it.
    pub fn thread_story(&self, tid: u32, zero_ns: u64, to_ns: u64) -> Option<ThreadStory> {
        let thread = self.threads.get(&tid).filter(|thread| !thread.is_unknown())?;
        let doings = Vec::new();
        let story = ThreadStory { pid: thread.pid, tid, doings, left_out: 0 };
        let mut teller = Teller { causes: self, thread, zero_ns, to_ns, at_ns: zero_ns, story };
        thread.sleeps(zero_ns, to_ns).for_each(|sleep| teller.slept(sleep));
        teller.ran(to_ns);
        Some(teller.story)
    }

    /// Items of work that belong to a request, those handed over within them too, in the order of
    /// their begin.
    pub fn items_story(&self, exchange: u64, zero_ns: u64) -> Vec<ItemStory> {
        let mut stories = Vec::new();
        for id in self.order.items_of(exchange) {
            let (Some(item), Some(owner)) = (self.items.get(*id), self.order.owner(*id)) else {
                continue;
            };
            stories.push(story(item, owner.evidence, owner.confidence, zero_ns));
            if owner.confidence >= FOLLOWED {
                let children = self.items.children(*id).iter();
                let children = children.filter_map(|id| self.items.get(*id));
                stories.extend(children.map(|item| {
                    let (evidence, confidence) = within(item);
                    story(item, evidence, confidence, zero_ns)
                }));
            }
        }
        stories.sort_by_key(|story| (story.offset_ns, story.id));
        stories
    }
}

fn story(item: &Item, evidence: Evidence, confidence: f64, zero_ns: u64) -> ItemStory {
    let open = item.end == End::Open;
    ItemStory {
        id: item.id,
        tid: item.tid,
        from: item.from,
        offset_ns: offset(item.start_ns, zero_ns),
        duration_ns: (!open).then(|| item.end_ns.saturating_sub(item.start_ns)),
        wake: item.woken.then_some(item.confidence),
        ended: match item.end {
            End::Open => "not ended",
            End::Reply(_) => "wrote the response",
            End::Signal => "put bytes into a pipe, eventfd or socketpair",
            End::Polled => "polled again, and the thread that handed it over went on",
            End::Woke => "woke the thread that handed it over",
            End::Idle => "went to wait for the next",
        },
        within: item.parent,
        evidence,
        confidence,
    }
}

struct Teller<'a> {
    causes: &'a Causes,
    thread: &'a Thread,
    zero_ns: u64,
    to_ns: u64,
    /// Told so far, ns.
    at_ns: u64,
    story: ThreadStory,
}

impl Teller<'_> {
    /// Everything up to `to_ns` that has not been told.
    fn tell(&mut self, to_ns: u64, state: State, call: (SchedCall, u64), wake: Option<Wake>) {
        let to_ns = to_ns.min(self.to_ns);
        if to_ns <= self.at_ns {
            return;
        }
        let (offset_ns, duration_ns) = (self.at_ns - self.zero_ns, to_ns - self.at_ns);
        let (call, object) = call;
        self.at_ns = to_ns;
        if self.story.doings.len() < MAX_DOINGS {
            self.story.doings.push(Doing { offset_ns, duration_ns, state, call, object, wake });
        } else {
            self.story.left_out += 1;
        }
    }

    /// It was on a processor, as far as its records reach.
    fn ran(&mut self, to_ns: u64) {
        let (first_ns, last_ns) = self.thread.span();
        self.tell(to_ns.min(first_ns), State::Unknown, NO_CALL, None);
        self.tell(to_ns.min(last_ns), State::Ran, NO_CALL, None);
        self.tell(to_ns, State::Unknown, NO_CALL, None);
    }

    fn slept(&mut self, sleep: &Sleep) {
        self.ran(sleep.out_ns);
        let woken_ns = sleep.woken_ns.unwrap_or(sleep.in_ns).clamp(sleep.out_ns, sleep.in_ns);
        let (state, ready_ns) = match sleep.state {
            SleepState::Preempted => (State::RunQueue, sleep.out_ns),
            SleepState::Uninterruptible => (State::Disk, woken_ns),
            SleepState::Interruptible | SleepState::Other => (State::Blocked, woken_ns),
        };
        let call = self.thread.call_of(sleep).map_or(NO_CALL, |call| (call.call, call.object));
        self.tell(ready_ns, state, call, self.wake(sleep));
        self.tell(sleep.in_ns, State::RunQueue, NO_CALL, None);
    }

    fn wake(&self, sleep: &Sleep) -> Option<Wake> {
        let (waker, at_ns) = (sleep.waker?, sleep.woken_ns.filter(|ns| *ns <= self.to_ns)?);
        let sleeper = (self.story.pid, self.story.tid);
        let found = edge(&self.causes.objects, sleeper, self.thread.call_of(sleep), sleep);
        Some(Wake {
            offset_ns: offset(at_ns, self.zero_ns),
            pid: waker.pid,
            tid: waker.tid,
            call: waker.call,
            edge: found.as_ref().ok().map(|edge| edge.confidence),
            refused: found.err().map(|refusal| refusal.as_str()),
        })
    }
}
