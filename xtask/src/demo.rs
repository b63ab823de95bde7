//! Shows what spanprobe does: a server that knows nothing of it, clients, and the table.

use std::process::ExitCode;

use anyhow::Result;

use crate::context::Context;
use crate::e2e;
use crate::setup::Purpose;

/// Options of `demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long the clients send requests
    #[arg(long, value_name = "N", default_value_t = 15)]
    seconds: u64,
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    let seconds = args.seconds.to_string();
    let timelines = context.target().join("demo/timelines.jsonl");
    let args = vec![
        "demo".into(),
        "--seconds".into(),
        seconds.into(),
        "--jsonl".into(),
        timelines.into_os_string(),
    ];
    e2e::run(context, Purpose::Test, args)
}
