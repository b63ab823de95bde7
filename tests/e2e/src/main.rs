//! `e2e`: the demo, the comparison with the oracles, the benchmark, and the recordings.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use e2e::bench;
use e2e::corpus;
use e2e::demo;
use e2e::env::Env;
use e2e::ping_pong;
use e2e::report::{Scenario, table, write_json};
use e2e::scenarios::{self, ALL, Named, Size};

/// Runs spanprobe against servers that keep their own record of the truth.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show spanprobe at work.
    Demo {
        /// How long the clients send requests
        #[arg(long, value_name = "N", default_value_t = 10)]
        seconds: u64,
        /// Where the timelines go
        #[arg(long, value_name = "FILE")]
        jsonl: Option<PathBuf>,
    },
    /// Compare what spanprobe reports with what happened.
    #[command(after_help = scenarios::names())]
    Oracle {
        /// Write the results here
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Only these scenarios; may be repeated
        #[arg(long, value_name = "NAME", num_args = 1..)]
        scenario: Vec<String>,
        /// Requests of each scenario
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        requests: u64,
    },
    /// Measure what tracing costs.
    Bench(bench::Args),
    /// Hand a byte to and fro between two threads, a round for each line of standard input.
    #[command(hide = true)]
    PingPong(ping_pong::Args),
    /// Record the sessions of the regression corpus anew.
    Corpus {
        /// Keep the recordings, and write down the timelines that they give now
        #[arg(long)]
        timelines_only: bool,
    },
}

fn oracle(env: &Env, json: Option<&PathBuf>, names: &[String], size: Size) -> Result<bool> {
    let wanted: Vec<&Named> = if names.is_empty() {
        ALL.iter().collect()
    } else {
        let find = |name: &String| Named::find(name).with_context(|| format!("no scenario {name}"));
        names.iter().map(find).collect::<Result<_>>()?
    };
    let mut scenarios: Vec<Scenario> = Vec::new();
    for named in wanted {
        eprintln!("{}: {} requests", named.name, size.requests);
        scenarios.push(named.run(env, size));
    }
    print!("{}", table(&scenarios));
    write_json(json.map(PathBuf::as_path), &serde_json::json!({ "scenarios": scenarios }))?;
    Ok(scenarios.iter().all(Scenario::passed))
}

fn run() -> Result<bool> {
    let env = Env::new()?;
    match Cli::parse().command {
        Command::Demo { seconds, jsonl } => demo::run(&env, seconds, jsonl),
        Command::Oracle { json, scenario, requests } => {
            oracle(&env, json.as_ref(), &scenario, Size { requests })
        }
        Command::Bench(args) => bench::run(&env, &args),
        Command::PingPong(args) => ping_pong::run(&args),
        Command::Corpus { timelines_only: true } => corpus::accept(&env).map(|()| true),
        Command::Corpus { timelines_only: false } => corpus::record(&env).map(|()| true),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::from(2)
        }
    }
}
