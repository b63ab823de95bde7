//! Graphs and captures, names, losses, births and deaths, caps.

use proptest::prelude::*;

use super::super::{Gpu, Kinds, Limits, Method, OpKind, Out, WaitPhase};
use super::bench::*;
use crate::intake::event::{Api, Call, Cuda, Event, Launches, Losses, ProcFact, Process, What};

fn begin(enter: u64, stream: u64) -> Event {
    call(Api::StreamBeginCapture, enter, enter + 1, &[stream, 2])
}

fn end(enter: u64, stream: u64) -> Event {
    call(Api::StreamEndCapture, enter, enter + 1, &[stream, 0x99])
}

fn instantiate(enter: u64, graph: u64, exec: u64) -> Event {
    call(Api::GraphInstantiateWithFlags, enter, enter + 1, &[0x10, graph, 0]).out(exec)
}

fn launch_graph(enter: u64, exec: u64, stream: u64) -> Event {
    call(Api::GraphLaunch, enter, enter + 1, &[exec, stream])
}

#[test]
fn what_is_captured_does_not_run() {
    let heard = hear(vec![
        begin(100, FREE),
        launch(110, 115, 3, FREE),
        h2d_async(120, 121, FREE),
        record(122, 123, 0xea, FREE),
        // A second stream joins.
        wait_event(124, 125, OTHER, 0xea),
        launch(126, 126, 2, OTHER),
        end(130, FREE),
        instantiate(140, 0x91, 0x92),
        sync_event(145, 146, 0xea),
        launch_graph(150, 0x92, OTHER),
        sync(160, 500, OTHER),
    ]);
    let [done] = heard.ops()[..] else { panic!("one operation") };
    assert_eq!((done.op.kind, done.op.enqueue_first_ns), (OpKind::Graph, 150));
    let nodes = done.op.graph.unwrap();
    assert_eq!((nodes.kernels, nodes.h2d, nodes.others), (5, 1, 0));
    assert_eq!(heard.phase(500), Some(WaitPhase::Gpu));
    assert_eq!(heard.gpu.counters().ops_captured, 6);
    assert_eq!(heard.steps()[0].graph_launches, 1);
}

#[test]
fn graphs_are_learned_only_where_certain() {
    let captured = || vec![begin(100, FREE), launch(110, 115, 3, FREE), end(120, FREE)];
    let run = |exec| vec![launch_graph(200, exec, FREE), sync(210, 500, FREE)];
    let cases: Vec<(&str, Vec<Event>, u64, Option<WaitPhase>)> = vec![
        ("the very next call", vec![instantiate(130, 0x91, 0x92)], 0x92, Some(WaitPhase::Kernel)),
        (
            "the context asked for between",
            vec![call(Api::CtxSetCurrent, 125, 126, &[CTX]), instantiate(130, 0x91, 0x92)],
            0x92,
            Some(WaitPhase::Kernel),
        ),
        (
            "another call between",
            vec![call(Api::MemAlloc, 125, 126, &[]), instantiate(130, 0x91, 0x92)],
            0x92,
            Some(WaitPhase::Gpu),
        ),
        ("another thread", vec![instantiate(130, 0x91, 0x92).by(2)], 0x92, Some(WaitPhase::Gpu)),
        (
            "instantiated again",
            vec![instantiate(130, 0x91, 0x92), instantiate(140, 0x91, 0x93)],
            0x93,
            Some(WaitPhase::Kernel),
        ),
        (
            "graph destroyed, handle used again",
            vec![
                instantiate(130, 0x91, 0x92),
                call(Api::GraphDestroy, 140, 141, &[0x91]),
                instantiate(150, 0x91, 0x93),
            ],
            0x93,
            Some(WaitPhase::Gpu),
        ),
        (
            "executable graph destroyed",
            vec![instantiate(130, 0x91, 0x92), call(Api::GraphExecDestroy, 140, 141, &[0x92])],
            0x92,
            Some(WaitPhase::Gpu),
        ),
        ("never seen", vec![], 0x77, Some(WaitPhase::Gpu)),
        ("failed", vec![instantiate(130, 0x91, 0x92).ret(1)], 0x92, Some(WaitPhase::Gpu)),
    ];
    for (name, between, exec, phase) in cases {
        let mut events = captured();
        events.extend(between);
        events.extend(run(exec));
        assert_eq!(hear(events).phase(500), phase, "{name}");
    }
    // Into a graph that holds something already.
    let onto = call(Api::StreamBeginCaptureToGraph, 100, 101, &[FREE, 0x91]);
    let mut events = vec![onto, launch(110, 115, 3, FREE), end(120, FREE)];
    events.push(instantiate(130, 0x91, 0x92));
    events.extend(run(0x92));
    assert_eq!(hear(events).phase(500), Some(WaitPhase::Gpu));
}

fn graph_call(api: Api, enter: u64, args: &[u64]) -> Event {
    call(api, enter, enter + 1, args)
}

/// A graph 0x91 made by hand: `parts`, then instantiated as 0x92 and launched. What it holds.
fn made_by_hand(parts: Vec<Event>) -> Option<(u64, u64)> {
    let mut events = vec![graph_call(Api::GraphCreate, 100, &[0x10, 0]).out(0x91)];
    events.extend(parts);
    events.extend([instantiate(190, 0x91, 0x92), launch_graph(200, 0x92, FREE)]);
    events.push(sync(210, 500, FREE));
    let heard = hear(events);
    let [done] = heard.ops()[..] else { panic!("one operation") };
    done.op.graph.map(|nodes| (nodes.kernels, nodes.others))
}

#[test]
fn graphs_made_by_hand_are_learned_node_by_node() {
    let node = |enter, api| graph_call(api, enter, &[0x20, 0x91]);
    let kernel = |enter| node(enter, Api::GraphAddKernelNode);
    // Another graph, with two kernels.
    let child = || {
        vec![
            graph_call(Api::GraphCreate, 110, &[0x10, 0]).out(0x95),
            graph_call(Api::GraphAddKernelNode, 112, &[0x20, 0x95]),
            graph_call(Api::GraphAddKernelNode, 114, &[0x20, 0x95]),
        ]
    };
    let with = |mut first: Vec<Event>, then: Event| {
        first.push(then);
        first
    };
    let add_child = |of| graph_call(Api::GraphAddChildGraphNode, 120, &[0x20, 0x91, 0, 0, of]);
    let cases = [
        ("empty", vec![], Some((0, 0))),
        ("kernels", vec![kernel(110), kernel(112)], Some((2, 0))),
        ("one of another thread", vec![kernel(110), kernel(112).by(2)], Some((2, 0))),
        ("one refused", vec![kernel(110), kernel(112).ret(1)], Some((1, 0))),
        ("a copy", vec![kernel(110), node(112, Api::GraphAddMemcpyNode)], Some((1, 1))),
        ("a join", vec![kernel(110), node(112, Api::GraphAddEmptyNode)], Some((1, 0))),
        ("a child", with(child(), add_child(0x95)), Some((2, 0))),
        ("a child that is not known", vec![kernel(110), add_child(0x96)], None),
        ("a node of any kind", vec![kernel(110), node(112, Api::GraphAddNode)], None),
        (
            "a node taken out",
            vec![kernel(110), graph_call(Api::GraphDestroyNode, 112, &[0x20])],
            None,
        ),
        (
            "made anew as a copy",
            with(child(), graph_call(Api::GraphClone, 120, &[0x10, 0x95]).out(0x91)),
            Some((2, 0)),
        ),
    ];
    for (name, parts, expected) in cases {
        assert_eq!(made_by_hand(parts), expected, "{name}");
    }
}

#[test]
fn a_graph_made_before_attach_stays_opaque() {
    let heard = hear(vec![
        graph_call(Api::GraphAddKernelNode, 110, &[0x20, 0x91]),
        instantiate(130, 0x91, 0x92),
        launch_graph(200, 0x92, FREE),
        sync(210, 500, FREE),
    ]);
    assert_eq!(heard.ops()[0].op.graph, None);
}

#[test]
fn captures_that_began_or_ended_otherwise() {
    // Before attach: what seemed enqueued did not run.
    let heard = hear(vec![launch(110, 115, 3, FREE), end(120, FREE), sync(210, 500, FREE)]);
    assert!(heard.ops().is_empty());
    assert_eq!(heard.gpu.counters().ops_withdrawn, 1);
    // Invalidated: over, without a graph.
    let heard = hear(vec![
        begin(100, FREE),
        launch(110, 115, 3, FREE),
        end(120, FREE).ret(901),
        launch(130, 130, 1, FREE),
        sync(210, 500, FREE),
    ]);
    assert_eq!(heard.proven(), [130]);
    // Refused to the wrong thread: it goes on.
    let heard = hear(vec![
        begin(100, FREE),
        end(120, FREE).ret(908).by(2),
        launch(130, 130, 1, FREE),
        end(140, FREE),
        sync(210, 500, FREE),
    ]);
    assert!(heard.proven().is_empty());
    // A stream that can be waited for is not capturing.
    let heard = hear(vec![
        begin(100, FREE),
        sync(110, 120, FREE),
        launch(130, 130, 1, FREE),
        sync(210, 500, FREE),
    ]);
    assert_eq!(heard.proven(), [130]);
}

#[test]
fn names_of_functions() {
    let lookup = call(Api::ModuleGetFunction, 100, 101, &[0x10, 0x30, 0x20]);
    let mut heard = hear(vec![
        lookup.out(0xf1).payload(b"_Z6kernelv\0rubbish"),
        call(Api::LibraryGetKernel, 110, 111, &[0x10, 0x31, 0x20]).out(0xf2).payload(b"gemm\0"),
        call(Api::KernelGetFunction, 120, 121, &[0x10, 0xf2]).out(0xf3),
        call(Api::ModuleGetFunction, 130, 131, &[0x10, 0x30, 0x20]).out(0xf4).ret(500),
    ]);
    assert_eq!(heard.gpu.name_of(PID, 0xf1), Some("_Z6kernelv"));
    assert_eq!(heard.gpu.name_of(PID, 0xf3), Some("gemm"));
    assert_eq!(heard.gpu.name_of(PID, 0xf4), None);
    assert_eq!(heard.gpu.name_of(8, 0xf1), None);
    heard.more(vec![call(Api::ModuleUnload, 140, 141, &[0x30])]);
    assert_eq!(heard.gpu.name_of(PID, 0xf1), None);
    assert_eq!(heard.gpu.name_of(PID, 0xf2), Some("gemm"));
}

#[test]
fn after_a_loss_nothing_is_taken_for_granted() {
    let heard = hear(vec![
        launch(100, 100, 1, FREE),
        record(110, 111, 0xea, FREE),
        loss(120),
        // The event may have been recorded again, the memory freed, the stream made anew.
        sync_event(130, 131, 0xea),
        h2d(140, 150, PINNED),
        sync(160, 200, FREE),
        sync(210, 300, 0),
        launch(310, 310, 1, FREE),
        sync(320, 400, FREE),
        launch(410, 410, 1, FREE),
        sync(420, 500, FREE),
    ]);
    assert_eq!(heard.op(100).unwrap().latest_end_ns, 200);
    assert_eq!(heard.op(140).unwrap().op.pinned, None);
    assert_eq!(heard.phase(150), Some(WaitPhase::Gpu));
    let lost: Vec<bool> = heard.steps().iter().map(|step| step.lost).collect();
    assert_eq!(lost, [true, true, false, false]);
    assert_eq!(heard.phase(500), Some(WaitPhase::Kernel));
    assert_eq!(heard.gpu.counters().losses, 1);
    // Losses of other families do not matter here; skipped programs do.
    for (losses, counted) in [
        (Losses { socket: 1, ..Losses::default() }, 0),
        (Losses { recursion: 1, ..Losses::default() }, 1),
    ] {
        let what = What::Loss(losses);
        let heard = hear(vec![Event { time_ns: 100, pid: 0, tid: 0, what }]);
        assert_eq!(heard.gpu.counters().losses, counted);
    }
}

#[test]
fn the_end_of_a_process_gives_its_work_up() {
    let process = |what| Event { time_ns: 200, pid: PID, tid: 1, what: What::Process(what) };
    let gone =
        |pid| Event { time_ns: 200, pid: 0, tid: 0, what: What::Proc(ProcFact::Gone { pid }) };
    for (name, event, ends) in [
        ("exec", process(Process::Exec), true),
        ("last thread", process(Process::Exit { last: true }), true),
        ("another thread", process(Process::Exit { last: false }), false),
        ("gone", gone(PID), true),
        ("another gone", gone(8), false),
        ("fork", process(Process::Fork { child: 8 }), false),
        ("a child that takes its number", process(Process::Fork { child: PID }), true),
    ] {
        let heard = hear(vec![launch(100, 100, 1, FREE), event]);
        let given_up = heard.op(100).map(|done| done.method);
        assert_eq!(given_up, ends.then_some(Method::Estimated), "{name}");
        assert_eq!(heard.gpu.held() == 0, ends, "{name}");
    }
    let mut heard = hear(vec![launch(100, 100, 1, FREE)]);
    heard.gpu.finish(900, &mut heard.out);
    assert_eq!(heard.op(100).unwrap().upper_ns, 800);
}

#[test]
fn work_outstanding_now() {
    let mut heard = hear(vec![launch(100, 120, 3, FREE), h2d_async(130, 131, 0).by(2)]);
    let mine = heard.gpu.outstanding(PID, 1, 110);
    let mut kinds = Kinds::default();
    kinds.insert(OpKind::Kernel);
    assert_eq!((mine.ops, mine.first_enqueue_ns, mine.kinds), (1, 100, kinds));
    assert_eq!(heard.gpu.outstanding(PID, 1, 121).ops, 0);
    assert_eq!(heard.gpu.outstanding(PID, 2, 0).ops, 1);
    heard.more(vec![sync(140, 200, FREE)]);
    assert_eq!(heard.gpu.outstanding(PID, 1, 0).ops, 0);
}

#[test]
fn failures_are_told_and_count_for_nothing() {
    let heard = hear(vec![
        h2d_async(100, 101, FREE).ret(2),
        d2h(110, 120).ret(700),
        query(130, 131, 0xea).ret(600),
        query(140, 141, 0xea).ret(400),
        sync(150, 160, FREE),
    ]);
    let failures = heard.pick(|out| match out {
        Out::Failure(failure) => Some(failure),
        _ => None,
    });
    assert_eq!(failures.iter().map(|failure| failure.ret).collect::<Vec<i32>>(), [2, 700, 400]);
    assert!(heard.ops().is_empty());
    assert_eq!(heard.gpu.counters().failed_calls, 3);
}

const SMALL: Limits = Limits {
    processes: 2,
    threads: 3,
    streams: 4,
    events: 4,
    ops_per_stream: 5,
    ops_per_process: 8,
    marks: 3,
    floors: 2,
    ranges: 3,
    functions: 3,
    graphs: 3,
    recent: 6,
    named: 2,
    step_list: 2,
};

#[test]
fn caps_are_kept_and_counted() {
    let mut events = Vec::new();
    for n in 0..20_u64 {
        let at = 1_000 + n * 100;
        events.push(launch(at, at, 1, FREE));
        events.push(launch(at + 10, at + 10, 1, 0x6000 + n));
        events.push(record(at + 20, at + 21, 0xe00 + n, FREE));
        events.push(wait_event(at + 30, at + 31, FREE, 0xe00 + n));
        events.push(call(Api::MemHostAlloc, at + 40, at + 41, &[0, 64]).out(PINNED + n * 4096));
        let look = call(Api::ModuleGetFunction, at + 50, at + 51, &[0, 1, 2]);
        events.push(look.out(0xf00 + n).payload(b"f\0"));
        events.push(instantiate(at + 60, 0x900 + n, 0xa00 + n));
        events.push(call(Api::MemAlloc, at + 70, at + 71, &[]).by(10 + n as u32));
    }
    let heard = attached(SMALL, events);
    let counters = heard.gpu.counters();
    assert!(heard.gpu.held() < 80, "{}", heard.gpu.held());
    for count in [
        counters.ops_evicted,
        counters.streams_evicted,
        counters.events_evicted,
        counters.marks_evicted,
        counters.ranges_refused,
        counters.functions_refused,
        counters.graphs_evicted,
        counters.threads_evicted,
    ] {
        assert!(count > 0, "{counters:?}");
    }
    let given_up = heard.ops().iter().filter(|done| done.method == Method::Estimated).count();
    assert_eq!(given_up as u64, counters.ops_estimated);
}

fn any_event() -> impl Strategy<Value = Event> {
    let apis = tracer_ebpf::wire::cuda_api::APIS;
    let small = || prop_oneof![0..8_u64, any::<u64>()];
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    let calls = (0..apis.len(), any::<bool>(), any::<[u64; 3]>(), small(), small(), small(), bytes)
        .prop_map(move |(api, per_thread, [enter, c, d], a, b, out, bytes)| {
            What::Cuda(Cuda::Call(Call {
                api: apis[api].api,
                per_thread,
                enter_ns: if enter % 8 == 0 { enter } else { enter % 5_000 },
                args: [a, b, c % 6, d % 4, c, d],
                out: (out != 7).then_some(out),
                ret: [0, 0, 0, 600, 901, 700][(c % 6) as usize],
                payload: bytes.into(),
            }))
        });
    let runs = (0..5_u64, any::<[u64; 2]>(), any::<u32>(), prop::option::of(0..6_u64)).prop_map(
        |(run, [first, last], count, stream)| {
            What::Cuda(Cuda::Launches(Launches {
                run,
                first_ns: first % 5_000,
                last_ns: if last % 8 == 0 { last } else { last % 5_000 },
                count,
                stream,
                per_thread: last % 2 == 0,
                function: 1,
                mixed: false,
                grid: [1; 3],
            }))
        },
    );
    let rest = prop_oneof![
        (0..4_u32).prop_map(|tid| What::Process(Process::NewThread { tid })),
        Just(What::Process(Process::Exec)),
        any::<bool>().prop_map(|last| What::Process(Process::Exit { last })),
        Just(What::Loss(Losses { cuda: 1, ..Losses::default() })),
    ];
    let what = prop_oneof![20 => calls, 8 => runs, 1 => rest];
    (what, 0..4_u32, 0..5_u32, prop_oneof![9 => 0..5_000_u64, 1 => any::<u64>()])
        .prop_map(|(what, pid, tid, time_ns)| Event { time_ns, pid, tid, what })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn any_events_are_taken(events in prop::collection::vec(any_event(), 0..400)) {
        let mut gpu = Gpu::new(SMALL);
        let mut out = Vec::new();
        let mut ops = std::collections::BTreeSet::new();
        for event in &events {
            gpu.on_event(event, &mut out);
            prop_assert!(gpu.held() < 160, "{}", gpu.held());
        }
        gpu.finish(u64::MAX, &mut out);
        prop_assert_eq!(gpu.held(), 0);
        for out in &out {
            if let Out::Op(done) = out {
                prop_assert!(ops.insert(done.op.id), "an operation reported twice");
                prop_assert!(done.lower_ns <= done.upper_ns);
                prop_assert!(done.earliest_start_ns <= done.latest_end_ns);
            }
        }
    }
}
