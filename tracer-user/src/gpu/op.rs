//! Operations: what the driver was asked to run on a stream.

use crate::intake::event::Api;

use super::context::Ctx;
use super::graph::Nodes;
use super::out::Method;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// Copy from host to device.
    H2d,
    /// Copy from device to host.
    D2h,
    /// Copy on or between devices.
    D2d,
    /// Copy whose direction the arguments do not tell (unified addressing, batches).
    Unified,
    /// Copy from host to host through the driver.
    H2h,
    /// Kernels: one launch, or a run of them.
    Kernel,
    /// An executable graph.
    Graph,
    /// Memory set.
    Memset,
    /// A host function in the stream.
    HostFunc,
}

impl OpKind {
    /// As it is written in a timeline.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::H2d => "h2d",
            Self::D2h => "d2h",
            Self::D2d => "d2d",
            Self::Unified => "copy",
            Self::H2h => "h2h",
            Self::Kernel => "kernel",
            Self::Graph => "graph",
            Self::Memset => "memset",
            Self::HostFunc => "host",
        }
    }

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A set of [`OpKind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u16);

impl Kinds {
    /// Adds one.
    pub fn insert(&mut self, kind: OpKind) {
        self.0 |= kind.bit();
    }

    /// Whether it is in the set.
    pub fn contains(self, kind: OpKind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Whether the set holds nothing.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Names a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamKey {
    /// Made by the application: the handle says which.
    Handle(u64),
    /// The legacy default stream of a context.
    Legacy(Ctx),
    /// The default stream of a thread in a context.
    PerThread(Ctx, u32),
    /// The stream of a launch could not be read.
    Unknown,
}

/// One operation on a stream, or a run of launches gathered in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Unique within the session.
    pub id: u64,
    /// What it does.
    pub kind: OpKind,
    /// Function of the driver that enqueued it.
    pub api: Api,
    /// Thread that enqueued it.
    pub tid: u32,
    /// Entry of the enqueuing call, of a run's first launch, ns of `CLOCK_MONOTONIC`.
    pub enqueue_first_ns: u64,
    /// Entry of the enqueuing call, of a run's last launch, ns.
    pub enqueue_last_ns: u64,
    /// Return of the enqueuing call, ns. Launches have no return probe: entry of the thread's next
    /// call of the driver, `None` until then.
    pub exit_ns: Option<u64>,
    /// Launches of a run, copies of a batch; else 1.
    pub count: u64,
    /// Bytes copied or set, 0 where unknown.
    pub bytes: u64,
    /// Function handle of the first launch, executable graph, else 0.
    pub function: u64,
    /// The run launched other functions too.
    pub mixed: bool,
    /// Identity of a run of launches.
    pub run: Option<u64>,
    /// Host side of a copy: known page-locked, known managed (`false`), or unknown.
    pub pinned: Option<bool>,
    /// The call returns when the copy is done, or staged.
    pub blocking: bool,
    /// What a graph holds, where it was seen being made.
    pub graph: Option<Nodes>,
    /// The thread's current context was known.
    pub context_known: bool,
    /// Events were lost around it.
    pub lost: bool,
    /// The most that it can have taken by `cuEventElapsedTime`, asked while it was outstanding, ns.
    pub(super) elapsed: Option<u64>,
}

impl Op {
    /// What a thread that waits for it waits for.
    pub(super) fn class(&self) -> Class {
        match self.kind {
            OpKind::H2d => Class::H2d,
            OpKind::D2h => Class::D2h,
            OpKind::Kernel => Class::Kernel,
            OpKind::Graph if self.graph.is_some_and(|nodes| nodes.only_kernels()) => Class::Kernel,
            _ => Class::Other,
        }
    }
}

/// Kinds that a wait can be named after; everything else cannot be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    H2d = 1,
    Kernel = 2,
    D2h = 4,
    Other = 8,
}

/// An operation whose fate is known, or given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpDone {
    /// Process.
    pub pid: u32,
    /// The operation.
    pub op: Op,
    /// Its stream.
    pub stream: StreamKey,
    /// The step that it belongs to; none where it was given up.
    pub step: Option<u64>,
    /// How its bounds are known.
    pub method: Method,
    /// It started no earlier, ns.
    pub earliest_start_ns: u64,
    /// It ended no later, ns ([`Method::Estimated`]: when it was given up).
    pub latest_end_ns: u64,
    /// It took no less, ns.
    pub lower_ns: u64,
    /// It took no more, ns ([`Method::Estimated`]: not proven).
    pub upper_ns: u64,
}
