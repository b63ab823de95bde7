//! What the oracle promises beyond the numbers that the other tests check.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Ready, calls, isolated, ops_of};

#[test]
fn records_every_call_under_the_name_called() {
    let records = isolated("records_every_call_under_the_name_called", &[], || {
        let r = Ready::new();
        // More than one chunk, from threads that are gone at the end.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        assert_eq!(r.cuStreamQuery(0), 201);
                    }
                    assert_eq!(r.cuCtxSetCurrent(r.ctx), 0);
                    assert_eq!(r.cuStreamSynchronize_ptsz(0), 0);
                });
            }
        });
        assert_eq!(r.launch(0, 0), 0);
    });
    let Some(records) = records else { return };
    assert_eq!(records.first().unwrap()["t"], "start");
    assert_eq!(records.iter().filter(|v| v["t"] == "exit").count(), 1);
    let queries = calls(&records, "cuStreamQuery");
    assert_eq!(queries.len(), 20_000);
    assert!(queries.iter().all(|c| c.ret == 201 && c.enter <= c.exit));
    assert_eq!(calls(&records, "cuStreamSynchronize_ptsz").len(), 4);
    assert_eq!(calls(&records, "cuInit").len(), 1);
    assert_eq!(ops_of(&records, "kernel").len(), 1);
}

#[test]
fn leaves_calls_out_if_told() {
    let records = isolated("leaves_calls_out_if_told", &[("ORACLE_CALLS", "0")], || {
        let r = Ready::new();
        assert_eq!(r.launch(0, 0), 0);
    });
    let Some(records) = records else { return };
    assert!(records.iter().all(|v| v["t"] != "call"));
    assert_eq!(ops_of(&records, "kernel").len(), 1);
}

#[test]
fn spinning_waits_for_the_same_instants() {
    let records = isolated("spinning_waits_for_the_same_instants", &[("SPIN", "1")], || {
        let r = Ready::new();
        let gate = r.gate(0);
        assert_eq!(r.launch(0, 1_000_000), 0);
        drop(gate);
        assert_eq!(r.cuStreamSynchronize(0), 0);
    });
    let Some(records) = records else { return };
    let kernel = &ops_of(&records, "kernel")[0];
    assert!(calls(&records, "cuStreamSynchronize")[0].exit >= kernel.end);
    assert!(kernel.start >= ops_of(&records, "host")[0].end);
}

#[test]
fn costs_of_loading_are_paid_once() {
    let env = [("LAZY_LOAD_US", "20000"), ("MODULE_LOAD_US", "10000"), ("CONTEXT_US", "5000")];
    let records = isolated("costs_of_loading_are_paid_once", &env, || {
        let r = Ready::new();
        for _ in 0..3 {
            assert_eq!(r.launch(0, 0), 0);
        }
    });
    let Some(records) = records else { return };
    let took = |api| -> Vec<u64> {
        calls(&records, api).iter().map(|c| (c.exit - c.enter) / 1_000_000).collect()
    };
    assert!(took("cuDevicePrimaryCtxRetain")[0] >= 5);
    assert!(took("cuModuleLoadData")[0] >= 10);
    let launches = took("cuLaunchKernel");
    assert!(launches[0] >= 20);
    // Not a promise about the machine: one of two is quick even if it stalls once.
    assert!(launches[1..].iter().min().unwrap() < &20);
}
