//! `spanprobe replay`: a session file through the same pipeline.

use std::process::ExitCode;

use anyhow::Context as _;

use super::{args::ReplayArgs, view::View};
use crate::{
    intake::input::Input,
    pipeline::Pipeline,
    record::{self, Ending},
};

/// How often the view moves on, ns of session time.
const VIEW_EVERY_NS: u64 = 200_000_000;

/// Shows the timelines of a session file.
///
/// # Errors
/// Where the file cannot be opened or is no session file. A file that was cut is read up to the
/// cut, which is said.
pub fn replay(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let mut reader = record::open(&args.file)
        .with_context(|| format!("cannot replay {}", args.file.display()))?;
    let mut view = View::open(&args.show)?;
    let mut pipeline = Pipeline::new(reader.start().clone());
    let mut out = Vec::new();
    let mut viewed_ns = 0;
    while let Some(input) = reader.read() {
        pipeline.push(input, &mut out);
        view.take(&out);
        out.clear();
        if let Input::Tick { now_ns } = input
            && now_ns.saturating_sub(viewed_ns) >= VIEW_EVERY_NS
        {
            viewed_ns = now_ns;
            let open = if view.wants_open(now_ns) { pipeline.open() } else { Vec::new() };
            view.tick(now_ns, &open, &pipeline.health());
        }
        if view.is_closed() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let open = pipeline.finish(&mut out);
    view.take(&out);
    view.finish(&open, &pipeline.health());
    match reader.ending() {
        None | Some(Ending::Clean) => {}
        Some(ending) => view.note(&format!("{}: {ending}", args.file.display())),
    }
    Ok(ExitCode::SUCCESS)
}
