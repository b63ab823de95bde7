//! Graphs: what they hold, as seen when they were made, and which executable graph holds it.
//!
//! A graph made by hand is known from `cuGraphCreate` on, node by node. Of a captured one,
//! `cuStreamEndCapture` hands its graph out through its second argument, which is not taken: it is
//! known by sequence instead. An instantiation that is the thread's very next call after the end of
//! a capture, of a handle that names no other living graph, is of that capture. Every other graph
//! (made before attach, captured into an existing graph, with nodes of a kind that the call does not
//! tell) is opaque. Updating an executable graph keeps its nodes' kinds, which is all that is kept
//! here; nodes that it has disabled still count.

use std::collections::BTreeMap;

use super::op::OpKind;

/// What a graph holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Kernel launches.
    pub kernels: u64,
    /// Copies to the device.
    pub h2d: u64,
    /// Copies from the device.
    pub d2h: u64,
    /// Everything else: other copies, memory sets, host functions, child graphs.
    pub others: u64,
}

impl Nodes {
    /// Adds `count` nodes of a kind.
    pub(super) fn add(&mut self, kind: OpKind, count: u64) {
        let sum = match kind {
            OpKind::Kernel => &mut self.kernels,
            OpKind::H2d => &mut self.h2d,
            OpKind::D2h => &mut self.d2h,
            _ => &mut self.others,
        };
        *sum = sum.saturating_add(count);
    }

    /// Adds the nodes of another graph.
    fn add_all(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.kernels, other.kernels),
            (&mut self.h2d, other.h2d),
            (&mut self.d2h, other.d2h),
            (&mut self.others, other.others),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Whether it launches kernels and does nothing else.
    pub fn only_kernels(self) -> bool {
        self.kernels > 0 && self.h2d == 0 && self.d2h == 0 && self.others == 0
    }
}

/// What a call adds to a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A node of this kind.
    Node(OpKind),
    /// A node that is ordered work of no kind: it takes no time on the device.
    Nothing,
    /// All nodes of this graph, as one.
    Child(u64),
    /// Something that the call's arguments do not tell.
    Unknown,
}

/// Graphs and executable graphs of one process, by handle. `None`: opaque.
#[derive(Clone, Debug, Default)]
pub(super) struct Graphs {
    graphs: BTreeMap<u64, Option<Nodes>>,
    execs: BTreeMap<u64, Option<Nodes>>,
}

impl Graphs {
    /// `graph` was instantiated as `exec`; `ended` is the capture that ended in the thread's call
    /// just before. Answers how many entries had to go.
    pub(super) fn instantiated(
        &mut self,
        graph: u64,
        exec: Option<u64>,
        ended: Option<Nodes>,
        cap: usize,
    ) -> u64 {
        let nodes = self.graphs.get(&graph).copied().unwrap_or(ended);
        let mut evicted = put(&mut self.graphs, graph, nodes, cap);
        if let Some(exec) = exec {
            evicted += put(&mut self.execs, exec, nodes, cap);
        }
        evicted
    }

    /// An empty graph was made. Answers how many entries had to go.
    pub(super) fn created(&mut self, graph: u64, cap: usize) -> u64 {
        put(&mut self.graphs, graph, Some(Nodes::default()), cap)
    }

    /// `graph` was made as a copy of `of`. Answers how many entries had to go.
    pub(super) fn cloned(&mut self, graph: u64, of: u64, cap: usize) -> u64 {
        let nodes = self.graphs.get(&of).copied().flatten();
        put(&mut self.graphs, graph, nodes, cap)
    }

    /// Something was added to a graph. One that is not known stays so.
    pub(super) fn added(&mut self, graph: u64, part: Part) {
        let child = match part {
            Part::Child(child) => self.graphs.get(&child).copied().flatten(),
            _ => None,
        };
        let Some(known) = self.graphs.get_mut(&graph) else { return };
        match (part, known.as_mut()) {
            (Part::Node(kind), Some(nodes)) => nodes.add(kind, 1),
            (Part::Child(_), Some(nodes)) if let Some(child) = child => nodes.add_all(child),
            (Part::Nothing, _) | (_, None) => {}
            (Part::Child(_) | Part::Unknown, Some(_)) => *known = None,
        }
    }

    /// A node was taken out of some graph: which one the call does not tell.
    pub(super) fn node_gone(&mut self) {
        self.graphs.values_mut().for_each(|nodes| *nodes = None);
    }

    pub(super) fn nodes_of(&self, exec: u64) -> Option<Nodes> {
        self.execs.get(&exec).copied().flatten()
    }

    /// What was learned of a graph no longer holds: something is recorded into it.
    pub(super) fn extended(&mut self, graph: u64, cap: usize) -> u64 {
        put(&mut self.graphs, graph, None, cap)
    }

    pub(super) fn destroyed(&mut self, graph: u64) {
        self.graphs.remove(&graph);
    }

    pub(super) fn exec_destroyed(&mut self, exec: u64) {
        self.execs.remove(&exec);
    }

    pub(super) fn len(&self) -> usize {
        self.graphs.len() + self.execs.len()
    }

    pub(super) fn clear(&mut self) {
        self.graphs.clear();
        self.execs.clear();
    }
}

/// Inserts; where the cap is reached, the entry with the lowest handle goes (and is opaque).
fn put<V>(map: &mut BTreeMap<u64, V>, key: u64, value: V, cap: usize) -> u64 {
    let mut evicted = 0;
    if !map.contains_key(&key) && map.len() >= cap {
        map.pop_first();
        evicted = 1;
    }
    map.insert(key, value);
    evicted
}

/// A capture in progress.
#[derive(Clone, Copy, Debug, Default)]
struct Capture {
    nodes: Nodes,
    /// Something may be missing from `nodes`.
    opaque: bool,
}

/// Captures in progress in one process, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Captures {
    last: u64,
    active: BTreeMap<u64, Capture>,
}

impl Captures {
    /// Begins one. Answers its number and how many had to go.
    pub(super) fn begin(&mut self, opaque: bool, cap: usize) -> (u64, u64) {
        self.last += 1;
        let capture = Capture { opaque, ..Capture::default() };
        let evicted = put(&mut self.active, self.last, capture, cap);
        (self.last, evicted)
    }

    /// Whether it is in progress.
    pub(super) fn is_active(&self, capture: Option<u64>) -> bool {
        capture.is_some_and(|capture| self.active.contains_key(&capture))
    }

    /// Records nodes.
    pub(super) fn add(&mut self, capture: u64, kind: OpKind, count: u64) {
        if let Some(capture) = self.active.get_mut(&capture) {
            capture.nodes.add(kind, count);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.active.len()
    }

    pub(super) fn clear(&mut self) {
        self.active.clear();
    }

    /// Ends one. Answers what it recorded, where that is certain.
    pub(super) fn end(&mut self, capture: u64) -> Option<Nodes> {
        let capture = self.active.remove(&capture)?;
        (!capture.opaque).then_some(capture.nodes)
    }
}
