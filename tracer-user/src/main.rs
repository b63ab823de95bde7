//! spanprobe: where the time of every inference request goes, seen from outside the server.

use std::process::ExitCode;

/// The agent makes and drops a few small things for each event.
#[cfg(feature = "live")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tracer_user::cli::main()
}
