//! Fuzzes what reads bytes from strangers: protocol parsers, ELF and prologue decoding, session
//! files. The targets are a workspace of their own (`tests/fuzz`), because they need a nightly
//! compiler and its sanitizers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};

use crate::cmd;
use crate::context::Context;
use crate::setup::{self, Purpose, Setup};

const FOLDER: &str = "tests/fuzz";

/// Options of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each target runs
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Targets to run; all of them by default
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    let setup = setup::ensure(context, &[Purpose::Fuzz])?;
    let known = targets(context)?;
    let chosen = if args.targets.is_empty() { known.clone() } else { args.targets.clone() };
    if let Some(unknown) = chosen.iter().find(|target| !known.contains(target)) {
        bail!("no fuzz target `{unknown}`; there are: {}", known.join(", "));
    }
    let failed = run(context, &setup, &chosen, args.seconds)?;
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("xtask: findings in {}: see {FOLDER}/artifacts", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The targets that there are, by name.
pub(crate) fn targets(context: &Context) -> Result<Vec<String>> {
    let folder = context.root.join(FOLDER).join("fuzz_targets");
    let files = fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<_> = files
        .iter()
        .map(|file| PathBuf::from(file.file_name()))
        .filter(|name| name.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|name| name.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    ensure!(!names.is_empty(), "no fuzz target in {}", folder.display());
    Ok(names)
}

/// Runs each target for so long; returns those that found something.
pub(crate) fn run(
    context: &Context,
    setup: &Setup,
    targets: &[String],
    seconds: u64,
) -> Result<Vec<String>> {
    let fuzz = setup.fuzz.as_ref().context("fuzzing needs what is missing above")?;
    let folder = context.root.join(FOLDER);
    let cargo_fuzz = |subcommand: &str| {
        let mut rustup = cmd::clean("rustup");
        rustup
            .args(["run", &fuzz.toolchain])
            .arg(&fuzz.cargo_fuzz)
            .args(["fuzz", subcommand, "--fuzz-dir"])
            .arg(&folder)
            .current_dir(&folder);
        rustup
    };
    // All of them first: a target that does not compile is an error of ours, not a finding.
    for target in targets {
        cmd::run(cargo_fuzz("build").arg(target))?;
    }
    let mut failed = Vec::new();
    for target in targets {
        let mut command = cargo_fuzz("run");
        command.arg(target);
        for corpus in corpora(context, &folder, target)? {
            command.arg(corpus);
        }
        command.args(["--", "-verbosity=0", "-print_funcs=0", "-print_final_stats=1"]);
        command.args(["-timeout=10", &format!("-max_total_time={seconds}")]);
        if !cmd::status(&mut command)?.success() {
            failed.push(target.clone());
        }
    }
    Ok(failed)
}

/// The folder that grows, then the seeds: those of the target, and recorded sessions.
fn corpora(context: &Context, folder: &Path, target: &str) -> Result<Vec<PathBuf>> {
    let corpus = folder.join("corpus").join(target);
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    let mut corpora = vec![corpus];
    let mut seeds = vec![folder.join("seeds").join(target)];
    if target == "session" {
        seeds.push(context.root.join("tests/recordings"));
    }
    corpora.extend(seeds.into_iter().filter(|seeds| seeds.is_dir()));
    Ok(corpora)
}
