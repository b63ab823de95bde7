//! `tests/gpu-check` itself, with the simulated driver's oracle in the place of CUPTI.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::process::Command;

use common::{Needs, env, skipped};
use e2e::peers;
use e2e::scratch::Scratch;
use serde_json::Value;

#[test]
fn it_compares_counts_and_bounds() {
    let Some(env) = env(Needs::Driver) else { return };
    if let Some(reason) = peers::missing() {
        return skipped(&reason);
    }
    let scratch = Scratch::new("gpu-check").unwrap();
    let report = scratch.file("report.json");
    let mut check = Command::new("python3");
    check.arg("-B").arg(env.root.join("tests/gpu-check/check.py"));
    check.arg("--spanprobe").arg(&env.spanprobe).arg("--out").arg(&report);
    check.args(["--model", "model_simulated", "--requests", "10"]);
    check.args(["--alternations", "1", "--seconds", "0.2"]);
    env.with_driver(&mut check);
    let output = check.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["failures"], Value::Array(Vec::new()), "{report}");
    for mode in ["eager", "graph"] {
        assert_eq!(report["combined"]["bounds"][mode]["inside"], 10, "{report}");
    }
    assert!(report["launch_ns"]["added"].is_number(), "{report}");
}

#[test]
fn without_a_gpu_it_says_so() {
    let Some(env) = env(Needs::Nothing) else { return };
    if let Some(reason) = peers::missing() {
        return skipped(&reason);
    }
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        return skipped("there is a GPU: `cargo xtask gpu-check` uses it");
    }
    let mut check = Command::new("python3");
    check.arg("-B").arg(env.root.join("tests/gpu-check/check.py"));
    let output = check.arg("--spanprobe").arg(&env.spanprobe).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("SKIPPED: "), "{output:?}");
}
