//! What is printed for shells, readers of man pages, and whoever keeps a configuration.

use std::{
    fs,
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::args::{Cli, CompletionsArgs, ManArgs};

/// Writes to standard output; a reader that goes away has seen enough.
///
/// # Errors
/// Where it cannot be written to.
pub fn print(text: &[u8]) -> anyhow::Result<ExitCode> {
    let mut to = io::stdout().lock();
    match to.write_all(text).and_then(|()| to.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints a shell's completions.
///
/// # Errors
/// As [`print`].
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "spanprobe", &mut text);
    print(&text)
}

/// Writes a man page for the program, and one for each subcommand that is not hidden.
///
/// # Errors
/// Where the folder or a file cannot be made.
pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let folder = args.folder.display();
    fs::create_dir_all(&args.folder).with_context(|| format!("cannot make {folder}"))?;
    clap_mangen::generate_to(Cli::command(), &args.folder)
        .with_context(|| format!("cannot write to {folder}"))?;
    Ok(ExitCode::SUCCESS)
}
