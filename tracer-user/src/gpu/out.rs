//! What leaves this room.

use crate::intake::event::Api;

use super::op::{Kinds, OpDone, StreamKey};

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// An operation, completed or given up. Comes before its step.
    Op(OpDone),
    /// Operations that one fact proved complete on one stream. Comes before the wait for it.
    Step(Step),
    /// A stretch of a thread's time inside a call that blocks.
    Wait(Wait),
    /// Tighter bounds for what was reported before.
    Refine(Refine),
    /// A call that returned an error. It counts for nothing else.
    Failure(Failure),
}

/// How bounds are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// A blocking call was measured, and nothing else was outstanding.
    Direct,
    /// Between its enqueue and the fact that covers it.
    SyncBounded,
    /// The application's own `cuEventElapsedTime`.
    EventElapsed,
    /// No fact.
    Estimated,
}

/// What a thread waited for. Named only where facts exclude every other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitPhase {
    /// Copies to the device.
    H2d,
    /// Kernels.
    Kernel,
    /// Copies from the device.
    D2h,
    /// GPU work that no fact divides.
    Gpu,
    /// Memory, modules, contexts: calls that do not wait for work on a stream.
    Alloc,
}

/// The call that proved completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Function of the driver.
    pub api: Api,
    /// Thread that called.
    pub tid: u32,
    /// Entry, ns of `CLOCK_MONOTONIC`.
    pub enter_ns: u64,
    /// Return, ns.
    pub exit_ns: u64,
}

/// The operations of one stream after the previous completion fact, up to those that this fact
/// covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Unique within the session.
    pub id: u64,
    /// Process.
    pub pid: u32,
    /// Stream.
    pub stream: StreamKey,
    /// Threads that enqueued, sorted; the first [`super::Limits::step_list`].
    pub tids: Vec<u32>,
    /// Operations in order of enqueue; the first [`super::Limits::step_list`].
    pub ops: Vec<u64>,
    /// Operations, those not listed included.
    pub op_count: u64,
    /// Entry of the first enqueue, ns.
    pub first_enqueue_ns: u64,
    /// Entry of the last enqueue, ns.
    pub last_enqueue_ns: u64,
    /// What proved it.
    pub fact: Fact,
    /// Steps of other streams, proven by the same fact, that event links or the legacy default
    /// stream put before it.
    pub after: Vec<u64>,
    /// How the bounds are known.
    pub method: Method,
    /// The device was busy with it no less, ns.
    pub lower_ns: u64,
    /// From its first operation's start to its last one's end no more, ns.
    pub upper_ns: u64,
    /// Bytes copied to the device.
    pub h2d_bytes: u64,
    /// Bytes copied from the device.
    pub d2h_bytes: u64,
    /// Kernels launched, graphs' own nodes not counted.
    pub launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Kinds present.
    pub kinds: Kinds,
    /// The current context was known at every enqueue.
    pub context_known: bool,
    /// Events were lost around it: work may be missing.
    pub lost: bool,
}

/// A stretch of a thread's time inside a blocking call, or in a streak of NOT_READY queries. The
/// waits of one thread do not overlap. One with the same thread and end as an earlier one replaces
/// it: another thread's call, told later, showed that it cannot be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Function of the driver (of a streak: the last query).
    pub api: Api,
    /// Entry, ns of `CLOCK_MONOTONIC`.
    pub enter_ns: u64,
    /// Return, ns.
    pub exit_ns: u64,
    /// What for.
    pub phase: WaitPhase,
    /// How that is known.
    pub method: Method,
    /// Steps that its end proved complete.
    pub steps: Vec<u64>,
    /// Least GPU time that the facts allow in it ([`WaitPhase::Alloc`]: its length), ns.
    pub lower_ns: u64,
    /// Most GPU time that the facts allow in it ([`WaitPhase::Alloc`]: its length), ns.
    pub upper_ns: u64,
    /// More, in words; empty where there is nothing to say.
    pub detail: &'static str,
}

/// What a [`Refine`] speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An operation.
    Op {
        /// Its id.
        id: u64,
        /// Thread that enqueued it.
        tid: u32,
        /// Entry of the (first) enqueuing call, ns.
        enqueue_ns: u64,
    },
    /// A step.
    Step(u64),
}

/// Tighter bounds, from a fact that came later. They replace the ones reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refine {
    /// Process.
    pub pid: u32,
    /// Of what.
    pub subject: Subject,
    /// How they are known.
    pub method: Method,
    /// No less, ns.
    pub lower_ns: u64,
    /// No more, ns.
    pub upper_ns: u64,
}

/// A call that returned an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Function of the driver.
    pub api: Api,
    /// Entry, ns of `CLOCK_MONOTONIC`.
    pub enter_ns: u64,
    /// Return, ns.
    pub exit_ns: u64,
    /// `CUresult`.
    pub ret: i32,
}
