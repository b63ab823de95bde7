//! Stream capture: operations enqueued while it lasts become nodes of a graph and do not run.

use crate::abi::Handle;
use crate::error::{
    CuError, ILLEGAL_STATE, INVALID_VALUE, Res, STREAM_CAPTURE_IMPLICIT,
    STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE,
    STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
    STREAM_CAPTURE_WRONG_THREAD,
};
use crate::event::Last;
use crate::graph::Graph;
use crate::process::{thread, tid};
use crate::schedule::Work;
use crate::sim::Sim;

/// `CUstreamCaptureMode`.
const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

/// A capture in progress.
pub struct Capture {
    pub ctx: Handle,
    pub graph: Handle,
    origin: Handle,
    mode: i32,
    tid: u32,
    pub invalid: bool,
}

impl Capture {
    /// Whether the legacy default stream would have to wait for it.
    pub fn is_on_blocking_stream(&self, sim: &Sim) -> bool {
        sim.streams.get(self.origin).is_ok_and(|s| s.is_blocking())
    }
}

/// Whether operations on the stream are captured. Fails if the capture has been invalidated, or
/// if the stream is the legacy one and would have to wait for a capturing stream.
pub fn active(sim: &mut Sim, stream: Handle) -> Res<bool> {
    if sim.captures.is_empty() {
        return Ok(false);
    }
    let s = sim.streams.get(stream)?;
    if let Some((capture, _)) = s.capture {
        return match sim.captures.get(&capture) {
            Some(c) if !c.invalid => Ok(true),
            _ => Err(STREAM_CAPTURE_INVALIDATED),
        };
    }
    if s.is_legacy() {
        let ctx = s.ctx;
        refuse_implicit(sim, ctx)?;
    }
    Ok(false)
}

/// Fails, and invalidates the captures concerned, if a blocking stream of the context captures.
fn refuse_implicit(sim: &mut Sim, ctx: Handle) -> Res {
    let mut hit = false;
    for c in sim.captures.values_mut().filter(|c| c.ctx == ctx) {
        if sim.streams.get(c.origin).is_ok_and(|s| s.is_blocking()) {
            c.invalid = true;
            hit = true;
        }
    }
    if hit { Err(STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
}

/// Captures an operation.
pub fn add(sim: &mut Sim, stream: Handle, work: Work) -> Res {
    let Some((capture, after)) = sim.streams.get(stream)?.capture.clone() else { return Ok(()) };
    let graph = sim.captures.get(&capture).ok_or(STREAM_CAPTURE_INVALIDATED)?.graph;
    let index = sim.add_node(graph, work, after)?;
    sim.streams.get_mut(stream)?.capture = Some((capture, vec![index]));
    Ok(())
}

/// Starts a capture.
pub fn begin(sim: &mut Sim, stream: Handle, mode: i32) -> Res {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(INVALID_VALUE);
    }
    let s = sim.streams.get(stream)?;
    let ctx = s.ctx;
    if s.is_legacy() {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    if s.capture.is_some() {
        return Err(ILLEGAL_STATE);
    }
    let graph = sim.graphs.add(Graph::default());
    let id = sim.next_capture;
    sim.next_capture += 1;
    let capture = Capture { ctx, graph, origin: stream, mode, tid: tid(), invalid: false };
    sim.captures.insert(id, capture);
    sim.streams.get_mut(stream)?.capture = Some((id, Vec::new()));
    Ok(())
}

/// Ends a capture and gives its graph.
pub fn end(sim: &mut Sim, stream: Handle) -> Res<Handle> {
    let Some((id, last)) = sim.streams.get(stream)?.capture.clone() else {
        return Err(ILLEGAL_STATE);
    };
    let Some(c) = sim.captures.get(&id) else { return Err(ILLEGAL_STATE) };
    let (graph, origin, invalid) = (c.graph, c.origin, c.invalid);
    if c.mode != RELAXED && c.tid != tid() {
        return Err(STREAM_CAPTURE_WRONG_THREAD);
    }
    if origin != stream {
        sim.captures.entry(id).and_modify(|c| c.invalid = true);
        return Err(STREAM_CAPTURE_UNMATCHED);
    }
    let forked = members(sim, id);
    let error = if invalid {
        Some(STREAM_CAPTURE_INVALIDATED)
    } else if !joined(sim, graph, &last, &forked)? {
        Some(STREAM_CAPTURE_UNJOINED)
    } else {
        None
    };
    sim.captures.remove(&id);
    for (stream, _) in forked {
        sim.streams.get_mut(stream)?.capture = None;
    }
    match error {
        Some(error) => {
            sim.graphs.remove(graph)?;
            Err(error)
        }
        None => Ok(graph),
    }
}

/// Streams in a capture, and the nodes that their next operation would depend on.
fn members(sim: &Sim, id: u64) -> Vec<(Handle, Vec<usize>)> {
    let capturing = |s: &crate::sim::Stream| match &s.capture {
        Some((capture, nodes)) if *capture == id => Some(nodes.clone()),
        _ => None,
    };
    sim.streams.handles().filter_map(|(h, s)| Some((h, capturing(s)?))).collect()
}

/// Whether everything that forked streams did comes before the origin's last nodes.
fn joined(sim: &Sim, graph: Handle, last: &[usize], forked: &[(Handle, Vec<usize>)]) -> Res<bool> {
    let nodes = &sim.graphs.get(graph)?.nodes;
    let mut reached = vec![false; nodes.len()];
    let mut open: Vec<usize> = last.to_vec();
    while let Some(index) = open.pop() {
        if let (Some(seen), Some(node)) = (reached.get_mut(index), nodes.get(index))
            && !*seen
        {
            *seen = true;
            open.extend(&node.after);
        }
    }
    let reached = |i: &usize| reached.get(*i) == Some(&true);
    Ok(forked.iter().all(|(_, nodes)| nodes.iter().all(reached)))
}

/// A call that is not permitted on a capturing stream: fails, and invalidates the capture.
pub fn refuse(sim: &mut Sim, stream: Handle) -> Res {
    if sim.captures.is_empty() {
        return Ok(());
    }
    let s = sim.streams.get(stream)?;
    match s.capture.as_ref().map(|c| c.0) {
        Some(id) => {
            sim.captures.entry(id).and_modify(|c| c.invalid = true);
            Err(STREAM_CAPTURE_UNSUPPORTED)
        }
        None if s.is_legacy() => {
            let ctx = s.ctx;
            refuse_implicit(sim, ctx)
        }
        None => Ok(()),
    }
}

/// A call on the whole context while one of its streams captures.
pub fn refuse_in_context(sim: &mut Sim, ctx: Handle) -> Res {
    refuse_where(sim, |c| c.ctx == ctx)
}

/// A call that might synchronise behind the program's back (allocation, synchronous copies): the
/// mode of the captures and of the calling thread says whether it may be made meanwhile.
pub fn refuse_unsafe(sim: &mut Sim) -> Res {
    if sim.captures.is_empty() {
        return Ok(());
    }
    let me = tid();
    match thread(|t| t.capture_mode.get()).unwrap_or(GLOBAL) {
        GLOBAL => {
            refuse_where(sim, |c| c.mode == GLOBAL || (c.mode == THREAD_LOCAL && c.tid == me))
        }
        THREAD_LOCAL => refuse_where(sim, |c| c.mode != RELAXED && c.tid == me),
        _ => Ok(()),
    }
}

fn refuse_where(sim: &mut Sim, hit: impl Fn(&Capture) -> bool) -> Res {
    let mut result: Result<(), CuError> = Ok(());
    for c in sim.captures.values_mut().filter(|c| hit(c)) {
        c.invalid = true;
        result = Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    result
}

/// A wait for an event in which a capture is involved on one side or both. True if the wait has
/// been dealt with.
pub fn wait_event(sim: &mut Sim, stream: Handle, last: &Last) -> Res<bool> {
    let s = sim.streams.get(stream)?;
    let mine = s.capture.clone();
    let legacy = s.is_legacy();
    match (mine, last) {
        (None, Last::Captured { capture, nodes }) => {
            if sim.captures.get(capture).is_none_or(|c| c.invalid) {
                return Err(STREAM_CAPTURE_INVALIDATED);
            }
            if legacy {
                sim.captures.entry(*capture).and_modify(|c| c.invalid = true);
                return Err(STREAM_CAPTURE_IMPLICIT);
            }
            sim.streams.get_mut(stream)?.capture = Some((*capture, nodes.clone()));
            Ok(true)
        }
        (Some((id, mut after)), Last::Captured { capture, nodes }) => {
            if id != *capture {
                for id in [id, *capture] {
                    sim.captures.entry(id).and_modify(|c| c.invalid = true);
                }
                return Err(STREAM_CAPTURE_MERGE);
            }
            for node in nodes {
                if !after.contains(node) {
                    after.push(*node);
                }
            }
            sim.streams.get_mut(stream)?.capture = Some((id, after));
            Ok(true)
        }
        (Some((id, _)), Last::Recorded(_)) => {
            sim.captures.entry(id).and_modify(|c| c.invalid = true);
            Err(STREAM_CAPTURE_ISOLATION)
        }
        (Some(_), Last::Never) => Ok(true),
        (None, _) => Ok(false),
    }
}
