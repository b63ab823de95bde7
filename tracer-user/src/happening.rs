//! The event log: what happened beside the requests. One line each, in time, for people, JSON lines
//! and OTLP logs alike.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Happenings that wait for whoever writes them down; beyond, the oldest go and are counted.
const MAX_WAITING: usize = 4_096;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// spanprobe began to trace.
    AgentStart,
    /// It ended.
    AgentStop,
    /// A process is traced from now on.
    ProcessStart,
    /// It has ended.
    ProcessExit,
    /// Something was lost on the way from the kernel, or evicted.
    Loss,
    /// Detail or probes were given up to keep to the cost budget, or came back.
    CostShed,
    /// Tracing was paused by hand.
    Paused,
    /// It was resumed.
    Resumed,
    /// The GPU's driver reported an XID.
    Xid,
    /// An ECC error.
    Ecc,
    /// Clocks are held down.
    ThrottleBegin,
    /// They no longer are.
    ThrottleEnd,
    /// Device memory ran out.
    OutOfMemory,
    /// Another process uses the GPU.
    NeighbourBegin,
    /// It no longer does.
    NeighbourEnd,
}

impl Kind {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AgentStart => "agent-start",
            Self::AgentStop => "agent-stop",
            Self::ProcessStart => "process-start",
            Self::ProcessExit => "process-exit",
            Self::Loss => "loss",
            Self::CostShed => "cost-shed",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Xid => "xid",
            Self::Ecc => "ecc",
            Self::ThrottleBegin => "throttle-begin",
            Self::ThrottleEnd => "throttle-end",
            Self::OutOfMemory => "out-of-memory",
            Self::NeighbourBegin => "neighbour-begin",
            Self::NeighbourEnd => "neighbour-end",
        }
    }
}

/// One line of the event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// When, ns since the Unix epoch.
    pub unix_ns: u64,
    /// What.
    pub kind: Kind,
    /// In words.
    pub text: String,
    /// Process, where it concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Name of its executable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// UUID of the GPU, where it concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
}

impl Happening {
    /// Something that concerns no process and no GPU.
    pub fn new(unix_ns: u64, kind: Kind, text: impl Into<String>) -> Self {
        Self { unix_ns, kind, text: text.into(), pid: None, service: None, gpu: None }
    }
}

/// Happenings on their way to those who write them down.
#[derive(Debug, Default)]
pub struct Happenings {
    waiting: VecDeque<Happening>,
    evicted: u64,
}

impl Happenings {
    /// Adds one.
    pub fn add(&mut self, happening: Happening) {
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_front();
            self.evicted += 1;
        }
        self.waiting.push_back(happening);
    }

    /// Hands out what waits, the oldest first.
    pub fn take(&mut self) -> Vec<Happening> {
        self.waiting.drain(..).collect()
    }

    /// What went before anybody took it.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_cap_the_oldest_go_and_are_counted() {
        let mut happenings = Happenings::default();
        for n in 0..=MAX_WAITING as u64 {
            happenings.add(Happening::new(n, Kind::Loss, "x"));
        }
        assert_eq!(happenings.evicted(), 1);
        let taken = happenings.take();
        assert_eq!((taken.len(), taken.first().map(|h| h.unix_ns)), (MAX_WAITING, Some(1)));
        assert!(happenings.take().is_empty());
    }

    #[test]
    fn json_names_are_those_of_the_words() {
        let line = serde_json::to_value(Happening::new(1, Kind::ThrottleBegin, "hot")).ok();
        assert_eq!(
            line,
            Some(serde_json::json!({"unix_ns": 1, "kind": "throttle-begin", "text": "hot"}))
        );
    }
}
