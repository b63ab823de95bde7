//! `spanprobe explain`: why one request of a session file took its time.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::{Context as _, bail};

use super::{args::ExplainArgs, view::style};
use crate::{
    export::{
        explain::{render_candidates, render_explanation},
        style::Style,
        text,
    },
    pipeline::Pipeline,
    record::{self, Ending},
    timeline::explain::Answer,
};

/// Columns of the list of requests in an error: each in one line.
const LIST_WIDTH: u16 = 200;

/// Replays a session file and shows what the timeline of one request was made from.
///
/// # Errors
/// Where the file cannot be opened or is no session file, and where not exactly one request has
/// the id; the error then lists some.
pub fn explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let file = args.file.display();
    let mut reader = record::open(&args.file).with_context(|| format!("cannot replay {file}"))?;
    let mut pipeline = Pipeline::new(reader.start().clone());
    pipeline.explain(&args.id);
    let mut out = Vec::new();
    while let Some(input) = reader.read() {
        pipeline.push(input, &mut out);
        out.clear();
    }
    pipeline.finish(&mut out);
    match reader.ending() {
        None | Some(Ending::Clean) => {}
        Some(ending) => eprintln!("spanprobe: {file}: {ending}"),
    }
    let list = |candidates: &[_]| render_candidates(candidates, Style::plain(LIST_WIDTH));
    let id = &args.id;
    let explanation = match pipeline.explanation() {
        Some(Answer::One(explanation)) => explanation,
        Some(Answer::Many { requests, first }) => bail!(
            "{} of {file} have an id that begins with {id}:\n{}",
            text::counted(requests, "request"),
            list(&first).trim_end()
        ),
        Some(Answer::None { requests: 0, .. }) | None => bail!("{file} holds no request"),
        Some(Answer::None { requests, slowest }) => bail!(
            "no request of {file} has an id that begins with {id}; of its {} the slowest:\n{}",
            text::counted(requests, "request"),
            list(&slowest).trim_end()
        ),
    };
    let text = if args.json {
        serde_json::to_string(&explanation).context("cannot be written as JSON")? + "\n"
    } else {
        render_explanation(&explanation, style(io::stdout().is_terminal(), false).0)
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
