//! The rules of completion, each with cases that prove and cases that do not.

use super::super::{Ctx, Limits, Method, StreamKey};
use super::bench::*;
use crate::intake::event::{Api, Event};

/// Name, events, and the enqueues that are proven complete by them.
type Case = (&'static str, Vec<Event>, &'static [u64]);

fn check(cases: Vec<Case>) {
    for (name, events, proven) in cases {
        assert_eq!(hear(events).proven(), proven, "{name}");
    }
}

#[test]
fn copies_prove_what_they_must() {
    check(vec![
        ("device to host", vec![launch(100, 100, 1, 0), d2h(110, 500)], &[100, 110]),
        (
            "host to device, pinned",
            vec![launch(100, 100, 1, 0), h2d(110, 500, PINNED)],
            &[100, 110],
        ),
        (
            "host to device, unknown memory",
            vec![launch(100, 100, 1, 0), h2d(110, 500, PAGEABLE)],
            &[],
        ),
        ("host to device, beyond the pinned range", vec![h2d(110, 500, PINNED + 0xffff)], &[]),
        (
            "host to device, freed before",
            vec![call(Api::MemFreeHost, 100, 101, &[PINNED]), h2d(110, 500, PINNED)],
            &[],
        ),
        (
            "host to device, managed memory",
            vec![
                call(Api::MemAllocManaged, 100, 101, &[0, 4096]).out(PAGEABLE),
                h2d(110, 500, PAGEABLE),
            ],
            &[],
        ),
        (
            "host to device, registered memory",
            vec![call(Api::MemHostRegister, 100, 101, &[PAGEABLE, 4096]), h2d(110, 500, PAGEABLE)],
            &[110],
        ),
        ("on the device", vec![call(Api::MemcpyDtoD, 110, 500, &[DEVICE, DEVICE, 64])], &[]),
        ("direction unknown", vec![call(Api::Memcpy, 110, 500, &[DEVICE, PINNED, 64])], &[]),
        ("asynchronous", vec![d2h_async(110, 500, BLOCKING)], &[]),
        ("memory set", vec![call(Api::MemsetD8, 110, 500, &[DEVICE, 0, 64])], &[]),
        ("own stream of the thread only", vec![launch(100, 100, 1, FREE), d2h(110, 500)], &[110]),
        (
            "per-thread default stream",
            vec![launch(100, 100, 1, 2), d2h(110, 500).per_thread()],
            &[100, 110],
        ),
        (
            "per-thread default stream of another thread",
            vec![launch(100, 100, 1, 2).by(2), d2h(110, 500).per_thread()],
            &[110],
        ),
    ]);
}

#[test]
fn synchronise_proves_what_had_returned() {
    check(vec![
        ("stream", vec![launch(100, 105, 2, FREE), sync(110, 500, FREE)], &[100]),
        ("another stream", vec![launch(100, 105, 2, FREE), sync(110, 500, OTHER)], &[]),
        ("failed", vec![launch(100, 105, 2, FREE), sync(110, 500, FREE).ret(700)], &[]),
        (
            "another thread's call that returned before",
            vec![h2d_async(100, 105, FREE).by(2), sync(110, 500, FREE)],
            &[100],
        ),
        (
            "another thread's call that returned after",
            vec![h2d_async(100, 115, FREE).by(2), sync(110, 500, FREE)],
            &[],
        ),
        (
            "another thread's launches, of which the return is not known",
            vec![launch(100, 105, 2, FREE).by(2), sync(110, 500, FREE)],
            &[],
        ),
        (
            "another thread's launches, which a call of that thread followed",
            vec![
                launch(100, 105, 2, FREE).by(2),
                call(Api::MemAlloc, 106, 107, &[]).by(2),
                sync(110, 500, FREE),
            ],
            &[100],
        ),
        (
            "context",
            vec![
                launch(100, 105, 2, FREE),
                h2d_async(106, 107, BLOCKING),
                launch(108, 108, 1, 0),
                call(Api::CtxSynchronize, 110, 500, &[]),
            ],
            &[100, 106, 108],
        ),
        (
            "query that succeeds",
            vec![launch(100, 100, 1, FREE), call(Api::StreamQuery, 110, 111, &[FREE])],
            &[100],
        ),
        (
            "query that does not",
            vec![launch(100, 100, 1, FREE), call(Api::StreamQuery, 110, 111, &[FREE]).ret(600)],
            &[],
        ),
        (
            "another context",
            vec![
                launch(100, 100, 1, 0),
                call(Api::CtxCreate, 101, 102, &[]).by(2).out(0xc1),
                call(Api::CtxSynchronize, 110, 500, &[]).by(2),
            ],
            &[],
        ),
    ]);
}

#[test]
fn events_prove_positions() {
    let (a, b) = (0xea, 0xeb);
    check(vec![
        (
            "before the record",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                launch(120, 120, 1, FREE),
                sync_event(130, 500, a),
            ],
            &[100],
        ),
        ("never seen recorded", vec![launch(100, 100, 1, FREE), sync_event(130, 500, a)], &[]),
        (
            "a new generation",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                record(112, 113, a, OTHER),
                sync_event(130, 500, a),
            ],
            &[],
        ),
        (
            "recorded again meanwhile, same stream: the earlier position",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                h2d_async(112, 113, FREE).by(2),
                record(140, 141, a, FREE).by(2),
                sync_event(130, 500, a),
            ],
            &[100],
        ),
        (
            "recorded again meanwhile, other stream: nothing",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                record(140, 141, a, OTHER).by(2),
                sync_event(130, 500, a),
            ],
            &[],
        ),
        (
            "failed record",
            vec![
                record(90, 91, a, OTHER),
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE).ret(1),
                sync_event(130, 500, a),
            ],
            &[],
        ),
        (
            "destroyed and made anew",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                call(Api::EventDestroy, 112, 113, &[a]),
                call(Api::EventCreate, 114, 115, &[0x10]).out(a),
                sync_event(130, 500, a),
            ],
            &[],
        ),
        (
            "carried to another stream",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                wait_event(112, 113, OTHER, a),
                sync(130, 500, OTHER),
            ],
            &[100],
        ),
        (
            "carried further",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                wait_event(112, 113, OTHER, a),
                record(114, 115, b, OTHER),
                launch(116, 116, 1, FREE),
                sync_event(130, 500, b),
            ],
            &[100],
        ),
        (
            "not carried by a wait behind the record",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                record(112, 113, b, OTHER),
                wait_event(114, 115, OTHER, a),
                sync_event(130, 500, b),
            ],
            &[],
        ),
        (
            "the wait keeps the generation that it saw",
            vec![
                launch(100, 100, 1, FREE),
                record(110, 111, a, FREE),
                wait_event(112, 113, OTHER, a),
                record(114, 115, a, BLOCKING),
                sync(130, 500, OTHER),
            ],
            &[100],
        ),
        (
            "query",
            vec![launch(100, 100, 1, FREE), record(110, 111, a, FREE), query(120, 121, a)],
            &[100],
        ),
    ]);
}

#[test]
fn the_legacy_default_stream_keeps_order_with_blocking_streams() {
    check(vec![
        ("before it", vec![launch(100, 100, 1, BLOCKING), d2h(110, 500)], &[100, 110]),
        ("non-blocking", vec![launch(100, 100, 1, FREE), d2h(110, 500)], &[110]),
        ("made before attach", vec![launch(100, 100, 1, 0x5bad), d2h(110, 500)], &[110]),
        (
            "behind it",
            vec![launch(100, 100, 1, 0), h2d_async(105, 106, BLOCKING), sync(110, 500, BLOCKING)],
            &[100, 105],
        ),
        (
            "a synchronise of it alone is not promised to cover others",
            vec![launch(100, 100, 1, BLOCKING), sync(110, 500, 0)],
            &[],
        ),
        (
            "what is enqueued behind the last legacy operation stays open",
            vec![h2d_async(100, 101, 1), launch(105, 105, 1, BLOCKING), sync(110, 500, 1)],
            &[100],
        ),
    ]);
}

#[test]
fn streams_are_told_apart() {
    let heard = hear(vec![
        launch(100, 100, 1, 0),
        launch(101, 101, 1, 0).per_thread(),
        launch(102, 102, 1, 2),
        launch(103, 103, 1, 1),
        launch(104, 104, 1, FREE).per_thread(),
        call(Api::CtxSynchronize, 110, 500, &[]),
    ]);
    let keys: Vec<StreamKey> =
        [100, 101, 102, 103, 104].iter().map(|at| heard.op(*at).unwrap().stream).collect();
    let (legacy, own) = (StreamKey::Legacy(Ctx::Main), StreamKey::PerThread(Ctx::Main, 1));
    assert_eq!(keys, [legacy, own, own, legacy, StreamKey::Handle(FREE)]);
    assert!(heard.ops().iter().all(|done| done.op.context_known));
}

#[test]
fn a_handle_given_out_again_is_another_stream() {
    let heard = hear(vec![
        launch(100, 100, 1, FREE),
        call(Api::StreamDestroy, 110, 111, &[FREE]),
        call(Api::StreamCreate, 112, 113, &[0x10, 1]).out(FREE),
        launch(120, 120, 1, FREE),
        sync(130, 500, FREE),
    ]);
    assert_eq!(heard.proven(), [120]);
    let mut heard = heard;
    heard.more(vec![call(Api::CtxSynchronize, 510, 600, &[])]);
    assert_eq!(heard.proven(), [100, 120]);
}

#[test]
fn a_destroy_that_returns_late_spares_the_new_stream() {
    let heard = hear(vec![
        call(Api::StreamCreate, 112, 113, &[0x10, 1]).out(FREE).by(2),
        call(Api::StreamDestroy, 110, 114, &[FREE]),
        launch(120, 120, 1, FREE),
        sync(130, 500, FREE),
    ]);
    assert_eq!(heard.op(120).unwrap().stream, StreamKey::Handle(FREE));
}

#[test]
fn contexts_after_a_late_attach() {
    // One context is assumed, and the first handle seen names it.
    let events = vec![
        launch(100, 100, 1, 0),
        call(Api::CtxSetCurrent, 105, 106, &[CTX]),
        call(Api::CtxSynchronize, 110, 500, &[]),
    ];
    let heard = attached(Limits::default(), events);
    assert_eq!(heard.proven(), [100]);
    assert!(!heard.op(100).unwrap().op.context_known);
    // A second one: what was assumed cannot be placed any more, and is given up.
    let events = vec![
        launch(100, 100, 1, 0),
        call(Api::CtxSetCurrent, 105, 106, &[CTX]),
        call(Api::CtxSetCurrent, 107, 108, &[0xc1]).by(2),
        call(Api::CtxSynchronize, 110, 500, &[]),
        launch(520, 520, 1, 0).by(3),
        call(Api::CtxSynchronize, 530, 600, &[]),
        call(Api::CtxSynchronize, 610, 700, &[]).by(3),
    ];
    let heard = attached(Limits::default(), events);
    assert_eq!(heard.op(100).unwrap().method, Method::Estimated);
    assert_eq!(heard.gpu.counters().context_ambiguous, 1);
    // A thread without a known context stands for itself.
    assert_eq!(heard.op(520).unwrap().latest_end_ns, 700);
}

#[test]
fn the_stack_of_contexts() {
    let heard = hear(vec![
        call(Api::CtxPushCurrent, 100, 101, &[0xc1]),
        launch(102, 102, 1, 0),
        call(Api::CtxPopCurrent, 103, 104, &[0x10]).out(0xc1),
        launch(105, 105, 1, 0),
        call(Api::CtxSynchronize, 110, 500, &[0xc1]),
        call(Api::CtxSynchronize, 510, 600, &[0x33]),
        call(Api::CtxDestroy, 610, 611, &[0xc1]),
    ]);
    // The argument names another context, which the second version of the call would mean.
    assert_eq!(heard.op(105).unwrap().latest_end_ns, 600);
    assert_eq!(heard.op(102).unwrap().method, Method::Estimated);
    assert_eq!(heard.op(102).unwrap().stream, StreamKey::Legacy(Ctx::Handle(0xc1)));
}
