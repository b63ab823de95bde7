//! What changed between two samples, as lines of the event log: clocks held down and let go, memory
//! errors, neighbours that come and go, XIDs.
//!
//! A reading that failed says nothing: what was known before stays until the next that did not.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    reading::Reading,
    told::{Sample, Told},
};
use crate::happening::Kind;

/// Devices that are watched.
const MAX_DEVICES: usize = 256;

/// Reasons that hold clocks down against the operator's will: bits of `nvmlClocksThrottleReasons`.
/// Being idle, clocks set by hand and displays are not among them.
pub const THROTTLES: [(u64, &str); 5] = [
    (0x04, "power limit (software)"),
    (0x08, "hardware slowdown"),
    (0x20, "heat (software)"),
    (0x40, "heat (hardware)"),
    (0x80, "power brake (hardware)"),
];

/// What XIDs mean: NVIDIA's catalogue, those that servers meet.
const XIDS: [(u64, &str); 18] = [
    (13, "graphics engine exception"),
    (31, "memory page fault: an address that is not mapped"),
    (32, "invalid or corrupted push buffer"),
    (43, "the GPU stopped processing: a reset of the program"),
    (45, "work removed before its end"),
    (48, "double bit ECC error"),
    (61, "internal micro-controller breakpoint"),
    (62, "internal micro-controller halt"),
    (63, "page retirement or row remapping recorded"),
    (64, "page retirement or row remapping failed"),
    (74, "NVLink error"),
    (79, "the GPU has fallen off the bus"),
    (92, "high rate of single bit ECC errors"),
    (94, "contained ECC error"),
    (95, "uncontained ECC error"),
    (109, "context switch timeout"),
    (119, "the GPU's system processor does not answer"),
    (120, "the GPU's system processor failed"),
];

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When, ns of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// What kind.
    pub kind: Kind,
    /// In words.
    pub text: String,
    /// UUID of the device.
    pub gpu: String,
    /// Process, where it concerns one.
    pub pid: Option<u32>,
}

/// Remembers the state of each device.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    devices: BTreeMap<String, Before>,
}

#[derive(Clone, Debug, Default)]
struct Before {
    throttled: u64,
    corrected: Option<u64>,
    uncorrected: Option<u64>,
    neighbours: BTreeSet<u32>,
}

/// What an XID means, where it is one that servers meet.
pub fn xid_text(xid: u64) -> &'static str {
    XIDS.iter().find(|(number, _)| *number == xid).map_or("see NVIDIA's catalogue", |(_, t)| *t)
}

impl Watch {
    /// Takes in what was told; `traced` says which processes are.
    pub fn take(
        &mut self,
        time_ns: u64,
        told: &Told,
        traced: impl Fn(u32) -> bool,
        out: &mut Vec<Change>,
    ) {
        match told {
            Told::Devices(devices) => {
                self.devices.retain(|uuid, _| devices.iter().any(|device| device.uuid == *uuid));
            }
            Told::Xid { uuid, xid } => out.push(Change {
                time_ns,
                kind: Kind::Xid,
                text: format!("XID {xid}: {}", xid_text(*xid)),
                gpu: uuid.clone(),
                pid: None,
            }),
            Told::Sample(sample) => {
                if self.devices.len() >= MAX_DEVICES && !self.devices.contains_key(&sample.uuid) {
                    return;
                }
                let before = self.devices.entry(sample.uuid.clone()).or_default();
                before.throttling(sample, out);
                before.errors(sample, out);
                before.neighbours(sample, traced, out);
            }
        }
    }
}

impl Before {
    fn throttling(&mut self, sample: &Sample, out: &mut Vec<Change>) {
        let Some(now) = sample.state(Reading::ThrottleReasons).value() else { return };
        for (bit, what) in THROTTLES {
            let kind = match (self.throttled & bit != 0, now & bit != 0) {
                (false, true) => Kind::ThrottleBegin,
                (true, false) => Kind::ThrottleEnd,
                _ => continue,
            };
            let text = match kind {
                Kind::ThrottleBegin => format!("clocks are held down: {what}"),
                _ => format!("clocks are no longer held down: {what}"),
            };
            out.push(change(sample, kind, text, None));
        }
        self.throttled = now;
    }

    /// The first counts are where counting begins; a lower one is a driver loaded anew.
    fn errors(&mut self, sample: &Sample, out: &mut Vec<Change>) {
        let rows = [
            (Reading::EccCorrected, &mut self.corrected, "corrected"),
            (Reading::EccUncorrected, &mut self.uncorrected, "uncorrected"),
        ];
        for (reading, before, what) in rows {
            let Some(now) = sample.state(reading).value() else { continue };
            if let Some(more) = before.and_then(|before| now.checked_sub(before)).filter(|n| *n > 0)
            {
                let text =
                    format!("{more} {what} memory errors, {now} since the driver was loaded");
                out.push(change(sample, Kind::Ecc, text, None));
            }
            *before = Some(now);
        }
    }

    /// A neighbour uses the device beside a traced process.
    fn neighbours(&mut self, sample: &Sample, traced: impl Fn(u32) -> bool, out: &mut Vec<Change>) {
        let Some(list) = sample.processes.list() else { return };
        let ours = list.iter().any(|process| traced(process.pid));
        let now: BTreeSet<u32> =
            list.iter().map(|process| process.pid).filter(|pid| ours && !traced(*pid)).collect();
        for pid in now.difference(&self.neighbours) {
            let text = "a process that is not traced uses the GPU beside one that is";
            out.push(change(sample, Kind::NeighbourBegin, text.to_owned(), Some(*pid)));
        }
        for pid in self.neighbours.difference(&now) {
            let text = if list.iter().any(|process| process.pid == *pid) {
                "it is traced now, or no traced process uses the GPU any more"
            } else {
                "it no longer uses the GPU"
            };
            out.push(change(sample, Kind::NeighbourEnd, text.to_owned(), Some(*pid)));
        }
        self.neighbours = now;
    }
}

fn change(sample: &Sample, kind: Kind, text: String, pid: Option<u32>) -> Change {
    Change { time_ns: sample.time_ns, kind, text, gpu: sample.uuid.clone(), pid }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
