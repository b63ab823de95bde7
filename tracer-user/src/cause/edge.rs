//! Was a thread really woken by another, or was that thread merely current when an interrupt came?

use super::{
    history::Call,
    objects::{Match, Objects},
};
use crate::intake::event::{SchedCall, Sleep, Timeout, Waker};

/// Confidence of an edge whose objects are known to match, and of one where too little is known.
const SURE: f64 = 1.0;
const OBJECT_UNKNOWN: f64 = 0.6;

/// One thread woke another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edge {
    /// Process of the waker.
    pub pid: u32,
    /// The waker.
    pub tid: u32,
    /// When, ns.
    pub at_ns: u64,
    /// What it acted on.
    pub object: u64,
    /// 0 to 1.
    pub confidence: f64,
}

/// Why a wake is no edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It was preempted, or the wake was not seen.
    NotWoken,
    /// Nobody was current.
    Idle,
    /// It was in no call that waits for another thread.
    NotWaiting,
    /// The wait ended by its timeout, with nothing, or by a signal.
    NothingCame,
    /// The waker was in no call that wakes such a waiter: an interrupt ran on top of it.
    NotWaking,
    /// The waker took from where this thread waits to take as well, and left something: the kernel
    /// passes the wake on. Who put it there is the one.
    PassedOn,
    /// The waker acted on something else.
    OtherObject,
    /// It woke itself (a timer).
    Itself,
}

impl Refusal {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotWoken => "not woken",
            Self::Idle => "woken while nobody was current",
            Self::NotWaiting => "not waiting for a thread",
            Self::NothingCame => "the wait ended with nothing",
            Self::NotWaking => "the current thread was in no call that wakes it",
            Self::PassedOn => "passed on by a thread that was woken for the same",
            Self::OtherObject => "the current thread acted on something else",
            Self::Itself => "woken by a timer of its own",
        }
    }
}

/// Whether the sleep ended because another thread meant it to.
///
/// # Errors
/// Why it is not so.
pub fn edge(
    objects: &Objects,
    sleeper: (u32, u32),
    call: Option<&Call>,
    sleep: &Sleep,
) -> Result<Edge, Refusal> {
    let (Some(waker), Some(at_ns)) = (sleep.waker, sleep.woken_ns) else {
        return Err(Refusal::NotWoken);
    };
    // First, whoever the timer's interrupt ran on top of.
    if call.is_some_and(|call| !came(call)) {
        return Err(Refusal::NothingCame);
    }
    if waker.tid == 0 {
        return Err(Refusal::Idle);
    }
    if waker.tid == sleeper.1 {
        return Err(Refusal::Itself);
    }
    let call = call.ok_or(Refusal::NotWaiting)?;
    let acted_on = match call.call {
        SchedCall::Futex | SchedCall::FutexWaitv => match waker.call {
            SchedCall::Futex if !waker.left => {
                let (waiter, waker) = ((sleeper.0, call.object), (waker.pid, waker.object));
                match objects.futexes(waiter, waker) {
                    // One of several addresses of a waitv, or of a waiter that was moved.
                    Match::No if call.call == SchedCall::FutexWaitv => Match::Unknown,
                    answer => answer,
                }
            }
            // The kernel wakes who waits for a thread's end, or for a robust lock.
            SchedCall::Exit => Match::Unknown,
            _ => return Err(Refusal::NotWaking),
        },
        SchedCall::EpollWait if wakes_files(&waker) => objects.watches(call.object, waker.object),
        // Only the first of several descriptors is known.
        SchedCall::Poll | SchedCall::Select | SchedCall::IoUring if wakes_files(&waker) => {
            match objects.ends(waker.object, call.object) {
                Match::No => Match::Unknown,
                answer => answer,
            }
        }
        SchedCall::Read
            if waker.call == SchedCall::Read && waker.object == call.object && !waker.left =>
        {
            return Err(Refusal::PassedOn);
        }
        SchedCall::Read | SchedCall::Accept | SchedCall::Write | SchedCall::Connect
            if wakes_files(&waker) =>
        {
            objects.ends(waker.object, call.object)
        }
        SchedCall::EpollWait
        | SchedCall::Poll
        | SchedCall::Select
        | SchedCall::IoUring
        | SchedCall::Read
        | SchedCall::Accept
        | SchedCall::Write
        | SchedCall::Connect => return Err(Refusal::NotWaking),
        _ => return Err(Refusal::NotWaiting),
    };
    let confidence = match acted_on {
        Match::Yes => SURE,
        Match::Unknown => OBJECT_UNKNOWN,
        Match::No => return Err(Refusal::OtherObject),
    };
    let Waker { pid, tid, object, .. } = waker;
    Ok(Edge { pid, tid, at_ns, object, confidence })
}

/// Whether the call ended because something came.
fn came(call: &Call) -> bool {
    match call.call {
        SchedCall::Futex | SchedCall::FutexWaitv => call.ret >= 0,
        SchedCall::EpollWait | SchedCall::Poll | SchedCall::Select | SchedCall::IoUring => {
            call.ret > 0
        }
        SchedCall::Sleep => false,
        // Of a read, an end of file is something; EINTR and the kernel's restarts are not.
        _ => call.ret >= 0 || !(-516..=-512).contains(&call.ret) && call.ret != -4,
    }
}

/// Whether the waker is in a call that makes descriptors ready: bytes put in, room made, ends closed
/// (also at a thread's end). Files are released late, so a close wakes after its return as well;
/// whoever has left another call is only what an interrupt ran on top of.
fn wakes_files(waker: &Waker) -> bool {
    match waker.call {
        SchedCall::Close | SchedCall::Exit => true,
        SchedCall::Write | SchedCall::Read | SchedCall::Shutdown | SchedCall::Connect => {
            !waker.left
        }
        _ => false,
    }
}

/// Shortest timeout of a wait in which a thread may be handed work, ns. The interpreter locks of
/// scripting languages wait for a few milliseconds at a time.
const HANDING_NS: u64 = 100_000_000;

/// Whether a thread that waits like this may be waiting for work.
pub fn may_be_handed(call: &Call) -> bool {
    match call.timeout {
        Timeout::Never | Timeout::Some => true,
        Timeout::After(ns) => ns >= HANDING_NS,
    }
}
