//! Builds everything: the kernel half, the agent that embeds it, and the parts that tests run it
//! against (a simulated CUDA driver and NVML, fixture servers, the end-to-end runner).

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use crate::cmd;
use crate::context::{Context, Profile};
use crate::ebpf;
use crate::setup::{self, Purpose, Setup};

/// Options of `build`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Optimised, as it is measured and shown
    #[arg(long)]
    release: bool,
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    let setup = setup::ensure(context, &[Purpose::Build])?;
    both_halves(context, &setup, Profile::from_release(args.release))?;
    Ok(ExitCode::SUCCESS)
}

/// The kernel half, then everything else.
pub(crate) fn both_halves(context: &Context, setup: &Setup, profile: Profile) -> Result<()> {
    ebpf::build(context, setup.kernel_toolchain()?)?;
    user_half(context, profile)
}

/// The agent alone, with the kernel half inside it, as it is shipped.
pub(crate) fn agent(context: &Context) -> Result<()> {
    let setup = setup::ensure(context, &[Purpose::Build])?;
    ebpf::build(context, setup.kernel_toolchain()?)?;
    let mut cargo = context.cargo();
    cargo.args(["build", "--ignore-rust-version", "--release", "--package", "tracer-user"]);
    cmd::run(&mut cargo)
}

/// A copy of the agent without what only debuggers and profilers read.
pub(crate) fn stripped(context: &Context, to: &Path) -> Result<()> {
    let built = context.built(Profile::Release).join("spanprobe");
    let mut strip = cmd::clean("strip");
    strip.arg("--strip-all").arg("-o").arg(to).arg(built);
    cmd::run(&mut strip).context("strip comes with the linker (binutils)")
}

/// Everything but the kernel half, which must have been built.
pub(crate) fn user_half(context: &Context, profile: Profile) -> Result<()> {
    let mut cargo = context.cargo();
    cargo.args(["build", "--ignore-rust-version"]).args(profile.flag());
    for package in ["tracer-user", "cudasim", "nvmlsim", "servers", "e2e"] {
        cargo.args(["--package", package]);
    }
    cmd::run(&mut cargo)?;
    let built = context.built(profile);
    let library = built.join("libcuda.so");
    ensure!(
        library.is_file(),
        "the simulated driver was built, but {} is not there: tests/cudasim must be a `cdylib` \
         named `cuda`",
        library.display()
    );
    // In a folder of its own under the name that programs load: the tests put that folder first
    // on a server's library path.
    ebpf::copy_if_changed(&library, &built.join("sim/libcuda.so.1"))?;
    // The simulated NVML beside it: the agent is told where it is, servers do not ask for it.
    ebpf::copy_if_changed(&built.join("libnvidia_ml.so"), &built.join("sim/libnvidia-ml.so.1"))
}
