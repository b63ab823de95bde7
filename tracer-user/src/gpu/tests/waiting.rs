//! Steps, waits and their names, bounds.

use super::super::{Limits, Method, OpKind, Out, Refine, Step, Subject, WaitPhase};
use super::bench::*;
use crate::intake::event::{Api, Event};

const US: u64 = 1_000;

/// Name, events, end of the wait, what it is named (none: not reported).
type Case = (&'static str, Vec<Event>, u64, Option<WaitPhase>);

#[test]
fn waits_are_named_only_where_facts_allow() {
    let cases: Vec<Case> = vec![
        (
            "all asynchronous, one synchronise: undivided",
            vec![
                h2d_async(100, 101, FREE),
                launch(102, 103, 3, FREE),
                d2h_async(110, 111, FREE),
                sync(120, 500, FREE),
            ],
            500,
            Some(WaitPhase::Gpu),
        ),
        (
            "kernels only",
            vec![launch(102, 103, 3, FREE), sync(120, 500, FREE)],
            500,
            Some(WaitPhase::Kernel),
        ),
        (
            "kernels behind a blocking pinned copy",
            vec![h2d(100, 101, PINNED), launch(102, 103, 3, 0), sync(120, 500, 0)],
            500,
            Some(WaitPhase::Kernel),
        ),
        (
            "kernels behind a staged copy",
            vec![h2d(100, 101, PAGEABLE), launch(102, 103, 3, 0), sync(120, 500, 0)],
            500,
            Some(WaitPhase::Gpu),
        ),
        (
            "an event between parts them",
            vec![
                launch(100, 103, 3, FREE),
                record(110, 111, 0xea, FREE),
                d2h_async(112, 113, FREE),
                sync_event(120, 500, 0xea),
                sync(510, 600, FREE),
            ],
            600,
            Some(WaitPhase::D2h),
        ),
        (
            "and the part before it",
            vec![
                launch(100, 103, 3, FREE),
                record(110, 111, 0xea, FREE),
                d2h_async(112, 113, FREE),
                sync_event(120, 500, 0xea),
            ],
            500,
            Some(WaitPhase::Kernel),
        ),
        (
            "blocking copy behind kernels",
            vec![launch(100, 103, 3, 0), d2h(120, 500)],
            500,
            Some(WaitPhase::Gpu),
        ),
        ("blocking copy alone", vec![d2h(120, 500)], 500, Some(WaitPhase::D2h)),
        ("staged copy alone", vec![h2d(120, 500, PAGEABLE)], 500, Some(WaitPhase::H2d)),
        (
            "blocking copy behind work of a blocking stream",
            vec![launch(100, 103, 3, BLOCKING), d2h(120, 500)],
            500,
            Some(WaitPhase::Gpu),
        ),
        (
            "blocking copy beside work of a non-blocking stream",
            vec![launch(100, 103, 3, FREE), d2h(120, 500)],
            500,
            Some(WaitPhase::D2h),
        ),
        (
            "blocking copy beside work of a stream made before attach",
            vec![launch(100, 103, 3, 0x5bad), d2h(120, 500)],
            500,
            Some(WaitPhase::Gpu),
        ),
        (
            "copy that waits for kernels of another stream",
            vec![
                launch(100, 103, 3, FREE),
                record(110, 111, 0xea, FREE),
                wait_event(112, 113, OTHER, 0xea),
                d2h_async(114, 115, OTHER),
                sync(120, 500, OTHER),
            ],
            500,
            Some(WaitPhase::Gpu),
        ),
        (
            "copy that waits for an event from before attach",
            vec![
                wait_event(112, 113, FREE, 0xbad),
                d2h_async(114, 115, FREE),
                sync(120, 500, FREE),
            ],
            500,
            Some(WaitPhase::Gpu),
        ),
        (
            "kernels and a memory set",
            vec![
                call(Api::MemsetD8Async, 100, 101, &[DEVICE, 0, 64, FREE]),
                launch(102, 103, 3, FREE),
                sync(120, 500, FREE),
            ],
            500,
            Some(WaitPhase::Gpu),
        ),
        (
            "another thread proved meanwhile what was waited for",
            vec![
                launch(100, 100, 1, FREE),
                d2h_async(102, 103, FREE),
                record(104, 105, 0xea, FREE),
                launch(106, 106, 1, FREE),
                sync_event(130, 400, 0xea).by(2),
                sync(120, 500, FREE),
            ],
            500,
            Some(WaitPhase::Gpu),
        ),
        ("nothing outstanding, short", vec![sync(120, 500, FREE)], 500, None),
        (
            "nothing outstanding, long",
            vec![sync(120, 120 + 60 * US, FREE)],
            120 + 60 * US,
            Some(WaitPhase::Gpu),
        ),
        (
            "allocation",
            vec![call(Api::MemAlloc, 100, 100 + 60 * US, &[0x10, 64]).out(DEVICE)],
            100 + 60 * US,
            Some(WaitPhase::Alloc),
        ),
        (
            "module, failed",
            vec![call(Api::ModuleLoadData, 100, 100 + 60 * US, &[0x10]).ret(200)],
            100 + 60 * US,
            Some(WaitPhase::Alloc),
        ),
        (
            "asynchronous copy of page-locked memory that took long: the thread lost its core",
            vec![d2h_async(100, 100 + 60 * US, FREE)],
            100 + 60 * US,
            None,
        ),
        (
            "asynchronous copy that stages",
            vec![call(Api::MemcpyDtoHAsync, 100, 100 + 60 * US, &[0x99, DEVICE, 64, FREE])],
            100 + 60 * US,
            Some(WaitPhase::Gpu),
        ),
        (
            "failed synchronise",
            vec![launch(100, 100, 1, FREE), sync(120, 120 + 60 * US, FREE).ret(719)],
            120 + 60 * US,
            Some(WaitPhase::Gpu),
        ),
    ];
    for (name, events, exit, phase) in cases {
        assert_eq!(hear(events).phase(exit), phase, "{name}");
    }
}

#[test]
fn late_attach_leaves_the_first_wait_undivided() {
    let events = vec![
        launch(100, 100, 1, FREE),
        sync(110, 500, FREE),
        launch(510, 510, 1, FREE),
        sync(520, 600, FREE),
        d2h(610, 700),
        d2h(710, 800),
    ];
    let heard = attached(Limits::default(), events);
    let phases: Vec<Option<WaitPhase>> =
        [500, 600, 700, 800].iter().map(|exit| heard.phase(*exit)).collect();
    let (gpu, kernel, d2h) = (WaitPhase::Gpu, WaitPhase::Kernel, WaitPhase::D2h);
    assert_eq!(phases, [Some(gpu), Some(kernel), Some(gpu), Some(d2h)]);
    assert!(!heard.wait(500).unwrap().detail.is_empty());
}

#[test]
fn an_overlapping_call_of_another_thread_takes_a_name_back() {
    let heard = hear(vec![
        launch(100, 100, 1, 0).by(2),
        d2h(110, 400).by(2),
        launch(405, 405, 1, 0),
        call(Api::MemAlloc, 406, 407, &[]),
        launch(408, 408, 1, 0),
        sync(420, 500, 0),
        d2h(410, 600).by(2),
    ]);
    // Named when it ended; then a copy was told that had begun before.
    let told: Vec<WaitPhase> =
        heard.waits().iter().filter(|wait| wait.exit_ns == 500).map(|wait| wait.phase).collect();
    assert_eq!(told, [WaitPhase::Kernel, WaitPhase::Gpu]);
    assert_eq!(heard.gpu.counters().waits_told_again, 1);
}

#[test]
fn steps_never_span_a_fact() {
    let heard = hear(vec![
        h2d(100, 110, PINNED),
        launch(120, 125, 4, 0),
        d2h(130, 500),
        launch(510, 511, 2, FREE),
        launch(520, 520, 1, OTHER).by(2),
        call(Api::MemAlloc, 521, 522, &[]).by(2),
        call(Api::CtxSynchronize, 530, 600, &[]),
    ]);
    let steps: Vec<(Vec<u64>, u64)> =
        heard.steps().iter().map(|step| (step.ops.clone(), step.fact.exit_ns)).collect();
    assert_eq!(steps.len(), 4);
    assert_eq!((steps[0].0.len(), steps[0].1), (1, 110));
    assert_eq!((steps[1].0.len(), steps[1].1), (2, 500));
    let step: &Step = heard.steps()[1];
    assert_eq!((step.launches, step.d2h_bytes, step.first_enqueue_ns), (4, 64, 120));
    assert_eq!((step.upper_ns, step.method), (380, Method::SyncBounded));
    assert!(step.kinds.contains(OpKind::Kernel) && step.kinds.contains(OpKind::D2h));
    assert_eq!(heard.wait(600).unwrap().steps.len(), 2);
    assert_eq!(heard.steps()[3].tids, [2]);
}

#[test]
fn links_order_steps_and_do_not_merge_them() {
    let heard = hear(vec![
        launch(100, 100, 1, FREE),
        record(110, 111, 0xea, FREE),
        wait_event(112, 113, OTHER, 0xea),
        d2h_async(114, 115, OTHER),
        sync(120, 500, OTHER),
    ]);
    let [first, second] = heard.steps()[..] else { panic!("two steps") };
    assert_eq!(first.after, [0; 0]);
    assert_eq!(second.after, [first.id]);
}

#[test]
fn bounds_are_what_is_proven() {
    // A blocking copy with nothing else outstanding is measured.
    let heard = hear(vec![d2h(100, 500)]);
    let done = heard.op(100).unwrap();
    assert_eq!((done.method, done.lower_ns, done.upper_ns), (Method::Direct, 0, 400));
    // A completed predecessor says nothing about when the next began, an incomplete one does.
    let heard = hear(vec![
        launch(100, 100, 1, FREE),
        record(110, 111, 0xea, FREE),
        launch(120, 120, 1, FREE),
        query(200, 201, 0xea).ret(600),
        query(300, 301, 0xea),
        sync(310, 500, FREE),
    ]);
    assert_eq!(heard.op(100).unwrap().upper_ns, 201);
    assert_eq!(
        (heard.op(120).unwrap().earliest_start_ns, heard.op(120).unwrap().upper_ns),
        (200, 300)
    );
}

fn elapsed(enter: u64, start: u64, end: u64, ms: f32) -> Event {
    let out = u64::from(ms.to_bits()) | 0xffff_ffff_0000_0000;
    call(Api::EventElapsedTime, enter, enter + 1, &[0x10, start, end]).out(out)
}

fn timed(between: Vec<Event>, ms: f32) -> Vec<Event> {
    let mut events = vec![record(100, 101, 0xea, FREE)];
    events.extend(between);
    events.push(record(200, 201, 0xeb, FREE));
    events.push(sync(300, 5_000_000, FREE));
    events.push(elapsed(5_000_100, 0xea, 0xeb, ms));
    events
}

#[test]
fn elapsed_times_narrow_what_lies_between() {
    let heard = hear(timed(vec![launch(110, 110, 1, FREE)], 2.0));
    let refined: Vec<&Refine> = heard.pick(|out| match out {
        Out::Refine(refine) => Some(refine),
        _ => None,
    });
    let [op, step] = refined[..] else { panic!("an operation and its step: {refined:?}") };
    let asked = &heard.op(110).unwrap().op;
    let (id, tid, enqueue_ns) = (asked.id, asked.tid, asked.enqueue_first_ns);
    assert_eq!(op.subject, Subject::Op { id, tid, enqueue_ns });
    assert_eq!(step.subject, Subject::Step(heard.steps()[0].id));
    assert_eq!(op.method, Method::EventElapsed);
    assert!((2_000_000..2_010_000).contains(&op.upper_ns), "{op:?}");
    assert!((1_900_000..2_000_000).contains(&op.lower_ns), "{op:?}");
    // Two operations: each may have taken any part.
    let heard = hear(timed(vec![launch(110, 110, 1, FREE), h2d_async(120, 121, FREE)], 2.0));
    let lower = heard.out.iter().filter_map(|out| match out {
        Out::Refine(refine) => Some(refine.lower_ns),
        _ => None,
    });
    assert_eq!(lower.collect::<Vec<u64>>(), [0, 0, 0]);
    // Another stream is active: the one operation may have waited for its turn.
    let both = vec![launch(105, 105, 1, OTHER), launch(110, 110, 1, FREE)];
    let heard = hear(timed(both, 2.0));
    assert!(heard.out.iter().all(|out| !matches!(out, Out::Refine(r) if r.lower_ns > 0)));
}

#[test]
fn elapsed_times_that_say_nothing() {
    let one = || vec![launch(110, 110, 1, FREE)];
    let mut again = timed(one(), 2.0);
    again.insert(4, record(4_999_999, 5_000_000, 0xea, OTHER));
    let mut absent = timed(one(), 2.0);
    absent.remove(0);
    for (name, events) in [
        ("longer than the bounds allow", timed(one(), 9.0)),
        (
            "no shorter than the bound already known",
            timed(vec![launch(110, 110, 1, FREE), launch(120, 120, 1, FREE)], 4.9999),
        ),
        ("not a number", timed(one(), f32::NAN)),
        ("backwards", timed(one(), -1.0)),
        ("recorded anew on another stream", again),
        ("recorded before attach", absent),
        ("outside", {
            let mut events = timed(vec![], 2.0);
            events.insert(0, launch(90, 90, 1, FREE));
            events
        }),
    ] {
        let heard = hear(events);
        assert!(!heard.out.iter().any(|out| matches!(out, Out::Refine(_))), "{name}");
    }
}
