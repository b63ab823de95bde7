//! Sends the traces of short runs to collectors and compares what arrives: with `--real` also to
//! Arize Phoenix, which is brought from PyPI and read back from.

use std::process::ExitCode;

use anyhow::Result;

use crate::context::{Context, Profile};
use crate::setup::{self, Purpose};
use crate::{build, cmd, e2e};

/// Options of `otlp`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also send to Arize Phoenix and read the traces back from it
    #[arg(long)]
    real: bool,
    /// Keep Phoenix afterwards until Enter is pressed, to look at the traces in a browser
    #[arg(long, requires = "real")]
    look: bool,
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    let setup = setup::ensure(context, &[Purpose::Build])?;
    build::both_halves(context, &setup, Profile::Release)?;
    let mut tests = context.cargo();
    tests
        .args(["test", "--package", "e2e", "--ignore-rust-version", "--release"])
        .args(["--test", "otlp", "--test", "back_end", "--", "--test-threads=1", "--nocapture"])
        .envs(e2e::environment(context, &setup, Profile::Release));
    if args.real {
        let Some(phoenix) = setup::phoenix(context) else { return Ok(ExitCode::FAILURE) };
        tests.env("SPANPROBE_PHOENIX", phoenix);
    }
    if args.look {
        tests.env("SPANPROBE_LOOK", "1");
    }
    let status = cmd::status(&mut tests)?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
