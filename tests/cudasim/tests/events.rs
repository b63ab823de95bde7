//! Events: generations, waits across streams, timing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Ready, calls, isolated, ops_of};

const MS: u64 = 1_000_000;

#[test]
fn a_wait_orders_streams() {
    let records = isolated("a_wait_orders_streams", &[], || {
        let r = Ready::new();
        let (a, b) = (r.stream(1), r.stream(1));
        let (event, memory) = (r.event(), r.device_memory(64));
        assert_eq!(r.launch(a, 5 * MS), 0);
        assert_eq!(r.cuEventRecord(event, a), 0);
        assert_eq!(r.cuStreamWaitEvent(b, event, 0), 0);
        assert_eq!(r.cuMemcpyDtoDAsync_v2(memory, memory + 32, 32, b), 0);
        assert_eq!(r.cuStreamSynchronize(b), 0);
    });
    let Some(records) = records else { return };
    let kernel = &ops_of(&records, "kernel")[0];
    let wait = &ops_of(&records, "wait")[0];
    assert!(ops_of(&records, "record")[0].end >= kernel.end);
    assert!(wait.end >= kernel.end);
    assert!(ops_of(&records, "d2d")[0].start >= kernel.end);
    assert!(calls(&records, "cuStreamSynchronize")[0].exit >= kernel.end);
}

#[test]
fn a_wait_refers_to_the_record_it_found() {
    isolated("a_wait_refers_to_the_record_it_found", &[], || {
        let r = Ready::new();
        let (a, b) = (r.stream(1), r.stream(1));
        let event = r.event();
        // Never recorded: complete, and nothing to wait for.
        assert_eq!(r.cuEventQuery(event), 0);
        assert_eq!(r.cuStreamWaitEvent(b, event, 0), 0);
        assert_eq!(r.cuEventRecord(event, a), 0);
        assert_eq!(r.cuStreamWaitEvent(b, event, 0), 0);
        let gate = r.gate(a);
        assert_eq!(r.cuEventRecord(event, a), 0);
        // The new record is not complete; what waited for the old one does not care.
        assert_eq!(r.cuEventQuery(event), 600);
        assert_eq!(r.launch(b, 0), 0);
        assert_eq!(r.cuStreamSynchronize(b), 0);
        assert_eq!(r.cuEventQuery(event), 600);
        drop(gate);
        assert_eq!(r.cuEventSynchronize(event), 0);
        assert_eq!(r.cuEventQuery(event), 0);
    });
}

#[test]
fn dependencies_on_a_host_function_cross_streams() {
    let records = isolated("dependencies_on_a_host_function_cross_streams", &[], || {
        let r = Ready::new();
        let (a, b) = (r.stream(1), r.stream(0));
        let event = r.event();
        let memory = r.device_memory(1 << 20);
        let host = r.pinned(1 << 20);
        let gate = r.gate(a);
        assert_eq!(r.launch(a, MS), 0);
        assert_eq!(r.cuMemsetD8Async(memory, 9, 1 << 20, a), 0);
        assert_eq!(r.cuEventRecord(event, a), 0);
        assert_eq!(r.cuStreamWaitEvent(b, event, 0), 0);
        assert_eq!(r.cuMemcpyDtoHAsync_v2(host.as_ptr() as u64, memory, 1 << 20, b), 0);
        // The legacy stream waits for b, b for a, a for the gate.
        assert_eq!(r.launch(0, 0), 0);
        assert_eq!(r.cuStreamQuery(0), 600);
        drop(gate);
        assert_eq!(r.cuStreamSynchronize(0), 0);
        assert!(host.iter().all(|&x| x == 9));
    });
    let Some(records) = records else { return };
    let host = &ops_of(&records, "host")[0];
    let kernels = ops_of(&records, "kernel");
    let copy = &ops_of(&records, "d2h")[0];
    assert!(kernels[0].start >= host.end);
    assert!(copy.start >= kernels[0].end);
    assert!(kernels[1].start >= copy.end);
}

#[test]
fn elapsed_time_is_that_of_the_device() {
    isolated("elapsed_time_is_that_of_the_device", &[], || {
        let r = Ready::new();
        let s = r.stream(1);
        let (start, end) = (r.event(), r.event());
        let mut ms = 0.0f32;
        assert_eq!(r.cuEventElapsedTime(&mut ms, start, end), 400, "never recorded");
        let gate = r.gate(s);
        assert_eq!(r.cuEventRecord(start, s), 0);
        assert_eq!(r.launch(s, 7 * MS), 0);
        assert_eq!(r.cuEventRecord(end, s), 0);
        assert_eq!(r.cuEventElapsedTime(&mut ms, start, end), 600, "not complete");
        drop(gate);
        assert_eq!(r.cuEventSynchronize(end), 0);
        assert_eq!(r.cuEventElapsedTime(&mut ms, start, end), 0);
        assert!((ms - 7.0).abs() < 0.001, "{ms}");
        let mut untimed = 0;
        assert_eq!(r.cuEventCreate(&mut untimed, 2), 0);
        assert_eq!(r.cuEventRecord(untimed, s), 0);
        assert_eq!(r.cuEventSynchronize(untimed), 0);
        assert_eq!(r.cuEventElapsedTime(&mut ms, start, untimed), 400);
        assert_eq!(r.cuEventDestroy_v2(end), 0);
        assert_eq!(r.cuEventQuery(end), 400);
    });
}
