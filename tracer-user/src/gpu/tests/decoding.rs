//! Runs of launches, structures and stack words as calls carry them.

use super::super::{Method, OpKind};
use super::bench::*;
use crate::intake::event::{Api, Cuda, What};

#[test]
fn runs_of_launches_grow() {
    let heard = hear(vec![
        launch(100, 100, 1, FREE),
        launch(100, 140, 5, FREE).of_run(100),
        sync(150, 500, FREE),
    ]);
    let [done] = heard.ops()[..] else { panic!("one operation") };
    assert_eq!((done.op.count, done.op.enqueue_last_ns, done.op.exit_ns), (5, 140, Some(150)));
    // Told of only after a fact had covered what was known: the rest is work of its own.
    let heard = hear(vec![
        launch(100, 100, 1, FREE),
        sync(150, 500, FREE),
        launch(100, 510, 4, FREE).of_run(100),
        sync(520, 600, FREE),
    ]);
    let [first, rest] = heard.ops()[..] else { panic!("two operations") };
    assert_eq!((first.op.count, first.latest_end_ns), (1, 500));
    assert_eq!((rest.op.count, rest.earliest_start_ns, rest.latest_end_ns), (3, 100, 600));
    assert_eq!(heard.gpu.counters().late_launch_records, 1);
    // Not known which stream: only the context's end proves it.
    let mut lost = launch(100, 100, 1, FREE);
    if let What::Cuda(Cuda::Launches(run)) = &mut lost.what {
        run.stream = None;
    }
    let heard = hear(vec![lost, sync(150, 500, FREE), call(Api::CtxSynchronize, 510, 600, &[])]);
    assert_eq!(heard.op(100).unwrap().latest_end_ns, 600);
    assert!(heard.op(100).unwrap().op.lost);
}

#[test]
fn copies_of_areas() {
    let mut copy = [0_u8; 128];
    let mut put =
        |offset: usize, value: u64| copy[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    put(16, 1);
    put(24, PINNED);
    put(48, 256);
    put(72, 2);
    put(112, 64);
    put(120, 4);
    let heard = hear(vec![call(Api::Memcpy2D, 100, 200, &[0x10]).payload(&copy)]);
    let done = heard.op(100).unwrap();
    assert_eq!((done.op.kind, done.op.bytes, done.op.pinned), (OpKind::H2d, 256, Some(true)));
    assert_eq!(done.method, Method::Direct);
    // Cut short: the direction is not known, and nothing is proven.
    let cut = call(Api::Memcpy2D, 100, 200, &[0x10]).payload(&copy[..16]);
    let heard = hear(vec![cut, sync(210, 300, 0)]);
    let done = heard.op(100).unwrap();
    assert_eq!((done.op.kind, done.latest_end_ns), (OpKind::Unified, 300));
    let mut copy = [0_u8; 200];
    let mut put =
        |offset: usize, value: u64| copy[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    put(32, 2);
    put(120, 1);
    put(128, PAGEABLE);
    put(176, 8);
    put(184, 4);
    put(192, 2);
    let heard = hear(vec![call(Api::Memcpy3D, 100, 200, &[0x10]).payload(&copy)]);
    let done = heard.op(100).unwrap();
    assert_eq!((done.op.kind, done.op.bytes, done.op.pinned), (OpKind::D2h, 64, None));
}

#[test]
fn the_stream_of_a_batch() {
    for words in [[1, 0x7ffc_0000, FREE], [1, FREE, 0xbad]] {
        let payload: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let batch = call(Api::MemcpyBatchAsync, 100, 101, &[0, 0, 0, 5, 0, 0]).payload(&payload);
        let heard = hear(vec![batch, sync(110, 500, FREE)]);
        let done = heard.op(100).unwrap();
        assert_eq!((done.op.kind, done.op.count), (OpKind::Unified, 5));
    }
}
