//! bpftrace counting launches at the function's symbol: what most people would use.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::throughput::Attached;
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

/// Programs that do nothing, at the tracepoints that every tracer of system calls and of the scheduler
/// needs.
pub struct Empty(Guard);

impl Empty {
    /// Starts it, and waits until it is attached.
    pub fn start() -> Result<Self> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let program = "tracepoint:raw_syscalls:sys_enter { } tracepoint:raw_syscalls:sys_exit { } \
                       tracepoint:sched:sched_switch { } tracepoint:sched:sched_waking { } \
                       interval:ms:100 { printf(\"attached\\n\"); }";
        let mut command = Command::new("bpftrace");
        let guard = Guard::spawn("bpftrace", command.args(["-e", program]))?;
        while guard.next_out("that it is attached", PATIENCE)?.trim() != "attached" {}
        Ok(Self(guard))
    }
}

impl Attached for Empty {
    fn detach(mut self) -> Result<()> {
        self.0.signal(Signal::INT);
        self.0.wait(Duration::from_secs(60))?;
        Ok(())
    }
}

/// Waits until no probe is in the process.
pub fn gone(pid: u32) -> Result<()> {
    until("the probes' end", Duration::from_secs(120), || {
        inserted(pid).ok().filter(|probes| *probes == 0).map(drop)
    })
}
