//! What enters the agent, in the one form that is recorded, replayed and handled.
//!
//! Everything that a timeline depends on comes in as an [`Input`]: nothing behind this door asks
//! the kernel, `/proc` or a clock. So the same inputs give the same timelines, live or replayed.

use serde::{Deserialize, Serialize};

use super::event::{Losses, ProcFact};
use crate::nvml::Told;

/// One thing that entered, borrowed from whoever holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input<'a> {
    /// The session begins: always the first input.
    Start(&'a SessionStart),
    /// One record of the ring, in wire layout.
    Record(&'a [u8]),
    /// An answer that `/proc` gave.
    Fact {
        /// Time of the asking, ns of `CLOCK_MONOTONIC`.
        time_ns: u64,
        /// The answer.
        fact: &'a ProcFact,
    },
    /// Events were lost since the last such input.
    Losses {
        /// When the counters were read, ns of `CLOCK_MONOTONIC`.
        time_ns: u64,
        /// What was added to them.
        losses: Losses,
    },
    /// Something that NVML told. It has its time in itself and keeps no order with the rest.
    Nvml {
        /// When it was told, ns of `CLOCK_MONOTONIC`.
        time_ns: u64,
        /// What.
        told: &'a Told,
    },
    /// Time has passed, and everything that the ring held at that time has been handed in.
    Tick {
        /// ns of `CLOCK_MONOTONIC`, read before the ring was drained.
        now_ns: u64,
    },
}

/// What holds for the whole session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStart {
    /// [`tracer_ebpf::wire::WIRE_VERSION`] of the records.
    pub wire_version: u32,
    /// Name of the host.
    pub host: String,
    /// The kernel's random id of this boot.
    pub boot_id: String,
    /// Release of the kernel, as `uname -r` says it.
    pub kernel: String,
    /// Begin of the session, ns of `CLOCK_MONOTONIC`.
    pub started_monotonic_ns: u64,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` at that time, ns.
    pub realtime_offset_ns: i64,
    /// Seed of the trace ids that the agent makes up.
    pub seed: [u8; 16],
    /// Clock ticks per second (`sysconf(_SC_CLK_TCK)`), the unit of times in `/proc/<pid>/stat`.
    pub clock_ticks_per_s: u64,
    /// Version of the agent that traced.
    pub spanprobe_version: String,
    /// How the targets were chosen, one option of the command line each.
    pub selectors: Vec<String>,
}
