//! A Prometheus server that tests let scrape the agent. Its package is unpacked, not installed: no
//! service, no user, nothing that listens.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::{Report, apt};
use crate::cmd;
use crate::context::{Context, which};

const WITHOUT: &str = "the tests with a real Prometheus are skipped";

/// The server's program.
pub(super) fn ensure(context: &Context, report: &mut Report) -> Option<PathBuf> {
    let folder = context.tools().join("prometheus");
    let unpacked = folder.join("usr/bin/prometheus");
    // A machine's own is as good.
    if let Some(found) =
        [unpacked.clone()].into_iter().find(|p| p.is_file()).or(which("prometheus"))
    {
        report.have("prometheus");
        return Some(found);
    }
    match unpack(&folder, report) {
        Ok(()) if unpacked.is_file() => Some(unpacked),
        Ok(()) => {
            report.missing("prometheus", "its package does not bring it: install it", WITHOUT);
            None
        }
        Err(error) => {
            report.missing("prometheus", format!("{error:#}"), WITHOUT);
            None
        }
    }
}

fn unpack(folder: &Path, report: &Report) -> Result<()> {
    // What an interrupted attempt left.
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder)?;
    let package = apt::download(report, "prometheus", folder)?;
    cmd::run(cmd::clean("dpkg-deb").arg("--extract").arg(&package).arg(folder))?;
    fs::remove_file(&package).context("removing the package once it is unpacked")
}
