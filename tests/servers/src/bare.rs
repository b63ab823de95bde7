//! The bare launch loop: what one launch call costs, without a server around it.
//!
//! One line `go [LABEL]` on standard input starts a round; one line of JSON answers it. In between,
//! whoever measures can attach or detach a tracer.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use crate::gpu::{Gpu, Process};
use crate::oracle::{CallLog, json_string};
use crate::plan::{Plan, SLOTS, Step};

/// Launches between two synchronisations.
const BLOCK: u64 = 512;

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Bare {
    /// The driver's library.
    pub driver: String,
    /// Launches per repeat.
    pub count: u64,
    /// Repeats per round.
    pub repeats: u64,
    /// Nanoseconds that each kernel runs.
    pub kernel_ns: u64,
    /// Change the stream with every launch, so that no two in a row are alike.
    pub alternate: bool,
}

fn once(bare: &Bare, gpu: &mut Gpu) -> Result<f64, String> {
    let streams = if bare.alternate { SLOTS } else { 1 };
    let mut log = CallLog::default();
    let (mut left, mut total) = (bare.count, 0);
    while left > 0 {
        let block = left.min(BLOCK);
        let launched = gpu.bare_launches(block, bare.kernel_ns, streams);
        total += launched.map_err(|failure| failure.to_string())?;
        for stream in 0..streams {
            for step in [Step::UseStream { stream }, Step::SyncStream] {
                gpu.step(step, &mut log).map_err(|failure| failure.to_string())?;
            }
        }
        left -= block;
    }
    Ok(total as f64 / bare.count as f64)
}

/// Runs rounds until standard input ends.
pub fn run(bare: &Bare) -> Result<(), String> {
    let mut log = CallLog::default();
    let process = Process::start(&bare.driver, &mut log)?;
    let mut gpu = Gpu::new(Arc::new(process), 0);
    let steps = (0..SLOTS).map(|stream| Step::UseStream { stream }).collect();
    gpu.begin(&Plan { steps }, &mut log).map_err(|failure| failure.to_string())?;
    let mode = if bare.alternate { "plain" } else { "coalesced" };
    let mut out = io::stdout().lock();
    let mut say = |line: String| {
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string())
    };
    say(format!(r#"{{"t":"ready","pid":{},"mode":"{mode}"}}"#, std::process::id()))?;
    for (round, line) in io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|error| error.to_string())?;
        let mut words = line.splitn(2, ' ');
        if words.next() != Some("go") {
            return Err(format!("expected `go [LABEL]`, got {line:?}"));
        }
        let label = words.next().unwrap_or_default();
        let mut each = Vec::with_capacity(bare.repeats as usize);
        for _ in 0..bare.repeats {
            each.push(once(bare, &mut gpu)?);
        }
        let mut sorted = each.clone();
        sorted.sort_by(f64::total_cmp);
        let min = sorted.first().copied().unwrap_or(f64::NAN);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN);
        let list = each.iter().map(|ns| format!("{ns:.2}")).collect::<Vec<_>>().join(",");
        say(format!(
            r#"{{"t":"round","round":{round},"label":{},"mode":"{mode}","launches":{},"ns_min":{min:.2},"ns_median":{median:.2},"ns_per_call":[{list}]}}"#,
            json_string(label),
            bare.count * bare.repeats,
        ))?;
    }
    gpu.close(&mut log);
    Ok(())
}
