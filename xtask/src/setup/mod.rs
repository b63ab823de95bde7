//! Makes a bare machine able to build and test spanprobe, and says what it does.
//!
//! Every other subcommand calls [`ensure`] first, so that a fresh clone needs no instructions. It
//! is idempotent, and silent where there is nothing to do. What cannot be had is named with its
//! remedy and with what will not work without it; only the kernel half's compiler is worth
//! stopping for.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::ValueEnum;

use crate::context::Context;

mod apt;
mod compiler;
mod machine;
mod prometheus;
mod python;
mod tools;

pub(crate) use compiler::KernelToolchain;

/// What the machine is set up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Purpose {
    /// Compile both halves, and run the agent
    Build,
    /// Also run the tests, the oracle and the demo (Python servers)
    Test,
    /// Also measure (other tracers and load generators to compare with)
    Bench,
    /// Fuzz the parsers (a nightly compiler and cargo-fuzz)
    Fuzz,
}

/// Options of `setup`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What for; may be given more than once
    #[arg(long = "for", value_name = "PURPOSE", value_enum, default_values_t = [Purpose::Build])]
    purposes: Vec<Purpose>,
}

/// What was found or installed.
pub(crate) struct Setup {
    toolchain: Result<KernelToolchain, String>,
    /// The Python environment of the test servers.
    pub(crate) venv: Option<PathBuf>,
    /// A Prometheus server.
    pub(crate) prometheus: Option<PathBuf>,
    /// What fuzzing needs.
    pub(crate) fuzz: Option<tools::Fuzz>,
    /// What is not there.
    pub(crate) missing: Vec<Missing>,
}

/// Something that is not there and could not be brought.
pub(crate) struct Missing {
    /// What.
    pub(crate) what: String,
    /// How a person can bring it.
    pub(crate) remedy: String,
    /// What does not work until then.
    pub(crate) without: String,
}

/// What setting up says, and gathers.
struct Report {
    verbose: bool,
    missing: Vec<Missing>,
}

impl Report {
    /// Something was there already: worth a line only to someone who asked.
    fn have(&self, what: impl AsRef<str>) {
        if self.verbose {
            eprintln!("setup: there: {}", what.as_ref());
        }
    }

    /// Something is about to be done to the machine: always said.
    fn doing(&self, what: impl AsRef<str>) {
        eprintln!("setup: {}", what.as_ref());
    }

    /// Something is not there: always said.
    fn missing(
        &mut self,
        what: impl Into<String>,
        remedy: impl Into<String>,
        without: impl Into<String>,
    ) {
        let missing = Missing { what: what.into(), remedy: remedy.into(), without: without.into() };
        eprintln!("setup: missing: {}", missing.what);
        eprintln!("       remedy: {}", missing.remedy);
        eprintln!("       without it: {}", missing.without);
        self.missing.push(missing);
    }
}

impl Setup {
    /// The kernel half's compiler, without which nothing is built.
    pub(crate) fn kernel_toolchain(&self) -> Result<&KernelToolchain> {
        self.toolchain.as_ref().map_err(|reason| anyhow!("{reason}"))
    }
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    let setup = make(context, &args.purposes, true);
    if let Err(reason) = &setup.toolchain {
        eprintln!("setup: {reason}");
        return Ok(ExitCode::FAILURE);
    }
    match setup.missing.len() {
        0 => eprintln!("setup: all there"),
        count => eprintln!("setup: done; {count} missing, named above"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets the machine up, quietly where nothing has to be done.
pub(crate) fn ensure(context: &Context, purposes: &[Purpose]) -> Result<Setup> {
    Ok(make(context, purposes, false))
}

/// The Python environment of Phoenix, brought where it is not there.
pub(crate) fn phoenix(context: &Context) -> Option<PathBuf> {
    python::phoenix(context, &mut Report { verbose: false, missing: Vec::new() })
}

/// Whether there is a nightly compiler, which is not worth bringing for a short run.
pub(crate) fn has_nightly() -> bool {
    compiler::nightly().is_some()
}

fn make(context: &Context, purposes: &[Purpose], verbose: bool) -> Setup {
    let wants = |these: &[Purpose]| these.iter().any(|purpose| purposes.contains(purpose));
    let mut report = Report { verbose, missing: Vec::new() };
    let mut fuzz = None;
    let mut venv = None;
    let mut prometheus = None;
    let mut toolchain = Err("fuzzing needs no compiler for the kernel half".to_owned());
    if wants(&[Purpose::Build, Purpose::Test, Purpose::Bench]) {
        machine::mounts(&mut report);
        machine::rights(&mut report);
        toolchain = compiler::ensure(context, &report);
    }
    if wants(&[Purpose::Test, Purpose::Bench]) {
        venv = python::ensure(context, &mut report);
    }
    if wants(&[Purpose::Test]) {
        prometheus = prometheus::ensure(context, &mut report);
    }
    if wants(&[Purpose::Bench]) {
        tools::bench(&mut report);
    }
    if wants(&[Purpose::Fuzz]) {
        fuzz = tools::fuzz(context, &mut report);
    }
    Setup { toolchain, venv, prometheus, fuzz, missing: report.missing }
}
