//! What tracing costs, and what is left out to keep to a budget: pure, costs in, a level out.

mod governor;

pub use governor::{Governor, Reading, Verdict};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a stretch of time cost: measured over a part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Length of the stretch, ns.
    pub stretch_ns: u64,
    /// Length of the part in which the kernel kept statistics, ns.
    pub part_ns: u64,
    /// Time spent in programs of each family within the part, ns.
    pub families: Vec<(&'static str, u64)>,
    /// Processor time of the agent itself, over the whole stretch, ns.
    pub agent_ns: u64,
    /// Processors of the machine.
    pub processors: usize,
}

/// What tracing has cost so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Seconds spent in the kernel's programs, by family: extrapolated from the parts measured.
    pub family_seconds: BTreeMap<String, f64>,
    /// Processor seconds of the agent itself.
    pub agent_seconds: f64,
    /// Both over the last stretch, in percent of the machine's processors.
    pub percent: f64,
    /// The budget in the same unit; 0: none.
    pub budget_percent: f64,
}

impl Costs {
    /// Adds a stretch; what it cost in processors.
    pub fn add(&mut self, measured: &Measured) -> Reading {
        let stretch_s = measured.stretch_ns as f64 / 1e9;
        let mut cores = 0.0;
        for (family, ns) in &measured.families {
            let used = *ns as f64 / measured.part_ns.max(1) as f64;
            cores += used;
            *self.family_seconds.entry((*family).to_owned()).or_default() += used * stretch_s;
        }
        let agent = measured.agent_ns as f64 / measured.stretch_ns.max(1) as f64;
        self.agent_seconds += agent * stretch_s;
        cores += agent;
        let machine = measured.processors as f64;
        self.percent = if machine > 0.0 { cores / machine * 100.0 } else { 0.0 };
        Reading { cores, machine, over_s: stretch_s }
    }
}

/// How the agent is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// For how long it has run, ns.
    pub uptime_ns: u64,
    /// Tracing is paused.
    pub paused: bool,
    /// Processes traced (to be traced, while it is paused).
    pub targets: u64,
    /// Requests that ended.
    pub requests: u64,
    /// Requests that are open.
    pub open: u64,
    /// Events taken in.
    pub events_seen: u64,
    /// Events lost.
    pub events_lost: u64,
    /// What tracing costs.
    pub cost: Costs,
    /// [`Level`] as a number: so much is left out to keep to the budget.
    pub level: u8,
    /// The same in words.
    pub left_out: String,
}

/// How much is left out. Each leaves out what the one before does, and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    #[default]
    Everything = 0,
    /// Payload beyond the first [`HEAD_BYTES`] of a call: heads only.
    Heads = 1,
    /// The scheduler: when threads ran and who woke them.
    NoScheduler = 2,
    /// The launches of kernels: their number. Waits for the GPU and copies are still seen.
    NoLaunches = 3,
    /// Everything: no probe is attached until a try shows that the budget allows it.
    Nothing = 4,
}

/// Payload that is taken per call where only heads are: those of API clients with a token, a user
/// agent and tracing context are 500 to 1,500 bytes.
pub const HEAD_BYTES: u32 = 2_048;

impl Level {
    /// Every level, the one that leaves out nothing first.
    pub const ALL: [Self; 5] =
        [Self::Everything, Self::Heads, Self::NoScheduler, Self::NoLaunches, Self::Nothing];

    /// As a number, as it is recorded.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The level with this number, the last one for higher ones.
    pub fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|level| level.number() == number).unwrap_or(Self::Nothing)
    }

    /// The next one, that leaves out more.
    pub fn more(self) -> Self {
        Self::from_number(self.number().saturating_add(1))
    }

    /// The one before, that leaves out less.
    pub fn less(self) -> Self {
        Self::from_number(self.number().saturating_sub(1))
    }

    /// Whether the scheduler is watched.
    pub fn sees_scheduler(self) -> bool {
        self < Self::NoScheduler
    }

    /// Whether launches of kernels are watched.
    pub fn sees_launches(self) -> bool {
        self < Self::NoLaunches
    }

    /// What is left out, in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Everything => "nothing is left out",
            Self::Heads => "payload beyond heads is left out",
            Self::NoScheduler => "the scheduler is left out: host time is not told apart",
            Self::NoLaunches => "the scheduler and launches of kernels are left out",
            Self::Nothing => "nothing is traced",
        }
    }
}
