//! What tracing costs: per probe, per request, per event, and for processes that are not traced.

mod bare;
mod bpftrace;
mod cost;
mod counter;
mod detach;
mod kernel;
mod launch;
mod nginx;
mod programs;
mod soak;
mod throughput;
mod unrelated;
mod verdict;
mod weight;

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use crate::env::Env;
use crate::measure::Interval;
use crate::report::write_json;
use verdict::Verdict;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write the results here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Times that each comparison is made, with and without
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub alternations: usize,
    /// Only these parts: launch, throughput, kernel, cost, detach, unrelated, soak (which is left
    /// out unless it is named)
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub part: Vec<String>,
    /// How long the soak lasts
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    pub minutes: f64,
}

/// Results so far: figures, notes that belong to them, and limits that were missed.
#[derive(Debug, Default)]
struct Results {
    figures: Map<String, Value>,
    notes: Vec<String>,
    failures: Vec<String>,
}

impl Results {
    fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.figures.insert(name.to_owned(), value.into());
    }

    /// The interval of a sample, and what it says of a limit; one that was missed is a failure where
    /// it is `binding`.
    fn judge(
        &mut self,
        words: &str,
        sample: &[f64],
        judge: impl Fn(Interval) -> Verdict,
        binding: bool,
    ) -> Option<(Interval, Verdict)> {
        let interval = Interval::of(sample.iter().copied())?;
        let verdict = judge(interval);
        if binding && verdict == Verdict::Failed {
            self.failures.push(format!("{words}: {interval:?}"));
        }
        Some((interval, verdict))
    }

    fn note(&mut self, text: String) {
        eprintln!("bench: {text}");
        self.notes.push(text);
    }
}

/// Every figure that is named, so that each is there in each run.
const KEYS: [&str; 16] = [
    "launch_ns",
    "launch_calls",
    "launch_events_seen",
    "throughput_ratio",
    "bpf_ns",
    "agent_cpu_us_per_event",
    "agent_rss_mib",
    "agent",
    "agent_nginx",
    "events_offered",
    "events_seen",
    "events_lost",
    "events_lost_unaccounted",
    "unrelated_ratio",
    "detach_s",
    "soak",
];

type Part = fn(&Env, &Args, &mut Results) -> Result<()>;

const PARTS: [(&str, Part); 7] = [
    ("launch", launch::run),
    ("throughput", throughput::run),
    ("kernel", kernel::run),
    ("cost", cost::run),
    ("detach", detach::run),
    ("unrelated", unrelated::run),
    (SOAK, soak::run),
];
/// Takes longer than all the others: only where it is asked for.
const SOAK: &str = "soak";

/// Measures; false where a limit was missed for certain, or a part broke off.
///
/// # Errors
/// Where nothing can be measured here.
pub fn run(env: &Env, args: &Args) -> Result<bool> {
    if let Some(reason) = env.cannot_trace().or_else(|| env.no_driver()) {
        bail!("nothing can be measured: {reason}");
    }
    let mut results = Results::default();
    for key in KEYS {
        results.set(key, Value::Null);
    }
    for (name, part) in PARTS {
        let named = args.part.iter().any(|wanted| wanted == name);
        if !named && (name == SOAK || !args.part.is_empty()) {
            results.note(format!("{name}: left out"));
            continue;
        }
        eprintln!("bench: {name}");
        if let Err(error) = part(env, args, &mut results) {
            results.failures.push(format!("{name} broke off: {error:#}"));
        }
    }
    let Results { mut figures, notes, failures } = results;
    figures.insert("alternations".to_owned(), json!(args.alternations));
    figures.insert("notes".to_owned(), json!(notes));
    figures.insert("failures".to_owned(), json!(failures));
    let document = Value::Object(figures);
    println!("{}", serde_json::to_string_pretty(&document)?);
    write_json(args.json.as_deref(), &document)?;
    for failure in &failures {
        eprintln!("bench: FAILED: {failure}");
    }
    Ok(failures.is_empty())
}
