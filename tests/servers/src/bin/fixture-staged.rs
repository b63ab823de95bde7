//! A server whose requests pass through a line of threads. See `tests/servers/README.md`.

use std::process::ExitCode;

use clap::Parser;
use servers::options::{Options, announce, exit_code};
use servers::pool::{self, Config, Style};
use servers::queue::Waking;
use servers::signals;

/// A compiled inference server in which one thread reads, one prepares, one has the GPU and one
/// writes, and an oracle of what each of them did.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// How much CPU time a plan without `spin` items is prepared for.
    #[arg(long, value_name = "NS", default_value_t = 50_000)]
    prepare_ns: u64,
}

fn run(args: Args) -> std::io::Result<()> {
    signals::block();
    if args.options.exit_on_stdin_eof {
        signals::end_with_stdin()?;
    }
    let config = Config {
        options: args.options,
        style: Style::Staged,
        workers: 1,
        waking: Waking::Condvar,
        ring: None,
        prepare_ns: args.prepare_ns,
        name: "fixture-staged",
    };
    pool::run(config, announce)
}

fn main() -> ExitCode {
    exit_code("fixture-staged", run(Args::parse()))
}
