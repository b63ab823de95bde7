//! Everything that has to hold before a change lands, in its short form: what CI runs.
//!
//! Cheap gates come first and stop at the first failure, because what follows would only repeat
//! it. Suites all run, so that one failing test does not hide another. The last line counts.

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Error, Result, bail};

use crate::context::{Context, Profile};
use crate::setup::{self, Purpose, Setup};
use crate::{build, cmd, dist, e2e, ebpf, fuzz, real_driver, tidy};

/// The agent under test is the one that is shipped.
const PROFILE: Profile = Profile::Release;
/// A test that cannot run here passes after printing this and the reason.
const SKIPPED: &str = "SKIPPED: ";

/// Options of `test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each fuzz target runs, where there is a nightly compiler; 0 leaves fuzzing out
    #[arg(long, value_name = "N", default_value_t = 10)]
    fuzz_seconds: u64,
    /// Run only tests whose name contains this
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
}

/// What tests said, added up.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    /// Those that said of themselves that they were skipped included.
    ok: u64,
    /// Those that said so.
    noted: u64,
    failed: u64,
    skipped: u64,
    /// Why, one line for each that was skipped for a reason.
    reasons: Vec<String>,
    /// Steps that failed.
    failures: Vec<String>,
}

impl Tally {
    /// Takes in one line of libtest's output.
    fn line(&mut self, line: &str) {
        if let Some((_, reason)) = line.split_once(SKIPPED) {
            self.noted += 1;
            self.skip(reason);
        } else if let Some((_, counts)) = line.split_once("test result: ") {
            for count in counts.split(['.', ';']) {
                let mut words = count.split_whitespace();
                let number = words.next().and_then(|word| word.parse::<u64>().ok());
                let (Some(number), Some(what)) = (number, words.next()) else { continue };
                match what {
                    "passed" => self.ok += number,
                    "failed" => self.failed += number,
                    "ignored" => self.skipped += number,
                    _ => {}
                }
            }
        }
    }

    fn passed(&self) -> u64 {
        self.ok.saturating_sub(self.noted)
    }

    fn skip(&mut self, reason: impl Into<String>) {
        self.skipped += 1;
        self.reasons.push(reason.into());
    }

    fn fail(&mut self, step: &str) {
        self.failures.push(step.to_owned());
    }
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    let started = Instant::now();
    let mut tally = Tally::default();
    let setup = gates(context, &mut tally);
    match &setup {
        Ok(setup) => suites(context, setup, args, &mut tally)?,
        Err(error) => eprintln!("xtask: {error:#}"),
    }
    eprintln!("\n== {} s in all", started.elapsed().as_secs());
    for reason in &tally.reasons {
        println!("skipped: {reason}");
    }
    for step in &tally.failures {
        println!("failed: {step}");
    }
    println!("{} passed, {} failed, {} skipped", tally.passed(), tally.failed, tally.skipped);
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What has to hold for a test to mean anything. The first failure is the last.
fn gates(context: &Context, tally: &mut Tally) -> Result<Setup> {
    let setup = gate(tally, "set-up", || {
        let setup = setup::ensure(context, &[Purpose::Test])?;
        setup.kernel_toolchain()?;
        Ok(setup)
    })?;
    for missing in &setup.missing {
        tally.skip(format!("{} (missing: {})", missing.without, missing.what));
    }
    gate(tally, "format", || cmd::run(context.cargo().args(["fmt", "--all", "--check"])))?;
    gate(tally, "tidy", || match tidy::check(context)? {
        0 => Ok(()),
        count => bail!("{count} invariants are broken"),
    })?;
    gate(tally, "kernel half", || ebpf::build(context, setup.kernel_toolchain()?).map(drop))?;
    gate(tally, "clippy", || {
        let mut cargo = context.cargo();
        cargo.args(["clippy", "--workspace", "--all-targets", "--ignore-rust-version"]);
        cmd::run(cargo.args(["--", "--deny", "warnings"]))
    })?;
    gate(tally, "build", || build::user_half(context, PROFILE))?;
    gate(tally, "distribution", || dist::pack(context).map(drop))?;
    Ok(setup)
}

fn gate<T>(tally: &mut Tally, name: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = timed(name, step);
    match result {
        Ok(_) => tally.ok += 1,
        Err(_) => {
            tally.failed += 1;
            tally.fail(name);
        }
    }
    result
}

/// Heads a step, and says how long it took.
fn timed<T>(name: &str, step: impl FnOnce() -> T) -> T {
    eprintln!("\n== {name}");
    let started = Instant::now();
    let result = step();
    eprintln!("== {name}: {:.1} s", started.elapsed().as_secs_f64());
    result
}

/// Every test there is.
fn suites(context: &Context, setup: &Setup, args: &Args, tally: &mut Tally) -> Result<()> {
    let mut variables = e2e::environment(context, setup, PROFILE);
    timed("real drivers", || match drivers(context) {
        Ok(drivers) => variables.extend(drivers),
        Err(error) => tally.skip(format!("tests on real drivers: {error:#}")),
    });
    let filter = args.filter.as_slice();
    let mut workspace = context.cargo();
    workspace
        .args(["test", "--workspace", "--exclude", "e2e", "--ignore-rust-version"])
        .args(["--no-fail-fast", "--"])
        // Shows why a test was skipped, which libtest hides of one that passes.
        .arg("--show-output")
        .args(filter)
        .envs(variables.iter().cloned());
    suite(tally, "unit, property and replay tests", workspace)?;
    let mut live = context.cargo();
    live.args(["test", "--package", "e2e", "--ignore-rust-version", "--no-fail-fast"])
        .args(PROFILE.flag())
        // One at a time: they measure, and there is one machine.
        .args(["--", "--test-threads=1", "--nocapture"])
        .args(filter)
        .envs(variables);
    suite(tally, "live tests", live)?;
    if args.fuzz_seconds > 0 && filter.is_empty() {
        timed("fuzzing", || fuzzing(context, args.fuzz_seconds, tally))?;
    }
    Ok(())
}

/// Runs a test command and adds up what it says.
fn suite(tally: &mut Tally, name: &str, command: Command) -> Result<()> {
    timed(name, || {
        let failed = tally.failed;
        let shown = cmd::show(&command);
        let status = cmd::follow(command, |line| tally.line(line))?;
        if !status.success() {
            // It may have failed before any test ran.
            tally.failed = tally.failed.max(failed + 1);
            tally.fail(&format!("{name} (`{shown}`: {status})"));
        }
        Ok(())
    })
}

/// Real drivers to resolve symbols and prologues in, and their NVML to load, as search paths.
fn drivers(context: &Context) -> Result<[(&'static str, OsString); 2]> {
    let libraries = real_driver::fetch(&context.root).map_err(Error::msg)?;
    let join = |paths| env::join_paths(paths).context("a driver's path contains a colon");
    Ok([
        ("SPANPROBE_REAL_DRIVERS", join(libraries.cuda)?),
        ("SPANPROBE_REAL_NVML", join(libraries.nvml)?),
    ])
}

/// A few seconds for each target, where a nightly compiler is there already.
fn fuzzing(context: &Context, seconds: u64, tally: &mut Tally) -> Result<()> {
    if !setup::has_nightly() {
        tally.skip("fuzzing: no nightly compiler (rustup toolchain install nightly)");
        return Ok(());
    }
    let setup = setup::ensure(context, &[Purpose::Fuzz])?;
    if setup.fuzz.is_none() {
        tally.skip("fuzzing: what it needs is missing, see above");
        return Ok(());
    }
    let targets = fuzz::targets(context)?;
    match fuzz::run(context, &setup, &targets, seconds) {
        Ok(failed) => {
            tally.failed += failed.len() as u64;
            tally.ok += (targets.len() - failed.len()) as u64;
            failed.iter().for_each(|target| tally.fail(&format!("fuzz target {target}")));
        }
        Err(error) => {
            tally.failed += 1;
            tally.fail(&format!("fuzzing: {error:#}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_s_results_add_up() {
        let mut tally = Tally::default();
        tally.line("test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out");
        tally.line("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered");
        tally.line("test some::name ... ok");
        assert_eq!((tally.passed(), tally.failed, tally.skipped), (8, 2, 1));
    }

    #[test]
    fn a_skipped_test_did_not_pass() {
        let mut tally = Tally::default();
        tally.line("test real_driver ... SKIPPED: no driver could be fetched");
        tally.line("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!((tally.passed(), tally.failed, tally.skipped), (1, 0, 1));
        assert_eq!(tally.reasons, ["no driver could be fetched"]);
    }
}
