//! The command line: what was asked for, and its result as an exit code.

mod args;
#[cfg(feature = "live")]
mod ask;
#[cfg(feature = "live")]
mod control;
mod explain;
#[cfg(feature = "live")]
mod lock;
#[cfg(feature = "live")]
mod outlets;
mod replay;
#[cfg(feature = "live")]
mod resident;
#[cfg(feature = "live")]
mod run;
mod view;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command};

/// Something could not be done.
const FAILED: u8 = 1;
/// No process that was asked for is there, or came.
#[cfg(feature = "live")]
const NO_TARGET: u8 = 3;
/// Another spanprobe traces on this machine.
#[cfg(feature = "live")]
const ALREADY_RUNNING: u8 = 4;

/// Parses the command line and does what it says. 0: done; 1: failed; 2: the command line is
/// wrong; 3: no process to trace; 4: another spanprobe is tracing.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        #[cfg(feature = "live")]
        Command::Run(args) => run::run(args, None),
        #[cfg(feature = "live")]
        Command::Record(args) => run::run(&args.run, Some(args)),
        #[cfg(feature = "live")]
        Command::Why(args) => ask::why(args),
        #[cfg(feature = "live")]
        Command::Status(args) => ask::status(args),
        #[cfg(feature = "live")]
        Command::Pause(args) => ask::pause(args),
        #[cfg(feature = "live")]
        Command::Resume(args) => ask::resume(args),
        Command::Replay(args) => replay::replay(args),
        Command::Explain(args) => explain::explain(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("spanprobe: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}
