//! Packages of a Debian-like distribution.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};

use super::Report;
use crate::cmd;
use crate::context::which;

/// The lists are refreshed once per run, and only when something has to be installed.
static REFRESHED: OnceLock<bool> = OnceLock::new();

/// Installs packages without questions and without what they merely recommend. An error says what
/// a person has to do.
pub(super) fn install(report: &Report, packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if which("apt-get").is_none() {
        bail!("install what Debian calls {list}");
    }
    if !super::machine::is_root() {
        bail!("as root: apt-get install {list}");
    }
    report.doing(format!("installing {list}"));
    refresh(report);
    cmd::run(apt().args(["install", "--no-install-recommends", "--yes"]).args(packages))
}

/// Fetches a package into a folder without installing it.
pub(super) fn download(report: &Report, package: &str, folder: &Path) -> Result<PathBuf> {
    if which("apt-get").is_none() || which("dpkg-deb").is_none() {
        bail!("install what Debian calls {package}");
    }
    report.doing(format!("fetching the package {package}"));
    if super::machine::is_root() {
        refresh(report);
    }
    cmd::run(apt().current_dir(folder).args(["download", package]))?;
    let mut files = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    files
        .find(|file| file.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get left no package in {}", folder.display()))
}

fn refresh(report: &Report) {
    if !*REFRESHED.get_or_init(|| cmd::run(apt().arg("update")).is_ok()) {
        report.doing("the package lists could not be refreshed; going on with those that are here");
    }
}

/// apt-get that asks nothing, waits for another apt-get, and starts no service.
fn apt() -> std::process::Command {
    let mut apt = cmd::clean("apt-get");
    apt.args(["--quiet", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Packaged servers must not begin to listen on a developer's machine.
        .env("RUNLEVEL", "1");
    apt
}
