//! bpftrace counting launches at the function's symbol: what most people would use.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use crate::child::Guard;
use crate::clock::until;
use crate::probes::inserted;

/// Whether there is one.
pub fn version() -> Option<String> {
    let output = Command::new("bpftrace").arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `uprobe:LIBRARY:cuLaunchKernel { @ = count(); }` while this lives.
pub struct Counting {
    guard: Guard,
    pid: u32,
}

impl Counting {
    /// Starts it, and waits until its probe is in the process.
    pub fn start(library: &Path, pid: u32) -> Result<Self> {
        let program = format!("uprobe:{}:cuLaunchKernel {{ @ = count(); }}", library.display());
        let mut command = Command::new("bpftrace");
        let guard = Guard::spawn("bpftrace", command.args(["-e", &program]))?;
        until("bpftrace's probe", Duration::from_secs(60), || {
            inserted(pid).ok().filter(|probes| *probes > 0).map(drop)
        })?;
        Ok(Self { guard, pid })
    }

    /// Ends it, and waits until its probe is gone.
    pub fn stop(mut self) -> Result<()> {
        self.guard.signal(Signal::INT);
        self.guard.wait(Duration::from_secs(60))?;
        gone(self.pid)
    }
}

/// Waits until no probe is in the process.
pub fn gone(pid: u32) -> Result<()> {
    until("the probes' end", Duration::from_secs(120), || {
        inserted(pid).ok().filter(|probes| *probes == 0).map(drop)
    })
}
