//! `spanprobe why`, `status`, `pause`, `resume`: questions to the agent that runs.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use serde::de::DeserializeOwned;

use super::{
    args::{AskArgs, WhyArgs},
    control::{Request, ask},
    view::style,
};
use crate::export::{style::Style, why};

/// Why the last while was as it was.
///
/// # Errors
/// Where no agent answers.
pub fn why(args: &WhyArgs) -> anyhow::Result<ExitCode> {
    let since_ns = u64::try_from(args.since.as_nanos()).unwrap_or(u64::MAX);
    put(&args.ask, Request::Why { since_ns }, why::render)
}

/// How the agent is.
///
/// # Errors
/// Where no agent answers.
pub fn status(args: &AskArgs) -> anyhow::Result<ExitCode> {
    put(args, Request::Status, why::render_status)
}

/// Has it let go of every probe.
///
/// # Errors
/// Where no agent answers.
pub fn pause(args: &AskArgs) -> anyhow::Result<ExitCode> {
    put(args, Request::Pause, why::render_status)
}

/// Has it trace again.
///
/// # Errors
/// Where no agent answers.
pub fn resume(args: &AskArgs) -> anyhow::Result<ExitCode> {
    put(args, Request::Resume, why::render_status)
}

/// Asks, and prints the answer for people or as JSON.
fn put<T: DeserializeOwned>(
    args: &AskArgs,
    request: Request,
    render: impl FnOnce(&T, Style) -> String,
) -> anyhow::Result<ExitCode> {
    let answer = ask(&args.control, request)?;
    let text = if args.json {
        format!("{answer}\n")
    } else {
        let answer: T = serde_json::from_value(answer)
            .context("the agent speaks another version's language: --json shows what it said")?;
        render(&answer, style(io::stdout().is_terminal(), false).0)
    };
    let mut to = io::stdout().lock();
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
