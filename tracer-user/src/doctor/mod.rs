//! `spanprobe doctor`: what this kernel, these rights and this target allow, and how to get the rest.
//!
//! It only reads, and asks the kernel with programs and maps that are attached to nothing and gone
//! at once. What it says of a target comes from the same code that traces one.

mod hooks;
mod kernel;
mod machine;
mod rights;
mod target;

pub use hooks::{Hook, Library};
pub use target::Target;

use serde::Serialize;

use crate::discover::process;

/// Version of the report's shape (`docs/doctor.md`).
pub const SCHEMA: u32 = 1;
/// Processes below the one that was asked for that are looked at.
const MAX_TARGETS: usize = 64;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Tracing works, and something is not seen or costs more.
    Degraded,
    /// Tracing does not work without it.
    Missing,
}

impl State {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: a name that stays.
    pub check: String,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What that means for whoever traces; always there where the state is not ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub means: Option<String>,
    /// What to do about it; always there where the state is not ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            state: State::Ok,
            found: found.into(),
            means: None,
            remedy: None,
        }
    }

    /// As it should be, and worth knowing.
    pub fn noted(
        check: impl Into<String>,
        found: impl Into<String>,
        means: impl Into<String>,
    ) -> Self {
        Self { means: Some(means.into()), ..Self::ok(check, found) }
    }

    /// Not as it should be.
    pub fn gap(
        state: State,
        check: impl Into<String>,
        found: impl Into<String>,
        means: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { state, remedy: Some(remedy.into()), ..Self::noted(check, found, means) }
    }
}

/// Findings about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// About what.
    pub name: &'static str,
    /// In the order in which they are read best.
    pub findings: Vec<Finding>,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the agent.
    pub spanprobe: String,
    /// The kernel's release.
    pub kernel: String,
    /// The worst state of all findings.
    pub state: State,
    /// The machine and the rights of whoever asks.
    pub machine: Vec<Group>,
    /// The process that was asked for and its children, their children and so on.
    pub targets: Vec<Target>,
    /// Processes below it that were not looked at, there being too many.
    pub targets_left_out: usize,
}

impl Report {
    /// A report of these findings.
    pub fn new(kernel: String, machine: Vec<Group>, targets: Vec<Target>) -> Self {
        let of_machine = machine.iter().flat_map(|group| &group.findings);
        let of_targets = targets.iter().flat_map(Target::all);
        let state = of_machine.chain(of_targets).map(|finding| finding.state).max();
        Self {
            schema: SCHEMA,
            spanprobe: env!("CARGO_PKG_VERSION").to_owned(),
            kernel,
            state: state.unwrap_or(State::Ok),
            machine,
            targets,
            targets_left_out: 0,
        }
    }
}

/// Looks at the machine, and at a process and its children; `None` where there is no such process.
/// `lock` says who is tracing already.
pub fn examine(pid: Option<u32>, lock: &Holder) -> Option<Report> {
    let pids = match pid {
        Some(pid) if !process::exists(pid) => return None,
        Some(pid) => {
            let mut pids = vec![pid];
            pids.extend(process::descendants(&[pid]));
            pids
        }
        None => Vec::new(),
    };
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let machine = machine::examine(&release, lock);
    let targets: Vec<_> =
        pids.iter().take(MAX_TARGETS).filter_map(|pid| target::examine(*pid)).collect();
    let mut report = Report::new(release, machine, targets);
    report.targets_left_out = pids.len().saturating_sub(MAX_TARGETS);
    // It ended meanwhile.
    (pid.is_none() || !report.targets.is_empty()).then_some(report)
}

/// Who holds the lock of those who trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A process, by its id where that is known.
    Process(Option<u32>),
    /// That cannot be told.
    Unknown(String),
}

#[cfg(test)]
mod tests;
