//! Graphs: operations with dependencies, and their launch.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::abi::Handle;
use crate::error::{INVALID_VALUE, Res};
use crate::oracle::{self, Kind};
use crate::schedule::{After, Source, When, Work};
use crate::sim::Sim;

/// A graph. Nodes only depend on nodes before them.
#[derive(Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

/// An operation of a graph.
#[derive(Clone)]
pub struct Node {
    pub handle: Handle,
    pub work: Work,
    pub after: Vec<usize>,
}

/// Where a node handle leads.
#[derive(Clone, Copy)]
pub struct NodeRef {
    pub graph: Handle,
    pub index: usize,
}

/// An instantiated graph. Launches of one never overlap.
pub struct Exec {
    /// The graph it came from, to which its nodes' handles belong.
    pub graph: Handle,
    pub nodes: Vec<Node>,
    pub flags: u64,
    pub tail: When,
}

impl Sim {
    /// Adds a node.
    pub fn add_node(&mut self, graph: Handle, work: Work, after: Vec<usize>) -> Res<usize> {
        let index = self.graphs.get(graph)?.nodes.len();
        let handle = self.nodes.add(NodeRef { graph, index });
        self.graphs.get_mut(graph)?.nodes.push(Node { handle, work, after });
        Ok(index)
    }

    /// The places in `graph` of nodes named by their handles.
    pub fn node_indexes(&self, graph: Handle, handles: &[Handle]) -> Res<Vec<usize>> {
        let index = |&h: &Handle| {
            let node = self.nodes.get(h)?;
            if node.graph == graph { Ok(node.index) } else { Err(INVALID_VALUE) }
        };
        handles.iter().map(index).collect()
    }

    /// Launches an instantiated graph on a stream, as one operation made of its nodes.
    pub fn launch_graph(&mut self, exec: Handle, stream: Handle) -> Res<When> {
        let mut begin = self.order(stream)?;
        let e = self.execs.get(exec)?;
        if e.nodes.iter().any(|node| node.work.empty) {
            return Err(INVALID_VALUE);
        }
        begin.add(&e.tail);
        let source = self.source(stream)?;
        let launch = source.id;
        let span = Arc::new(AtomicU64::new(u64::MAX));
        let mut whens: Vec<When> = Vec::with_capacity(e.nodes.len());
        let mut all = begin.clone();
        for node in &e.nodes {
            let mut after = After::default();
            for &before in &node.after {
                if let Some(when) = whens.get(before) {
                    after.add(when);
                }
            }
            if node.after.is_empty() {
                after = begin.clone();
            }
            let part = Source {
                id: oracle::next_id(),
                graph: launch,
                span: Some(Arc::clone(&span)),
                ..source.clone()
            };
            let when = self.schedule.submit(node.work.clone(), part, after);
            all.add(&when);
            whens.push(when);
        }
        let whole = Source { span: Some(span), ..source };
        let when = self.schedule.submit(Work::marker(Kind::Graph), whole, all);
        self.execs.get_mut(exec)?.tail = when.clone();
        self.issued(stream, &when)?;
        Ok(when)
    }
}

/// Whether a graph may replace the one that was instantiated: the same shape.
pub fn same_shape(a: &[Node], b: &[Node]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(x, y)| x.work.kind == y.work.kind && x.after == y.after)
}
