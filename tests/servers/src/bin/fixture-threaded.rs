//! An inference server that keeps its own record of the truth. See `tests/servers/README.md`.

use std::process::ExitCode;

use clap::Parser;
use servers::bare::Bare;
use servers::options::{Options, announce, exit_code};
use servers::{serve, signals};

/// A compiled inference server with a thread per connection and an oracle of its own calls.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// No server: time COUNT launches per repeat, a round for each `go` on standard input.
    #[arg(long, value_name = "COUNT")]
    bare_launch_loop: Option<u64>,
    /// Repeats per round of the bare launch loop.
    #[arg(long, value_name = "N", default_value_t = 5)]
    bare_repeats: u64,
    /// Nanoseconds that each kernel of the bare launch loop runs.
    #[arg(long, value_name = "NS", default_value_t = 0)]
    bare_kernel_ns: u64,
    /// Change the stream with every launch of the bare launch loop.
    #[arg(long)]
    bare_alternate: bool,
}

fn run(args: Args) -> Result<(), String> {
    let options = args.options;
    if let Some(count) = args.bare_launch_loop {
        return servers::bare::run(&Bare {
            driver: options.driver,
            count: count.max(1),
            repeats: args.bare_repeats.max(1),
            kernel_ns: args.bare_kernel_ns,
            alternate: args.bare_alternate,
        });
    }
    signals::block();
    if options.exit_on_stdin_eof {
        signals::end_with_stdin().map_err(|error| error.to_string())?;
    }
    serve::run(options, announce).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    exit_code("fixture-threaded", run(Args::parse()))
}
