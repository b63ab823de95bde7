//! Puts the kernel half where `src/probe` can include it.

use std::{env, fs, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    println!("cargo::rerun-if-env-changed=SPANPROBE_EBPF_OBJECT");
    if env::var_os("CARGO_FEATURE_LIVE").is_none() {
        return ExitCode::SUCCESS;
    }
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let object = env::var_os("SPANPROBE_EBPF_OBJECT")
        .map_or_else(|| manifest.join("../target/ebpf/spanprobe-ebpf"), PathBuf::from);
    println!("cargo::rerun-if-changed={}", object.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("spanprobe-ebpf");
    match fs::copy(&object, &out) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            println!(
                "cargo::error=the kernel half is not built ({}: {error}): run `cargo xtask ebpf` \
                 first, or leave it out with `--no-default-features`",
                object.display()
            );
            ExitCode::FAILURE
        }
    }
}
