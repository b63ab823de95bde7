//! Compares what spanprobe reports with what servers, clients and the simulated driver know to
//! have happened, with enough requests for the claims that the project makes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::context::Context;
use crate::e2e;
use crate::setup::Purpose;

/// Options of `oracle`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the results here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Handed on to the runner (`e2e oracle --help`)
    #[arg(last = true)]
    rest: Vec<OsString>,
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    e2e::run(context, Purpose::Test, e2e::figures("oracle", args.json.as_deref(), &args.rest)?)
}
