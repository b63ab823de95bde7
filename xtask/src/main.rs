//! `cargo xtask`: the one door to building, checking and demonstrating spanprobe.
//!
//! It exists because the kernel half and the agent need different compilers, the tests need a
//! machine prepared for them, and neither should be a page of instructions for a newcomer to
//! follow. One file per subcommand; each sets up what it needs before it starts.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod bench;
mod build;
mod cmd;
mod context;
mod demo;
mod dist;
mod e2e;
mod ebpf;
mod fuzz;
mod gpu_check;
mod oracle;
mod otlp;
mod real_driver;
mod setup;
mod test;
mod tidy;

/// Builds, checks and demonstrates spanprobe.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find or install what the other subcommands need, and say what is there and what is not
    Setup(setup::Args),
    /// Build the kernel half: target/ebpf/spanprobe-ebpf
    Ebpf,
    /// Build both halves, the simulated CUDA driver and NVML, and the fixture servers
    Build(build::Args),
    /// Check the invariants of docs/architecture.md that a machine can check
    Tidy,
    /// Run every gate and every test in its short form: what CI runs
    Test(test::Args),
    /// Start a server, clients and spanprobe; show the table; write target/demo/timelines.jsonl
    Demo(demo::Args),
    /// Compare what spanprobe reports with what really happened, at length
    Oracle(oracle::Args),
    /// Measure what tracing costs, at length
    Bench(bench::Args),
    /// Pack what is installed on other machines: target/dist/spanprobe-VERSION-TARGET.tar.gz
    Dist,
    /// Hold spanprobe on a physical GPU against CUPTI: PyTorch behind an HTTP server
    GpuCheck(gpu_check::Args),
    /// Send traces to collectors, and with --real to a back end with a user interface
    Otlp(otlp::Args),
    /// Fuzz the parsers
    Fuzz(fuzz::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let context = context::Context::new()?;
    match cli.task {
        Task::Setup(args) => setup::main(&context, &args),
        Task::Ebpf => ebpf::main(&context),
        Task::Build(args) => build::main(&context, &args),
        Task::Tidy => tidy::main(&context),
        Task::Test(args) => test::main(&context, &args),
        Task::Demo(args) => demo::main(&context, &args),
        Task::Oracle(args) => oracle::main(&context, &args),
        Task::Bench(args) => bench::main(&context, &args),
        Task::Dist => dist::main(&context),
        Task::GpuCheck(args) => gpu_check::main(&context, &args),
        Task::Otlp(args) => otlp::main(&context, &args),
        Task::Fuzz(args) => fuzz::main(&context, &args),
    }
}
