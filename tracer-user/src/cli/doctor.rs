//! `spanprobe doctor`: what can be traced here, and what not and why.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use anyhow::Context as _;

use super::{DEGRADED, FAILED, NO_TARGET, args::DoctorArgs, lock, papers, view::style};
use crate::{
    doctor::{self, State},
    export::doctor::render_report,
};

/// Looks and reports. 0: nothing is known to stand in the way; 1: tracing does not work; 3: there is
/// no such process; 5: tracing works with gaps.
///
/// # Errors
/// Where the report cannot be written.
pub fn doctor(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let Some(report) = doctor::examine(args.pid, &lock::holder()) else {
        let pid = args.pid.unwrap_or_default();
        eprintln!("spanprobe: there is no process {pid}");
        return Ok(ExitCode::from(NO_TARGET));
    };
    let text = if args.json {
        serde_json::to_string(&report).context("cannot be written as JSON")? + "\n"
    } else {
        render_report(&report, style(io::stdout().is_terminal(), false).0)
    };
    papers::print(text.as_bytes())?;
    Ok(match report.state {
        State::Ok => ExitCode::SUCCESS,
        State::Degraded => ExitCode::from(DEGRADED),
        State::Missing => ExitCode::from(FAILED),
    })
}
