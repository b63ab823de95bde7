//! Builds the kernel half, with its own compiler in its own environment.
//!
//! The agent embeds the object that this leaves at `target/ebpf/spanprobe-ebpf`. It is not built
//! from the agent's build script: that would nest one cargo in another and hand the agent's
//! variables on to a compiler that they were not meant for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::cmd;
use crate::context::Context;
use crate::setup::{self, KernelToolchain, Purpose};

const TARGET: &str = "bpfel-unknown-none";

pub(crate) fn main(context: &Context) -> Result<ExitCode> {
    let setup = setup::ensure(context, &[Purpose::Build])?;
    build(context, setup.kernel_toolchain()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the kernel half and returns where its object is.
pub(crate) fn build(context: &Context, toolchain: &KernelToolchain) -> Result<PathBuf> {
    let folder = context.target().join("ebpf");
    let mut cargo = command(context, toolchain);
    cargo
        .args(["build", "--ignore-rust-version", "--release"])
        .args(["--package", "tracer-ebpf", "--bin", "spanprobe-ebpf", "--target", TARGET])
        .arg("--target-dir")
        .arg(&folder);
    if matches!(toolchain, KernelToolchain::Nightly { .. }) {
        cargo.args(["-Z", "build-std=core"]);
    }
    cmd::run(&mut cargo)?;
    let object = folder.join("spanprobe-ebpf");
    copy_if_changed(&folder.join(TARGET).join("release/spanprobe-ebpf"), &object)?;
    Ok(object)
}

/// Cargo in the kernel half's environment.
fn command(context: &Context, toolchain: &KernelToolchain) -> Command {
    let mut cargo = match toolchain {
        KernelToolchain::Distribution { rustc, .. } => {
            let mut cargo = context.cargo();
            // The distribution ships `core` compiled for BPF, so all that is unstable about this
            // build is what aya-ebpf itself uses.
            cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
            cargo
        }
        KernelToolchain::Nightly { name, .. } => {
            let mut rustup = cmd::clean("rustup");
            rustup.args(["run", name, "cargo"]).current_dir(&context.root);
            rustup
        }
    };
    cmd::without_rustflags(&mut cargo)
        // Empty means none: `.cargo/rustc-wrapper` is there for the agent's aya alone.
        .env("RUSTC_WRAPPER", "")
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", toolchain.linker())
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_RUSTFLAGS", rustflags())
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "2")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    cargo
}

/// Debug information becomes the BTF that the verifier's messages quote; the architecture is that
/// of the traced machine, whose registers aya-ebpf reads.
fn rustflags() -> String {
    format!("-Cdebuginfo=2 -Clink-arg=--btf --cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH)
}

/// Copies unless the bytes are the same, so that nothing that depends on the file is rebuilt.
pub(crate) fn copy_if_changed(from: &Path, to: &Path) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    // Through a rename: a process may have the old file mapped.
    let fresh = to.with_extension("new");
    fs::write(&fresh, new).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::rename(&fresh, to).with_context(|| format!("cannot replace {}", to.display()))
}
