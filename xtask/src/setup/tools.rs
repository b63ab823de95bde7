//! Programs that measuring and fuzzing need.

use std::path::PathBuf;

use super::{Report, apt, compiler};
use crate::cmd;
use crate::context::{Context, which};

/// Each program, its package, and what is skipped without it.
const BENCH: [(&str, &str, &str); 5] = [
    ("bpftrace", "bpftrace", "the comparison with bpftrace is skipped"),
    ("bpftool", "bpftool", "the kernel's own account of what the probes cost is skipped"),
    ("perf", "linux-perf", "the comparison with perf's uprobes is skipped"),
    ("nginx", "nginx", "the runs behind a proxy are skipped"),
    ("wrk", "wrk", "the runs under wrk are skipped"),
];

const CARGO_FUZZ_VERSION: &str = "0.13.2";

/// What fuzzing needs.
pub(crate) struct Fuzz {
    /// As rustup calls it.
    pub(crate) toolchain: String,
    /// cargo-fuzz.
    pub(crate) cargo_fuzz: PathBuf,
}

/// Other tracers and load generators.
pub(super) fn bench(report: &mut Report) {
    let absent: Vec<_> = BENCH.iter().filter(|(program, ..)| which(program).is_none()).collect();
    let mut remedy = String::new();
    if !absent.is_empty() {
        let packages: Vec<_> = absent.iter().map(|(_, package, _)| *package).collect();
        remedy = apt::install(report, &packages).err().map_or_else(
            || "its package was installed, but does not bring it: see the package's notes".into(),
            |error| format!("{error:#}"),
        );
    }
    for (program, _, without) in BENCH {
        if which(program).is_some() {
            report.have(program);
        } else {
            report.missing(program, remedy.clone(), without);
        }
    }
}

/// A nightly compiler and cargo-fuzz.
pub(super) fn fuzz(context: &Context, report: &mut Report) -> Option<Fuzz> {
    let without = "the parsers are not fuzzed";
    let toolchain = compiler::nightly().or_else(|| {
        let mut rustup = cmd::clean("rustup");
        rustup.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
        if which("rustup").is_some() {
            report.doing("asking rustup for a nightly");
            cmd::run(&mut rustup).ok()?;
        }
        compiler::nightly()
    });
    let Some(toolchain) = toolchain else {
        report.missing("a nightly compiler", "rustup toolchain install nightly", without);
        return None;
    };
    report.have(&toolchain);
    let built = context.tools().join("bin/cargo-fuzz");
    let cargo_fuzz = if built.is_file() { Some(built.clone()) } else { which("cargo-fuzz") };
    if let Some(cargo_fuzz) = cargo_fuzz {
        report.have("cargo-fuzz");
        return Some(Fuzz { toolchain, cargo_fuzz });
    }
    report.doing(format!("building cargo-fuzz {CARGO_FUZZ_VERSION} (a minute)"));
    let mut cargo = context.cargo();
    cargo
        .args(["install", "cargo-fuzz", "--version", CARGO_FUZZ_VERSION, "--locked", "--root"])
        .arg(context.tools());
    match cmd::run(&mut cargo) {
        Ok(()) => Some(Fuzz { toolchain, cargo_fuzz: built }),
        Err(error) => {
            report.missing("cargo-fuzz", format!("{error:#}"), without);
            None
        }
    }
}
