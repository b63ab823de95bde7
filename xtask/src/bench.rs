//! Measures what tracing costs: per probe, per request, and beside bpftrace on the same machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::context::Context;
use crate::e2e;
use crate::setup::Purpose;

/// Options of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the results here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Handed on to the runner (`e2e bench --help`)
    #[arg(last = true)]
    rest: Vec<OsString>,
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    e2e::run(context, Purpose::Bench, e2e::figures("bench", args.json.as_deref(), &args.rest)?)
}
