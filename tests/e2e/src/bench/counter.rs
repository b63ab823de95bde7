//! A counting uprobe at an offset, by tracefs: the kernel's own counter and nothing else.
//!
//! bpftrace 0.17 (Debian's) refuses an offset within a function. A uprobe event in a tracing
//! instance of its own whose recording is switched off counts its hits and does no more, which is
//! less than `@ = count()` would do: the comparison errs against spanprobe.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

const TRACEFS: &str = "/sys/kernel/tracing";

/// The probe, while this lives.
pub struct Counter {
    group: String,
    instance: PathBuf,
}

fn command(text: &str) -> Result<()> {
    let file = Path::new(TRACEFS).join("uprobe_events");
    let mut events =
        fs::OpenOptions::new().append(true).open(&file).context("opening uprobe_events")?;
    events.write_all(text.as_bytes()).with_context(|| text.to_owned())
}

impl Counter {
    /// Puts the probe at an offset of the file.
    pub fn start(library: &Path, offset: u64) -> Result<Self> {
        let group = format!("spanprobe_bench_{}", std::process::id());
        let instance = Path::new(TRACEFS).join("instances").join(&group);
        command(&format!("p:{group}/launch {}:{offset:#x}\n", library.display()))?;
        let counter = Self { group, instance };
        fs::create_dir(&counter.instance).context("a tracing instance")?;
        fs::write(counter.instance.join("tracing_on"), "0")?;
        counter.enable("1")?;
        Ok(counter)
    }

    fn enable(&self, value: &str) -> Result<()> {
        let file = self.instance.join("events").join(&self.group).join("launch/enable");
        fs::write(&file, value).with_context(|| file.display().to_string())
    }

    /// Hits so far.
    pub fn hits(&self) -> Option<u64> {
        let profile = fs::read_to_string(Path::new(TRACEFS).join("uprobe_profile")).ok()?;
        // File, event, hits.
        let line = profile.lines().find(|line| line.split_whitespace().nth(1) == Some("launch"))?;
        line.split_whitespace().nth(2)?.parse().ok()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // What cannot be taken back is the kernel's until the next boot.
        let _ = self.enable("0");
        let _ = fs::remove_dir(&self.instance);
        let _ = command(&format!("-:{}/launch\n", self.group));
    }
}
