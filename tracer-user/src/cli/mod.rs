//! The command line: what was asked for, and its result as an exit code.

mod args;
#[cfg(feature = "live")]
mod ask;
#[cfg(feature = "live")]
mod config;
#[cfg(feature = "live")]
mod control;
#[cfg(feature = "live")]
mod doctor;
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

mod papers;

use std::process::ExitCode;

use args::Command;

/// Something could not be done.
const FAILED: u8 = 1;
/// No process that was asked for is there, or came.
#[cfg(feature = "live")]
const NO_TARGET: u8 = 3;
/// Another spanprobe traces on this machine.
#[cfg(feature = "live")]
const ALREADY_RUNNING: u8 = 4;
/// Tracing works, and something is not seen.
#[cfg(feature = "live")]
const DEGRADED: u8 = 5;

/// Parses the command line and does what it says. 0: done; 1: failed; 2: the command line is
/// wrong; 3: no process to trace; 4: another spanprobe is tracing; 5: `doctor` found gaps.
pub fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    let settings = match config::read(&argv, &config::Here) {
        Ok(settings) => settings,
        Err(error) => error.exit(),
    };
    let result = match &settings.cli.command {
        #[cfg(feature = "live")]
        Command::Run(args) => run::run(args, None),
        #[cfg(feature = "live")]
        Command::Record(args) => run::run(&args.options.run, Some(args)),
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
        #[cfg(feature = "live")]
        Command::Doctor(args) => doctor::doctor(args),
        Command::Config(_) => papers::print(settings.describe().as_bytes()),
        Command::Completions(args) => papers::completions(args),
        Command::Man(args) => papers::man(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("spanprobe: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}
