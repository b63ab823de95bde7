//! A counting uprobe at an offset: perf's, or where there is no perf the kernel's own counter.
//!
//! bpftrace 0.17 (Debian's) refuses an offset within a function. Without perf, a uprobe event in a
//! tracing instance of its own whose recording is switched off counts its hits and does no more,
//! which is less than perf or `@ = count()` would do: the comparison then errs against spanprobe.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use crate::child::Guard;
use crate::clock::until;
use crate::probes::inserted;

const TRACEFS: &str = "/sys/kernel/tracing";

/// Whether there is a perf.
pub fn perf() -> bool {
    Command::new("perf").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The probe, while this lives.
pub struct Counter {
    group: String,
    instance: PathBuf,
    perf: Option<Guard>,
}

fn command(text: &str) -> Result<()> {
    let file = Path::new(TRACEFS).join("uprobe_events");
    let mut events =
        fs::OpenOptions::new().append(true).open(&file).context("opening uprobe_events")?;
    events.write_all(text.as_bytes()).with_context(|| text.to_owned())
}

impl Counter {
    /// Puts the probe at an offset of the file, and waits until it is in the process.
    pub fn start(library: &Path, offset: u64, pid: u32) -> Result<Self> {
        let group = format!("spanprobe_bench_{}", std::process::id());
        let instance = Path::new(TRACEFS).join("instances").join(&group);
        command(&format!("p:{group}/launch {}:{offset:#x}\n", library.display()))?;
        let mut counter = Self { group, instance, perf: None };
        if perf() {
            let event = format!("{}:launch", counter.group);
            let mut perf = Command::new("perf");
            perf.args(["stat", "-e", &event, "-p", &pid.to_string()]);
            counter.perf = Some(Guard::spawn("perf", &mut perf)?);
        } else {
            fs::create_dir(&counter.instance).context("a tracing instance")?;
            fs::write(counter.instance.join("tracing_on"), "0")?;
            counter.enable("1")?;
        }
        until("the counting uprobe", Duration::from_secs(30), || {
            inserted(pid).ok().filter(|probes| *probes > 0).map(drop)
        })?;
        Ok(counter)
    }

    fn enable(&self, value: &str) -> Result<()> {
        let file = self.instance.join("events").join(&self.group).join("launch/enable");
        fs::write(&file, value).with_context(|| file.display().to_string())
    }

    /// Ends it; hits.
    pub fn stop(mut self) -> Result<u64> {
        let hits = match &mut self.perf {
            Some(perf) => {
                perf.signal(Signal::INT);
                perf.wait(Duration::from_secs(30))?;
                let text = perf.err();
                let line = text.lines().find(|line| line.contains(":launch"));
                line.and_then(|line| line.split_whitespace().next().map(str::to_owned))
            }
            None => {
                let profile = fs::read_to_string(Path::new(TRACEFS).join("uprobe_profile"))?;
                // File, event, hits.
                profile
                    .lines()
                    .map(|line| line.split_whitespace().collect::<Vec<_>>())
                    .find(|fields| fields.get(1) == Some(&"launch"))
                    .and_then(|fields| fields.get(2).map(|hits| (*hits).to_owned()))
            }
        };
        let digits: String =
            hits.context("no count")?.chars().filter(char::is_ascii_digit).collect();
        digits.parse().context("an odd count")
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // What cannot be taken back is the kernel's until the next boot.
        if self.perf.take().is_none() {
            let _ = self.enable("0");
            let _ = fs::remove_dir(&self.instance);
        }
        // Events whose last user is only just gone are busy for a moment.
        let _ = until("the event's end", Duration::from_secs(10), || {
            command(&format!("-:{}/launch\n", self.group)).ok()
        });
    }
}
