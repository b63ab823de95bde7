//! A server that hands requests between threads. See `tests/servers/README.md`.

use std::process::ExitCode;

use clap::Parser;
use servers::options::{Options, announce, exit_code};
use servers::pool::{self, Config, Style};
use servers::queue::Waking;
use servers::signals;

/// A compiled inference server with one thread that reads and threads that work, and an oracle of
/// what each of them did.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Who writes the answers: the worker, or the thread that reads.
    #[arg(long, value_enum, default_value_t = Style::Pool)]
    style: Style,
    /// How many threads work.
    #[arg(long, value_name = "N", default_value_t = 4)]
    workers: usize,
    /// How workers are woken.
    #[arg(long, value_enum, default_value_t = Waking::Condvar)]
    queue: Waking,
}

fn run(args: Args) -> std::io::Result<()> {
    signals::block();
    if args.options.exit_on_stdin_eof {
        signals::end_with_stdin()?;
    }
    let config = Config {
        options: args.options,
        style: args.style,
        workers: args.workers.max(1),
        waking: args.queue,
        ring: None,
        prepare_ns: 0,
        name: "fixture-pool",
    };
    pool::run(config, announce)
}

fn main() -> ExitCode {
    exit_code("fixture-pool", run(Args::parse()))
}
