//! Capture and graphs: what is captured does not run, what is launched does, what is not
//! permitted fails with the documented code.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Handle, Ready, isolated, ops, ops_of};

const MS: u64 = 1_000_000;
const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

/// Ends a capture and gives its graph, which has `nodes` nodes.
fn end(r: &Ready, stream: Handle, nodes: usize) -> Handle {
    let (mut graph, mut n) = (0, 0);
    assert_eq!(r.cuStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(r.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut n), 0);
    assert_eq!(n, nodes);
    graph
}

fn instantiate(r: &Ready, graph: Handle) -> Handle {
    let mut exec = 0;
    assert_eq!(r.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    exec
}

fn ends_with(r: &Ready, stream: Handle, code: i32) {
    let mut graph = 1;
    assert_eq!(r.cuStreamEndCapture(stream, &mut graph), code);
    assert_eq!(graph, 0);
    assert_eq!(r.launch(stream, 0), 0, "the stream is free again");
}

#[test]
fn captured_work_runs_when_the_graph_is_launched() {
    let records = isolated("captured_work_runs_when_the_graph_is_launched", &[], || {
        let r = Ready::new();
        let (s, fork) = (r.stream(1), r.stream(1));
        let (forked, joined) = (r.event(), r.event());
        let memory = r.device_memory(1 << 20);
        let host = r.pinned(1 << 20);
        assert_eq!(r.cuStreamBeginCapture_v2(s, GLOBAL), 0);
        let mut status = -1;
        assert_eq!(r.cuStreamIsCapturing(s, &mut status), 0);
        assert_eq!(status, 1);
        assert_eq!(r.cuMemsetD8Async(memory, 6, 1 << 20, s), 0);
        assert_eq!(r.cuEventRecord(forked, s), 0);
        assert_eq!(r.cuStreamWaitEvent(fork, forked, 0), 0);
        assert_eq!(r.launch(fork, 3 * MS), 0);
        assert_eq!(r.cuEventRecord(joined, fork), 0);
        assert_eq!(r.launch(s, 2 * MS), 0);
        assert_eq!(r.cuStreamWaitEvent(s, joined, 0), 0);
        assert_eq!(r.cuMemcpyDtoHAsync_v2(host.as_ptr() as u64, memory, 1 << 20, s), 0);
        let graph = end(&r, s, 4);
        assert_eq!(r.cuStreamSynchronize(s), 0);
        assert!(host.iter().all(|&b| b == 0), "nothing ran");
        let exec = instantiate(&r, graph);
        for _ in 0..3 {
            assert_eq!(r.cuGraphLaunch(exec, s), 0);
        }
        assert_eq!(r.cuGraphDestroy(graph), 0);
        assert_eq!(r.cuStreamSynchronize(s), 0);
        assert!(host.iter().all(|&b| b == 6));
        assert_eq!(r.cuGraphExecDestroy(exec), 0);
        assert_eq!(r.cuGraphLaunch(exec, s), 1);
    });
    let Some(records) = records else { return };
    let launches = ops_of(&records, "graph");
    assert_eq!(launches.len(), 3);
    assert_eq!(ops_of(&records, "record").len(), 0, "records in a capture are no operations");
    for launch in &launches {
        let parts: Vec<_> = ops(&records).into_iter().filter(|o| o.graph == launch.id).collect();
        let kinds: Vec<_> = parts.iter().map(|o| o.kind.as_str()).collect();
        assert_eq!(kinds, ["memset", "kernel", "kernel", "d2h"]);
        assert_eq!(launch.start, parts.iter().map(|o| o.start).min().unwrap());
        assert_eq!(launch.end, parts.iter().map(|o| o.end).max().unwrap());
        assert!(parts[1].start >= parts[0].end && parts[2].start >= parts[0].end);
        assert!(parts[3].start >= parts[1].end && parts[3].start >= parts[2].end);
        assert!(parts.iter().all(|o| o.enqueue == launch.enqueue));
    }
    assert!(launches.windows(2).all(|l| l[1].start >= l[0].end));
}

#[test]
fn calls_that_capture_forbids_invalidate_it() {
    isolated("calls_that_capture_forbids_invalidate_it", &[], || {
        let r = Ready::new();
        let (s, event, memory) = (r.stream(1), r.event(), r.device_memory(64));
        let mut out = 0;
        type Forbidden<'a> = &'a mut dyn FnMut() -> i32;
        let forbidden: [(Forbidden<'_>, i32, &str); 6] = [
            (&mut || r.cuStreamSynchronize(s), 900, "synchronise the stream"),
            (&mut || r.cuStreamQuery(s), 900, "query the stream"),
            (&mut || r.cuCtxSynchronize(), 900, "synchronise the context"),
            (&mut || r.cuMemAlloc_v2(&mut out, 64), 900, "allocate"),
            (&mut || r.cuMemcpyDtoD_v2(memory, memory + 32, 32), 900, "copy synchronously"),
            (&mut || r.cuEventQuery(event), 900, "query an event"),
        ];
        for (call, code, what) in forbidden {
            assert_eq!(r.cuStreamBeginCapture_v2(s, GLOBAL), 0, "{what}");
            assert_eq!(call(), code, "{what}");
            let mut status = 0;
            assert_eq!(r.cuStreamIsCapturing(s, &mut status), 0);
            assert_eq!(status, 2, "{what}");
            assert_eq!(r.launch(s, 0), 901, "{what}");
            ends_with(&r, s, 901);
        }
        // A relaxed capture leaves all but its own stream alone.
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.cuMemAlloc_v2(&mut out, 64), 0);
        assert_eq!(r.cuEventQuery(event), 0);
        end(&r, s, 0);
        // A thread-local one leaves other threads alone.
        assert_eq!(r.cuStreamBeginCapture_v2(s, THREAD_LOCAL), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(r.cuCtxSetCurrent(r.ctx), 0);
                let mut out = 0;
                assert_eq!(r.cuMemAlloc_v2(&mut out, 64), 0);
                let mut graph = 0;
                assert_eq!(r.cuStreamEndCapture(s, &mut graph), 908, "not its thread");
            });
        });
        end(&r, s, 0);
    });
}

#[test]
fn dependencies_across_a_capture_are_refused() {
    isolated("dependencies_across_a_capture_are_refused", &[], || {
        let r = Ready::new();
        let (s, other, blocking) = (r.stream(1), r.stream(1), r.stream(0));
        let (outside, inside) = (r.event(), r.event());
        let mut graph = 0;
        assert_eq!(r.cuStreamEndCapture(s, &mut graph), 401, "not capturing");
        assert_eq!(r.cuStreamBeginCapture_v2(0, RELAXED), 900, "the legacy stream");
        // On work outside.
        assert_eq!(r.cuEventRecord(outside, other), 0);
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 401);
        assert_eq!(r.cuStreamWaitEvent(s, outside, 0), 905);
        ends_with(&r, s, 901);
        // A fork that is not joined.
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.launch(s, 0), 0);
        assert_eq!(r.cuEventRecord(inside, s), 0);
        assert_eq!(r.cuEventSynchronize(inside), 907);
        assert_eq!(r.cuStreamWaitEvent(other, inside, 0), 0);
        assert_eq!(r.launch(other, 0), 0);
        assert_eq!(r.cuStreamEndCapture(other, &mut graph), 903, "begun elsewhere");
        ends_with(&r, s, 901);
        assert_eq!(r.launch(other, 0), 0);
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.cuEventRecord(inside, s), 0);
        assert_eq!(r.cuStreamWaitEvent(other, inside, 0), 0);
        assert_eq!(r.launch(other, 0), 0);
        ends_with(&r, s, 904);
        // Two captures do not merge.
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.cuStreamBeginCapture_v2(other, RELAXED), 0);
        assert_eq!(r.cuEventRecord(inside, s), 0);
        assert_eq!(r.cuStreamWaitEvent(other, inside, 0), 902);
        ends_with(&r, s, 901);
        ends_with(&r, other, 901);
        // The legacy stream would wait for a blocking stream's capture.
        assert_eq!(r.cuStreamBeginCapture_v2(blocking, RELAXED), 0);
        assert_eq!(r.launch(0, 0), 906);
        ends_with(&r, blocking, 901);
        // It has nothing to do with a non-blocking one's.
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.launch(0, 0), 0);
        end(&r, s, 0);
    });
}

/// `CUDA_KERNEL_NODE_PARAMS_v2` for a kernel of one thread.
fn node_params(function: Handle, params: &[*const u64; 1]) -> [u64; 9] {
    let one = 1 | 1 << 32;
    [function, one, one, one, 0, params.as_ptr() as u64, 0, 0, 0]
}

#[test]
fn kernel_nodes_are_added_changed_and_updated() {
    let records = isolated("kernel_nodes_are_added_changed_and_updated", &[], || {
        let r = Ready::new();
        let s = r.stream(1);
        let times = [MS, 2 * MS, 4 * MS];
        let params = times.each_ref().map(|ns| [std::ptr::from_ref(ns)]);
        let (mut graph, mut first, mut second) = (0, 0, 0);
        assert_eq!(r.cuGraphCreate(&mut graph, 0), 0);
        let p = params.each_ref().map(|p| node_params(r.busy, p));
        let none = std::ptr::null();
        assert_eq!(r.cuGraphAddKernelNode_v2(&mut first, graph, none, 0, p[0].as_ptr()), 0);
        assert_eq!(r.cuGraphAddKernelNode_v2(&mut second, graph, &first, 1, p[0].as_ptr()), 0);
        let exec = instantiate(&r, graph);
        assert_eq!(r.cuGraphLaunch(exec, s), 0);
        assert_eq!(r.cuGraphExecKernelNodeSetParams_v2(exec, second, p[1].as_ptr()), 0);
        assert_eq!(r.cuGraphLaunch(exec, s), 0);
        // Another graph of the same shape.
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.launch(s, times[2]), 0);
        assert_eq!(r.launch(s, times[2]), 0);
        let same = end(&r, s, 2);
        let mut info = [9; 3];
        assert_eq!(r.cuGraphExecUpdate_v2(exec, same, &mut info), 0);
        assert_eq!(r.cuGraphLaunch(exec, s), 0);
        // And one of another shape.
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.launch(s, 0), 0);
        let different = end(&r, s, 1);
        assert_eq!(r.cuGraphExecUpdate_v2(exec, different, &mut info), 910);
        assert_eq!(r.cuStreamSynchronize(s), 0);
    });
    let Some(records) = records else { return };
    let took: Vec<u64> = ops_of(&records, "kernel").iter().map(|k| k.end - k.start).collect();
    assert_eq!(took, [MS, MS, MS, 2 * MS, 4 * MS, 4 * MS]);
}

#[test]
fn a_node_without_blocks_is_given_some_before_the_launch() {
    let records = isolated("a_node_without_blocks_is_given_some_before_the_launch", &[], || {
        let r = Ready::new();
        let params = [std::ptr::from_ref(&MS)];
        let whole = node_params(r.busy, &params);
        let mut empty = whole;
        // No blocks along x.
        empty[1] = 1 << 32;
        let (mut graph, mut node) = (0, 0);
        assert_eq!(r.cuGraphCreate(&mut graph, 0), 0);
        let none = std::ptr::null();
        assert_eq!(r.cuGraphAddKernelNode_v2(&mut node, graph, none, 0, empty.as_ptr()), 0);
        let exec = instantiate(&r, graph);
        assert_eq!(r.cuGraphLaunch(exec, 0), 1);
        assert_eq!(r.cuGraphExecKernelNodeSetParams_v2(exec, node, whole.as_ptr()), 0);
        assert_eq!(r.cuGraphLaunch(exec, 0), 0);
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
    let Some(records) = records else { return };
    assert_eq!(ops_of(&records, "kernel").len(), 1);
    assert_eq!(ops_of(&records, "graph").len(), 1);
}

#[test]
fn host_functions_in_graphs_keep_their_place() {
    let records = isolated("host_functions_in_graphs_keep_their_place", &[], || {
        let r = Ready::new();
        let s = r.stream(1);
        unsafe extern "C" fn count(data: *mut std::ffi::c_void) {
            // SAFETY: the counter below, which outlives the graph.
            unsafe { *data.cast::<u64>() += 1 }
        }
        let mut counter = 0u64;
        let data: *mut std::ffi::c_void = std::ptr::from_mut(&mut counter).cast();
        assert_eq!(r.cuStreamBeginCapture_v2(s, RELAXED), 0);
        assert_eq!(r.launch(s, MS), 0);
        assert_eq!(r.cuLaunchHostFunc(s, count, data), 0);
        assert_eq!(r.launch(s, MS), 0);
        let exec = instantiate(&r, end(&r, s, 3));
        for _ in 0..5 {
            assert_eq!(r.cuGraphLaunch(exec, s), 0);
        }
        assert_eq!(r.cuStreamSynchronize(s), 0);
        assert_eq!(counter, 5);
    });
    let Some(records) = records else { return };
    for launch in ops_of(&records, "graph") {
        let mut parts = ops(&records);
        parts.retain(|o| o.graph == launch.id);
        parts.sort_by_key(|o| o.start);
        let kinds: Vec<_> = parts.iter().map(|o| o.kind.as_str()).collect();
        assert_eq!(kinds, ["kernel", "host", "kernel"]);
        assert!(parts.windows(2).all(|p| p[1].start >= p[0].end));
        assert_eq!((launch.start, launch.end), (parts[0].start, parts[2].end));
    }
}
