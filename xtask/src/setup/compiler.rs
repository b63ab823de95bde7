//! The kernel half's compiler. There are two ways to one:
//!
//! - **the distribution's**: Debian packages a compiler together with `core` compiled for BPF, and
//!   the LLVM that it uses; bpf-linker is built against that LLVM. Nothing comes from rustup.
//! - **nightly**: rustup's nightly with `rust-src` compiles `core` itself. bpf-linker must be on
//!   the path, or be buildable against an LLVM of that nightly's version.
//!
//! Whichever is complete is taken. Otherwise the one that lacks less is completed, then the other
//! is tried. Either way the linker's LLVM must not be older than the compiler's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Report, apt};
use crate::cmd;
use crate::context::{Context, which};

const LINKER_VERSION: &str = "0.13.0";
/// The LLVM versions that this bpf-linker can be built against.
const LINKER_LLVM: std::ops::RangeInclusive<u32> = 21..=23;
const TARGET: &str = "bpfel-unknown-none";
const DISTRIBUTION_RUSTC: &str = "/usr/bin/rustc";
const DISTRIBUTION_PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];

/// A compiler for the kernel half, complete.
pub(crate) enum KernelToolchain {
    /// The distribution's compiler, which has `core` for BPF.
    Distribution {
        /// The compiler.
        rustc: PathBuf,
        /// bpf-linker.
        linker: PathBuf,
    },
    /// A rustup toolchain that compiles `core` from source.
    Nightly {
        /// As rustup calls it.
        name: String,
        /// bpf-linker.
        linker: PathBuf,
    },
}

impl KernelToolchain {
    /// bpf-linker, of an LLVM that reads what the compiler writes.
    pub(crate) fn linker(&self) -> &Path {
        match self {
            Self::Distribution { linker, .. } | Self::Nightly { linker, .. } => linker,
        }
    }
}

/// Finds a complete toolchain or completes one; the error names both remedies.
pub(super) fn ensure(context: &Context, report: &Report) -> Result<KernelToolchain, String> {
    let nightly = nightly();
    let with_source = nightly.as_deref().filter(|name| has_source(name));
    if has_core(Path::new(DISTRIBUTION_RUSTC))
        && let Ok(found) = distribution(context, report, false)
    {
        return Ok(found);
    }
    if let Some(name) = with_source
        && let Ok(found) = with_nightly(context, report, name, false)
    {
        return Ok(found);
    }
    report.doing("no complete compiler for the kernel half yet");
    let complete_nightly = || {
        let name = match (with_source, &nightly) {
            (Some(name), _) => name.to_owned(),
            (None, name) => install_nightly(report, name.as_deref())?,
        };
        with_nightly(context, report, &name, true)
    };
    let complete_distribution = || distribution(context, report, true);
    let (first, second): (&dyn Fn() -> Result<_>, &dyn Fn() -> Result<_>) =
        if with_source.is_some() || which("apt-get").is_none() {
            (&complete_nightly, &complete_distribution)
        } else {
            (&complete_distribution, &complete_nightly)
        };
    let attempt = |route: &dyn Fn() -> Result<KernelToolchain>| {
        route().map_err(|error| {
            let error = format!("{error:#}");
            report.doing(&error);
            error
        })
    };
    attempt(first).or_else(|one| {
        attempt(second).map_err(|other| {
            format!(
                "no compiler for the kernel half. Either of these would do:\n  \
                 - {one}\n  - {other}\n\
                 Then run `cargo xtask setup` again. Without it nothing but `cargo xtask tidy` \
                 and `cargo xtask fuzz` works."
            )
        })
    })
}

/// The distribution's compiler with a linker; installed when `install`.
fn distribution(context: &Context, report: &Report, install: bool) -> Result<KernelToolchain> {
    let rustc = PathBuf::from(DISTRIBUTION_RUSTC);
    if install && !has_core(&rustc) {
        apt::install(report, &DISTRIBUTION_PACKAGES)?;
    }
    ensure!(has_core(&rustc), "{DISTRIBUTION_RUSTC} has no `core` for {TARGET}");
    let version = Version::of(Command::new(&rustc).arg("-vV"))?;
    let built = context.tools().join("bin/bpf-linker");
    if is_built_for(context, version.llvm) && linker_runs(&built) {
        report.have(format!("{} with `core` for BPF, and bpf-linker", version.text));
        return Ok(KernelToolchain::Distribution { rustc, linker: built });
    }
    ensure!(install, "no bpf-linker for LLVM {}", version.llvm);
    build_linker(context, report, &version)?;
    Ok(KernelToolchain::Distribution { rustc, linker: built })
}

/// A nightly that has `rust-src`, with a linker; built when `install`.
fn with_nightly(
    context: &Context,
    report: &Report,
    name: &str,
    install: bool,
) -> Result<KernelToolchain> {
    let version = Version::of(cmd::clean("rustup").args(["run", name, "rustc", "-vV"]))?;
    let built = context.tools().join("bin/bpf-linker");
    let found = match which("bpf-linker") {
        // Which LLVM a linker of unknown origin has, it does not say. Recent ones follow nightly.
        Some(linker) if linker_runs(&linker) => Some(linker),
        _ => (is_built_for(context, version.llvm) && linker_runs(&built)).then(|| built.clone()),
    };
    let linker = match found {
        Some(linker) => linker,
        None if install => {
            build_linker(context, report, &version).context(
                "or bring a bpf-linker that fits the nightly: `cargo binstall bpf-linker`",
            )?;
            built
        }
        None => bail!("no bpf-linker for LLVM {}", version.llvm),
    };
    report.have(format!("{} ({name}) with rust-src, and bpf-linker", version.text));
    Ok(KernelToolchain::Nightly { name: name.to_owned(), linker })
}

/// Builds bpf-linker against the LLVM that the compiler uses.
fn build_linker(context: &Context, report: &Report, version: &Version) -> Result<()> {
    let llvm = version.llvm;
    ensure!(
        LINKER_LLVM.contains(&llvm),
        "{} uses LLVM {llvm}; bpf-linker {LINKER_VERSION} needs {} to {} (on Debian, enable the \
         security updates, which bring a newer one)",
        version.text,
        LINKER_LLVM.start(),
        LINKER_LLVM.end()
    );
    let prefix = PathBuf::from(format!("/usr/lib/llvm-{llvm}"));
    let llvm_dev = format!("llvm-{llvm}-dev");
    let mut packages = Vec::new();
    if !prefix.join("include/llvm-c/Core.h").is_file() {
        packages.push(llvm_dev.as_str());
    }
    if !has_cxx_library() {
        packages.push("g++");
    }
    if !packages.is_empty() {
        apt::install(report, &packages)?;
    }
    report.doing(format!("building bpf-linker {LINKER_VERSION} for LLVM {llvm} (two minutes)"));
    let library = prefix.join("lib");
    let library = library.display();
    let mut cargo = context.cargo();
    cargo
        .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force"])
        .args(["--no-default-features", "--features", &format!("llvm-{llvm}")])
        .arg("--root")
        .arg(context.tools())
        .env("LLVM_PREFIX", &prefix)
        .env("RUSTFLAGS", format!("-L native={library} -C link-arg=-Wl,-rpath,{library}"))
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    cmd::run(&mut cargo)?;
    let built = context.tools().join("bin/bpf-linker");
    ensure!(linker_runs(&built), "{} was built but does not run", built.display());
    Ok(())
}

/// Whether the linker among our tools was built for this LLVM, by cargo's own account.
fn is_built_for(context: &Context, llvm: u32) -> bool {
    let record = fs::read_to_string(context.tools().join(".crates2.json")).unwrap_or_default();
    records_linker(&record, llvm)
}

/// Looks for bpf-linker and its one feature in cargo's record of installed programs.
fn records_linker(record: &str, llvm: u32) -> bool {
    record
        .split_once(&format!("\"bpf-linker {LINKER_VERSION} "))
        .and_then(|(_, rest)| rest.split_once("\"features\":["))
        .and_then(|(_, rest)| rest.split_once(']'))
        .is_some_and(|(features, _)| features == format!("\"llvm-{llvm}\""))
}

fn linker_runs(linker: &Path) -> bool {
    cmd::succeeds(Command::new(linker).arg("--version"))
}

/// Whether C++'s library can be linked, which LLVM needs.
fn has_cxx_library() -> bool {
    let found = cmd::output(cmd::clean("cc").arg("-print-file-name=libstdc++.so"));
    found.is_ok_and(|path| Path::new(path.trim()).is_absolute())
}

/// Whether this compiler comes with `core` for BPF.
fn has_core(rustc: &Path) -> bool {
    let ask = ["--print", "target-libdir", "--target", TARGET];
    let Ok(folder) = cmd::output(cmd::clean(rustc).args(ask)) else { return false };
    fs::read_dir(folder.trim()).is_ok_and(|files| {
        files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libcore-"))
    })
}

/// The nightly that rustup has, by its name.
pub(super) fn nightly() -> Option<String> {
    let list = cmd::output(cmd::clean("rustup").args(["toolchain", "list"])).ok()?;
    let name = list.lines().find(|line| line.starts_with("nightly"))?;
    name.split_whitespace().next().map(str::to_owned)
}

/// Whether the nightly has the source of `core`.
fn has_source(name: &str) -> bool {
    let which = cmd::output(cmd::clean("rustup").args(["which", "--toolchain", name, "rustc"]));
    which.is_ok_and(|rustc| {
        let toolchain = Path::new(rustc.trim()).parent().and_then(Path::parent);
        toolchain.is_some_and(|folder| {
            folder.join("lib/rustlib/src/rust/library/core/Cargo.toml").is_file()
        })
    })
}

/// Has rustup bring a nightly, or the source to the one that is there.
fn install_nightly(report: &Report, present: Option<&str>) -> Result<String> {
    let by_hand = "with rustup: rustup toolchain install nightly --component rust-src";
    ensure!(which("rustup").is_some(), "{by_hand}");
    let mut rustup = cmd::clean("rustup");
    match present {
        Some(name) => rustup.args(["component", "add", "rust-src", "--toolchain", name]),
        None => rustup
            .args(["toolchain", "install", "nightly", "--profile", "minimal"])
            .args(["--component", "rust-src"]),
    };
    report.doing("asking rustup for a nightly with rust-src");
    cmd::run(&mut rustup).context(by_hand)?;
    nightly().context(by_hand)
}

/// What a compiler says of itself.
struct Version {
    /// Its first line.
    text: String,
    /// Major version of its LLVM.
    llvm: u32,
}

impl Version {
    fn of(ask: &mut Command) -> Result<Self> {
        let said = cmd::output(ask)?;
        Self::parse(&said).with_context(|| format!("`{}` names no LLVM version", cmd::show(ask)))
    }

    fn parse(said: &str) -> Option<Self> {
        let text = said.lines().next()?.split(" (").next()?.to_owned();
        let llvm = said.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
        let llvm = llvm.split('.').next()?.parse().ok()?;
        Some(Self { text, llvm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_s_llvm_is_read() {
        let said = "rustc 1.96.0 (ac68faa20 2026-05-25)\nhost: x86_64\nLLVM version: 22.1.8\n";
        let version = Version::parse(said).unwrap();
        assert_eq!((version.text.as_str(), version.llvm), ("rustc 1.96.0", 22));
        assert!(Version::parse("rustc 1.96.0\n").is_none());
    }

    #[test]
    fn cargo_s_record_of_the_linker_is_read() {
        let record = r#"{"installs":{"bpf-linker 0.13.0 (registry)":{"version_req":"=0.13.0",
            "bins":["bpf-linker"],"features":["llvm-22"],"all_features":false}}}"#;
        assert!(records_linker(record, 22));
        assert!(!records_linker(record, 23));
        assert!(!records_linker("", 22));
    }
}
