//! spanprobe: where the time of every inference request goes, seen from outside the server.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracer_user::cli::main()
}
