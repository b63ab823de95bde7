//! A server of tasks that move between threads. See `tests/servers/README.md`.

use std::process::ExitCode;

use clap::Parser;
use servers::options::{Options, announce, exit_code};
use servers::signals;
use servers::tasks::{self, Config};

/// A compiled inference server on tokio's work-stealing threads, with an oracle of which thread did
/// what.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Threads that run tasks.
    #[arg(long, value_name = "N", default_value_t = 2)]
    workers: usize,
    /// Threads that carry plans out (`spawn_blocking`).
    #[arg(long, value_name = "N", default_value_t = 4)]
    blocking: usize,
}

fn run(args: Args) -> std::io::Result<()> {
    signals::block();
    if args.options.exit_on_stdin_eof {
        signals::end_with_stdin()?;
    }
    let (workers, blocking) = (args.workers.max(1), args.blocking.max(1));
    tasks::run(Config { options: args.options, workers, blocking }, announce)
}

fn main() -> ExitCode {
    exit_code("fixture-tokio", run(Args::parse()))
}
