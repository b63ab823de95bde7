//! Order within and between streams, and which calls wait for what.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Ready, calls, isolated, now, ops, ops_of};

const MS: u64 = 1_000_000;

#[test]
fn a_stream_is_first_in_first_out() {
    let records = isolated("a_stream_is_first_in_first_out", &[], || {
        let r = Ready::new();
        let s = r.stream(1);
        let (memory, host) = (r.device_memory(1 << 20), r.pinned(1 << 20));
        let before = now();
        for _ in 0..20 {
            assert_eq!(r.cuMemcpyHtoDAsync_v2(memory, host.as_ptr() as u64, 1 << 20, s), 0);
            assert_eq!(r.launch(s, MS), 0);
            assert_eq!(r.cuMemcpyDtoHAsync_v2(host.as_ptr() as u64, memory, 4, s), 0);
        }
        assert_eq!(r.cuStreamSynchronize(s), 0);
        assert!(now() - before >= 20 * MS);
    });
    let Some(records) = records else { return };
    let ops = ops(&records);
    assert_eq!(ops.len(), 60);
    for pair in ops.windows(2) {
        assert!(pair[1].start >= pair[0].end, "{pair:?}");
    }
    for (i, op) in ops.iter().enumerate() {
        assert_eq!(op.kind, ["h2d", "kernel", "d2h"][i % 3]);
        assert!(op.enqueue <= op.start && op.start < op.end, "{op:?}");
    }
    let sync = &calls(&records, "cuStreamSynchronize")[0];
    assert!(sync.exit >= ops.last().unwrap().end);
    assert!(ops.iter().filter(|o| o.kind == "kernel").all(|o| o.end - o.start == MS));
}

#[test]
fn asynchronous_calls_do_not_wait_for_a_blocked_stream() {
    isolated("asynchronous_calls_do_not_wait_for_a_blocked_stream", &[], || {
        let r = Ready::new();
        let s = r.stream(1);
        let (memory, host) = (r.device_memory(4 << 20), r.pinned(4 << 20));
        let gate = r.gate(s);
        // None of these could return if it waited: the gate is opened after them.
        assert_eq!(r.cuMemcpyHtoDAsync_v2(memory, host.as_ptr() as u64, 4 << 20, s), 0);
        assert_eq!(r.launch(s, 0), 0);
        assert_eq!(r.cuMemsetD8Async(memory, 7, 4 << 20, s), 0);
        assert_eq!(r.cuMemcpyDtoHAsync_v2(host.as_ptr() as u64, memory, 4 << 20, s), 0);
        let small = [3u8; 1000];
        assert_eq!(r.cuMemcpyHtoDAsync_v2(memory, small.as_ptr() as u64, 1000, s), 0);
        assert_eq!(r.cuStreamQuery(s), 600);
        drop(gate);
        assert_eq!(r.cuStreamSynchronize(s), 0);
        assert_eq!(r.cuStreamQuery(s), 0);
        assert!(host.iter().all(|&b| b == 7));
        let mut back = [0u8; 1000];
        assert_eq!(r.cuMemcpyDtoH_v2(back.as_mut_ptr() as u64, memory, 1000), 0);
        assert_eq!(back, small);
    });
}

#[test]
fn small_pageable_copies_are_staged_at_the_call() {
    isolated("small_pageable_copies_are_staged_at_the_call", &[], || {
        let r = Ready::new();
        let s = r.stream(1);
        let memory = r.device_memory(64 << 10);
        let mut source = vec![1u8; 64 << 10];
        let gate = r.gate(s);
        assert_eq!(r.cuMemcpyHtoDAsync_v2(memory, source.as_ptr() as u64, source.len(), s), 0);
        // The copy has not begun, but the source may be used again.
        source.fill(2);
        drop(gate);
        let mut back = vec![0u8; 64 << 10];
        assert_eq!(r.cuMemcpyDtoHAsync_v2(back.as_mut_ptr() as u64, memory, back.len(), s), 0);
        // To pageable memory: complete when it returns, without any synchronisation.
        assert!(back.iter().all(|&b| b == 1));
    });
}

#[test]
fn blocking_copies_block_as_documented() {
    const BIG: usize = 8 << 20;
    let records = isolated("blocking_copies_block_as_documented", &[], || {
        let r = Ready::new();
        let (memory, other) = (r.device_memory(BIG), r.device_memory(BIG));
        let pinned = r.pinned(BIG);
        let mut pageable = vec![5u8; BIG];
        pinned.fill(4);
        assert_eq!(r.cuMemcpyHtoD_v2(memory, pinned.as_ptr() as u64, BIG), 0);
        assert_eq!(r.cuMemcpyHtoD_v2(other, pageable.as_ptr() as u64, BIG), 0);
        assert_eq!(r.cuMemcpyDtoH_v2(pageable.as_mut_ptr() as u64, memory, BIG), 0);
        assert!(pageable.iter().all(|&b| b == 4));
        assert_eq!(r.cuMemcpyDtoH_v2(pinned.as_ptr() as u64, other, BIG), 0);
        assert!(pinned.iter().all(|&b| b == 5));
        // Within the device: returns although its stream is blocked.
        let gate = r.gate(0);
        assert_eq!(r.cuMemcpyDtoD_v2(memory, other, BIG), 0);
        drop(gate);
        // Pageable, whatever the size: waits for the stream first.
        assert_eq!(r.launch(0, 10 * MS), 0);
        assert_eq!(r.cuMemcpyHtoD_v2(memory, pageable.as_ptr() as u64, 4), 0);
        let s = r.stream(1);
        assert_eq!(r.launch(s, 10 * MS), 0);
        assert_eq!(r.cuMemcpyDtoHAsync_v2(pageable.as_mut_ptr() as u64, memory, BIG, s), 0);
        assert_eq!(r.launch(s, 10 * MS), 0);
        assert_eq!(r.cuMemcpyHtoDAsync_v2(memory, pageable.as_ptr() as u64, BIG, s), 0);
    });
    let Some(records) = records else { return };
    let h2d = ops_of(&records, "h2d");
    let d2h = ops_of(&records, "d2h");
    let call = |api| calls(&records, api);
    assert!(call("cuMemcpyHtoD_v2")[0].exit >= h2d[0].end, "pinned: complete");
    assert!(h2d[0].pinned && !h2d[1].pinned);
    let staged = &call("cuMemcpyHtoD_v2")[1];
    assert!(staged.exit + (1 << 20) / 4 >= h2d[1].end, "pageable: all but the staging buffer");
    let kernels = ops_of(&records, "kernel");
    assert!(call("cuMemcpyHtoD_v2")[2].exit >= kernels[0].end, "pageable: waits for the stream");
    for (copy, op) in call("cuMemcpyDtoH_v2").iter().zip(&d2h) {
        assert!(copy.exit >= op.end, "to the host: complete");
    }
    // The asynchronous forms on pageable memory.
    assert!(call("cuMemcpyDtoHAsync_v2")[0].exit >= d2h[2].end);
    assert!(
        call("cuMemcpyHtoDAsync_v2")[0].exit >= kernels[2].end,
        "large pageable: waits for the stream"
    );
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let records = isolated("the_legacy_stream_waits_for_blocking_streams_only", &[], || {
        let r = Ready::new();
        let (blocking, free) = (r.stream(0), r.stream(1));
        assert_eq!(r.launch(blocking, 5 * MS), 0);
        assert_eq!(r.launch(free, 5 * MS), 0);
        let memory = r.device_memory(64);
        // Copies, so that the compute engine does not order them.
        assert_eq!(r.cuMemcpyDtoDAsync_v2(memory, memory + 32, 32, 0), 0);
        assert_eq!(r.cuMemcpyDtoDAsync_v2(memory, memory + 32, 32, blocking), 0);
        assert_eq!(r.cuStreamSynchronize(0), 0);
        // The other way round: the per-thread default stream is a blocking one.
        let ns = 5 * MS;
        let params = [std::ptr::from_ref(&ns)];
        let none = std::ptr::null();
        let rc = r.cuLaunchKernel_ptsz(r.busy, 1, 1, 1, 1, 1, 1, 0, 0, params.as_ptr(), none);
        assert_eq!(rc, 0);
        assert_eq!(r.cuMemcpyDtoDAsync_v2(memory, memory + 32, 32, free), 0);
        assert_eq!(r.cuMemcpyDtoDAsync_v2(memory, memory + 32, 32, 1), 0);
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
    let Some(records) = records else { return };
    let kernels = ops_of(&records, "kernel");
    let copies = ops_of(&records, "d2d");
    assert_eq!(copies[0].stream, 1);
    assert!(copies[0].start >= kernels[0].end, "legacy after blocking");
    assert!(copies[0].start < kernels[1].end, "legacy not after non-blocking");
    assert!(copies[1].start >= copies[0].end, "blocking after legacy");
    assert_eq!(kernels[2].stream, 2);
    assert!(copies[2].start < kernels[2].end, "non-blocking after nothing");
    assert!(copies[3].start >= kernels[2].end, "legacy after per-thread");
}

#[test]
fn a_full_launch_queue_blocks_the_call() {
    isolated("a_full_launch_queue_blocks_the_call", &[("QUEUE_DEPTH", "16")], || {
        let r = Ready::new();
        let s = r.stream(1);
        let gate = r.gate(s);
        for _ in 0..15 {
            // There is room, so these return although nothing can run.
            assert_eq!(r.launch(s, 0), 0);
        }
        drop(gate);
        assert_eq!(r.cuStreamSynchronize(s), 0);
        let before = now();
        for _ in 0..32 {
            assert_eq!(r.launch(s, 10 * MS), 0);
        }
        // 32 of 10 ms, at most 16 of them not done: at least 16 are.
        assert!(now() - before >= 160 * MS);
        assert_eq!(r.cuStreamSynchronize(s), 0);
        assert!(now() - before >= 320 * MS);
    });
}

#[test]
fn kernels_of_several_streams_take_turns() {
    let records = isolated("kernels_of_several_streams_take_turns", &[], || {
        let r = Ready::new();
        let streams = [r.stream(1), r.stream(1), r.stream(1)];
        for _ in 0..10 {
            for s in streams {
                assert_eq!(r.launch(s, MS), 0);
            }
        }
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
    let Some(records) = records else { return };
    let mut kernels = ops_of(&records, "kernel");
    assert_eq!(kernels.len(), 30);
    kernels.sort_by_key(|k| k.start);
    assert!(kernels.windows(2).all(|p| p[1].start >= p[0].end));
}

#[test]
fn destroying_a_stream_lets_its_work_end() {
    let records = isolated("destroying_a_stream_lets_its_work_end", &[], || {
        let r = Ready::new();
        let s = r.stream(1);
        assert_eq!(r.launch(s, 20 * MS), 0);
        assert_eq!(r.cuStreamDestroy_v2(s), 0);
        assert_eq!(r.cuStreamSynchronize(s), 400);
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
    let Some(records) = records else { return };
    let sync = &calls(&records, "cuCtxSynchronize")[0];
    assert!(sync.exit >= ops_of(&records, "kernel")[0].end);
}
