//! The latest samples of each device, and which of them belongs to a request.
//!
//! A sample is coarser than a request: it is joined by overlap, the newest one that had been taken
//! when the request's GPU time (or the request) ended, and each reading says how old it was then.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::{Serialize, Serializer, ser::SerializeMap as _};

use super::{
    reading::{Reading, State, Taken},
    told::{Device, Listed, Sample, Told},
};

/// Devices that are kept, instances included.
const MAX_DEVICES: usize = 256;
/// Samples kept of each. A timeline is built a second after the request's end, so these reach back
/// far enough at the shortest interval.
const MAX_SAMPLES: usize = 64;
/// Processes kept of a sample.
pub const MAX_PROCESSES: usize = 1_024;
/// Longest UUID, name and bus address taken from a session file, bytes: NVML's buffers are of 96.
const MAX_TEXT: usize = 96;
/// Processes whose visible devices are kept.
const MAX_VISIBLE: usize = 4_096;

/// A device and what it said last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Which.
    pub device: Device,
    /// Its latest sample.
    pub sample: Option<Arc<Sample>>,
    /// XIDs since tracing began.
    pub xids: u64,
}

/// What every device said last: for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The devices, in the order of their UUIDs.
    pub gpus: Vec<Gpu>,
}

/// What is known of the devices.
#[derive(Clone, Debug, Default)]
pub struct History {
    known: BTreeMap<String, Known>,
    /// `CUDA_VISIBLE_DEVICES` by process.
    visible: BTreeMap<u32, String>,
    left_out: u64,
}

#[derive(Clone, Debug)]
struct Known {
    device: Device,
    samples: VecDeque<Arc<Sample>>,
    xids: u64,
}

impl History {
    /// Takes in what was told.
    pub fn take(&mut self, told: &Told) {
        match told {
            Told::Devices(devices) => self.devices(devices),
            Told::Sample(sample) => {
                let Some(known) = self.known.get_mut(&sample.uuid) else { return };
                if known.samples.len() >= MAX_SAMPLES {
                    known.samples.pop_front();
                }
                known.samples.push_back(Arc::new(bounded(sample)));
            }
            Told::Xid { uuid, .. } => {
                if let Some(known) = self.known.get_mut(uuid) {
                    known.xids += 1;
                }
            }
        }
    }

    fn devices(&mut self, devices: &[Device]) {
        let mut before = std::mem::take(&mut self.known);
        for device in devices {
            let texts = [&device.uuid, &device.name, &device.pci_bus_id];
            let fits = texts.iter().all(|text| text.len() <= MAX_TEXT);
            if self.known.len() >= MAX_DEVICES || !fits {
                self.left_out += 1;
                continue;
            }
            let known = match before.remove(&device.uuid) {
                Some(known) => Known { device: device.clone(), ..known },
                None => Known { device: device.clone(), samples: VecDeque::new(), xids: 0 },
            };
            self.known.insert(device.uuid.clone(), known);
        }
    }

    /// A process was started with these devices visible (`CUDA_VISIBLE_DEVICES`).
    pub fn see(&mut self, pid: u32, devices: &str) {
        if self.visible.len() >= MAX_VISIBLE && !self.visible.contains_key(&pid) {
            self.visible.pop_first();
        }
        self.visible.insert(pid, devices.chars().take(MAX_TEXT).collect());
    }

    /// The process runs something else now, or is another one.
    pub fn forget(&mut self, pid: u32) {
        self.visible.remove(&pid);
    }

    /// Whether there is any device.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Devices that were told and not kept: too many, or of an impossible name.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// What every device said last.
    pub fn snapshot(&self) -> Snapshot {
        let gpu = |known: &Known| Gpu {
            device: known.device.clone(),
            sample: known.samples.back().cloned(),
            xids: known.xids,
        };
        Snapshot { gpus: self.known.values().map(gpu).collect() }
    }

    /// The readings for a request of the process whose GPU time, or which, ended at `end_ns`, ns of
    /// `CLOCK_MONOTONIC`. `uses_gpu`: the process is known to call the CUDA driver. `None` where the
    /// device is not known, or said nothing yet.
    pub fn join(&self, pid: u32, uses_gpu: bool, end_ns: u64) -> Option<Joined> {
        if self.known.is_empty() {
            return None;
        }
        let known = self.listed(pid, end_ns).or_else(|| self.only(pid, uses_gpu))?;
        Some(Joined { sample: Arc::clone(known.at(end_ns)?), pid, end_ns })
    }

    /// The device that lists the process; `None` where several do. An instance is more than its
    /// GPU, which lists the processes of all.
    fn listed(&self, pid: u32, end_ns: u64) -> Option<&Known> {
        let lists = |known: &&Known| known.at(end_ns).is_some_and(|s| s.process(pid).is_some());
        let all: Vec<&Known> = self.known.values().filter(lists).collect();
        let is_parent = |known: &Known| {
            all.iter().any(|other| other.device.parent.as_deref() == Some(&known.device.uuid))
        };
        let mut whole = all.iter().filter(|known| !is_parent(known));
        let first = *whole.next()?;
        whole.next().is_none().then_some(first)
    }

    /// The only device that the process can use, where it uses one and is not listed: drivers do
    /// not list every process (other pid namespaces, MPS).
    fn only(&self, pid: u32, uses_gpu: bool) -> Option<&Known> {
        if !uses_gpu || self.is_listed_anywhere(pid) {
            return None;
        }
        match self.visible.get(&pid) {
            Some(visible) => self.named(visible),
            None => {
                let mut all = self.known.values();
                let first = all.next()?;
                all.next().is_none().then_some(first)
            }
        }
    }

    fn is_listed_anywhere(&self, pid: u32) -> bool {
        let latest = |known: &Known| known.samples.back().cloned();
        self.known.values().filter_map(latest).any(|sample| sample.process(pid).is_some())
    }

    /// The one device that `CUDA_VISIBLE_DEVICES` names: by (a beginning of) its UUID, or by its
    /// number. CUDA counts the fastest first, NVML in the order of the bus: a number is the same in
    /// both only where all devices are of one make.
    fn named(&self, visible: &str) -> Option<&Known> {
        let mut names = visible.split(',').map(str::trim).filter(|name| !name.is_empty());
        let name = names.next().filter(|_| names.next().is_none())?;
        let mut found = self.known.values().filter(|known| match name.parse::<u32>() {
            Ok(index) => known.device.parent.is_none() && known.device.index == index,
            Err(_) => known.device.uuid.starts_with(name),
        });
        let first = found.next().filter(|_| found.next().is_none())?;
        let one_make = || {
            let mut gpus = self.known.values().filter(|known| known.device.parent.is_none());
            gpus.all(|known| known.device.name == first.device.name)
        };
        (name.parse::<u32>().is_err() || one_make()).then_some(first)
    }
}

impl Known {
    /// The newest sample that had been taken by then.
    fn at(&self, end_ns: u64) -> Option<&Arc<Sample>> {
        self.samples.iter().rev().find(|sample| sample.time_ns <= end_ns)
    }
}

/// A sample with no more processes than are kept.
fn bounded(sample: &Sample) -> Sample {
    let mut sample = sample.clone();
    if let Listed::List { processes, left_out, .. } = &mut sample.processes {
        *left_out += processes.len().saturating_sub(MAX_PROCESSES) as u64;
        processes.truncate(MAX_PROCESSES);
    }
    sample
}

/// The readings that belong to one request: written as a map from a reading's name to its value or
/// state, and its age when the request's GPU time ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    sample: Arc<Sample>,
    pid: u32,
    end_ns: u64,
}

impl Joined {
    /// UUID of the device.
    pub fn device(&self) -> &str {
        &self.sample.uuid
    }

    /// Name, state and age (ns) of each reading that timelines carry.
    pub fn readings(&self) -> impl Iterator<Item = (&'static str, State, u64)> + '_ {
        let of_device = Reading::ALL.iter().filter(|r| r.is_on_timelines()).map(|reading| {
            let unread = Taken { state: State::Unread, time_ns: self.sample.time_ns };
            let taken = self.sample.readings.get(reading).copied().unwrap_or(unread);
            (reading.as_str(), taken.state, self.age(taken.time_ns))
        });
        of_device.chain(self.of_process())
    }

    /// The process's own use, where it is listed.
    fn of_process(&self) -> impl Iterator<Item = (&'static str, State, u64)> + '_ {
        let time_ns = match &self.sample.processes {
            Listed::List { time_ns, .. } => *time_ns,
            Listed::Not(_) => self.sample.time_ns,
        };
        let (memory, utilization) = match (&self.sample.processes, self.sample.process(self.pid)) {
            (_, Some(process)) => (process.memory, process.utilization),
            (Listed::Not(state), None) => (*state, *state),
            (Listed::List { .. }, None) => (State::Unread, State::Unread),
        };
        let rows = [
            ("process_memory_used_bytes", memory),
            ("process_gpu_utilization_percent", utilization),
        ];
        rows.into_iter().map(move |(name, state)| (name, state, self.age(time_ns)))
    }

    fn age(&self, time_ns: u64) -> u64 {
        self.end_ns.saturating_sub(time_ns)
    }
}

impl Serialize for Joined {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, state, age_ns) in self.readings() {
            map.serialize_entry(
                name,
                &Entry { value: state.value(), state: state.word(), age_ns },
            )?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    age_ns: u64,
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
