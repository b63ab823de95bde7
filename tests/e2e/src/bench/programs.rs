//! The kernel's own statistics of eBPF programs: how often each ran, and for how long.

use std::collections::HashMap;
use std::fs;
use std::ops::{AddAssign, Sub};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tracer_user::probe::program_names;

use super::bpftrace;
use crate::child::Guard;
use crate::clock::until;

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The statistics, on while this lives.
pub(super) struct Statistics(String);

impl Statistics {
    /// Whether this kernel has them.
    pub(super) fn exist() -> bool {
        Path::new(STATISTICS).exists()
    }

    /// Turns them on.
    pub(super) fn on() -> Result<Self> {
        let before = fs::read_to_string(STATISTICS).context("kernel.bpf_stats_enabled")?;
        fs::write(STATISTICS, "1")?;
        Ok(Self(before))
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // As it was; where that fails the kernel keeps counting, which costs little.
        let _ = fs::write(STATISTICS, self.0.trim());
    }
}

/// What programs have cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Time in them, ns.
    pub ns: u64,
    /// Runs.
    pub runs: u64,
}

impl Cost {
    /// ns of a run.
    pub(super) fn per_run(self) -> f64 {
        self.ns as f64 / self.runs.max(1) as f64
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.ns += other.ns;
        self.runs += other.runs;
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { ns: self.ns.saturating_sub(before.ns), runs: self.runs.saturating_sub(before.runs) }
    }
}

/// The programs that a process holds.
#[derive(Debug, Default)]
pub(super) struct Programs(HashMap<String, Cost>);

impl Programs {
    /// As they stand.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let mut costs = HashMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
            // A descriptor may have been closed meanwhile.
            let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
            let field = |name: &str| -> Option<u64> {
                text.lines()
                    .find_map(|line| line.strip_prefix(name))
                    .and_then(|value| value.trim().parse().ok())
            };
            // A link names its program too, without its statistics.
            if let (Some(id), Some(ns), Some(runs)) =
                (field("prog_id:"), field("run_time_ns:"), field("run_cnt:"))
            {
                costs.insert(id, Cost { ns, runs });
            }
        }
        let mut named: HashMap<String, Cost> = HashMap::new();
        for (id, name) in program_names() {
            if let Some(cost) = costs.get(&u64::from(id)) {
                *named.entry(name).or_default() += *cost;
            }
        }
        Ok(Self(named))
    }

    /// Cost of those whose name begins with one of these. The kernel keeps 15 bytes of a name.
    pub(super) fn cost(&self, prefixes: &[&str]) -> Cost {
        let mut sum = Cost::default();
        for (name, cost) in &self.0 {
            if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                sum += *cost;
            }
        }
        sum
    }

    /// Cost of all.
    pub(super) fn all(&self) -> Cost {
        self.cost(&[""])
    }
}

/// What the statistics say of a program that does nothing, ns per run: their own cost, which is part
/// of every other figure. `None` without bpftrace.
pub(super) fn empty_ns() -> Result<Option<f64>> {
    const SECONDS: Duration = Duration::from_secs(1);
    if bpftrace::version().is_none() {
        return Ok(None);
    }
    let mut command = Command::new("bpftrace");
    let guard =
        Guard::spawn("bpftrace", command.args(["-e", "tracepoint:raw_syscalls:sys_enter { }"]))?;
    let all = || Programs::of(guard.pid()).map(|programs| programs.all());
    let before = until("an empty program", Duration::from_secs(60), || {
        all().ok().filter(|cost| cost.runs > 0)
    })?;
    // Something has to make calls.
    let begun = std::time::Instant::now();
    while begun.elapsed() < SECONDS {
        fs::metadata(STATISTICS)?;
    }
    Ok(Some((all()? - before).per_run()))
}
