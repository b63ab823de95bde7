//! What NVML told, as it enters the pipeline and is written into session files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::reading::{Reading, State, Taken};

/// One thing that was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// The devices that there are: all of them, in place of those told before.
    Devices(Vec<Device>),
    /// Readings of one device.
    Sample(Box<Sample>),
    /// The driver reported an XID.
    Xid {
        /// UUID of the device.
        uuid: String,
        /// Its number.
        xid: u64,
    },
}

/// A GPU, or an instance of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `GPU-…`, of an instance `MIG-…`: what it is known by everywhere.
    pub uuid: String,
    /// NVML's index: in the order of PCI addresses. Of an instance, its index in its GPU.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Address on the bus, `domain:bus:device.function`; empty where unknown. An instance has its
    /// GPU's.
    pub pci_bus_id: String,
    /// Of an instance: UUID of the GPU that it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// All readings of a device, taken one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// UUID of the device.
    pub uuid: String,
    /// When the last of them was taken, ns of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The readings. One that is not here is unread.
    pub readings: BTreeMap<Reading, Taken>,
    /// Processes that compute on it.
    pub processes: Listed,
}

impl Sample {
    /// A reading's state.
    pub fn state(&self, reading: Reading) -> State {
        self.readings.get(&reading).map_or(State::Unread, |taken| taken.state)
    }

    /// The process's use of the device, where it is listed.
    pub fn process(&self, pid: u32) -> Option<&ProcessUse> {
        self.processes.list()?.iter().find(|process| process.pid == pid)
    }
}

/// The processes that compute on a device, or why they are not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Listed {
    /// Who does, when that was asked, and how many more there were than are kept.
    List {
        /// Who.
        processes: Vec<ProcessUse>,
        /// When, ns of `CLOCK_MONOTONIC`.
        time_ns: u64,
        /// Left out.
        left_out: u64,
    },
    /// Not known.
    Not(State),
}

impl Listed {
    /// The list, where there is one.
    pub fn list(&self) -> Option<&[ProcessUse]> {
        match self {
            Self::List { processes, .. } => Some(processes),
            Self::Not(_) => None,
        }
    }
}

/// One process's use of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Process, in the pid namespace that spanprobe runs in.
    pub pid: u32,
    /// Device memory, bytes.
    pub memory: State,
    /// Its use of the multiprocessors since the sample before, percent.
    pub utilization: State,
    /// Of a GPU that is split: in which instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
}
