//! One simulated device: what it answers.

use crate::error::{Code, NOT_SUPPORTED, Res};
use crate::follow::Utilization;
use crate::library::Handle;
use crate::script::Changes;

/// The simulated CUDA device's name: nobody shall take it for a real one.
pub const NAME: &[u8] = b"CUDA Simulated Device (spanprobe tests)";
/// Memory of a device, bytes.
pub const MEMORY: u64 = 81_920 << 20;
/// Of these, kept by the driver.
const RESERVED: u64 = 512 << 20;
/// Instances that a device can be split into.
pub const MAX_INSTANCES: u32 = 7;

/// A process on the device.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub pid: u32,
    pub bytes: u64,
    pub instance: u32,
    pub utilization: u64,
}

/// A device, or an instance of one, at one time.
pub struct Gpu {
    pub handle: Handle,
    /// Since `nvmlInit`, ms.
    pub up_ms: u64,
    pub utilization: Utilization,
    /// Those of the simulated CUDA driver.
    pub processes: Vec<Process>,
    pub changes: Changes,
}

/// Memory, bytes.
pub struct Memory {
    pub total: u64,
    pub reserved: u64,
    pub used: u64,
}

impl Gpu {
    /// Fails where the script says so.
    pub fn check(&self, key: &str) -> Res {
        self.changes.faults.get(key).map_or(Ok(()), |code: &Code| Err(*code))
    }

    /// The answer: the script's, else `model`'s.
    pub fn answer(&self, key: &str, model: u64) -> Res<u64> {
        self.check(key)?;
        Ok(self.changes.values.get(key).copied().unwrap_or(model))
    }

    /// As [`Self::answer`], for what a split device and its instances do not have.
    pub fn whole(&self, key: &str, model: u64) -> Res<u64> {
        if self.is_split() { Err(NOT_SUPPORTED) } else { self.answer(key, model) }
    }

    /// It is split into instances, or is one.
    pub fn is_split(&self) -> bool {
        self.changes.instances.is_some()
    }

    /// What only a GPU has, and no instance.
    pub fn of_gpu(&self, key: &str, model: u64) -> Res<u64> {
        if self.handle.instance.is_some() { Err(NOT_SUPPORTED) } else { self.answer(key, model) }
    }

    /// Clocks fall when the device idles, and by half where heat or power hold them down.
    pub fn clock_mhz(&self, busy: u64, idle: u64) -> u64 {
        let throttled = self.changes.values.get("throttle").is_some_and(|bits| bits & !3 != 0);
        match (self.utilization.gpu > 0, throttled) {
            (false, _) => idle,
            (true, false) => busy,
            (true, true) => busy / 2,
        }
    }

    /// Processes on the device, or on the instance.
    pub fn processes(&self) -> Vec<Process> {
        let scripted = self.changes.processes.iter();
        let scripted = scripted
            .map(|(pid, (bytes, instance))| Process {
                pid: *pid,
                bytes: *bytes,
                instance: *instance,
                utilization: 0,
            })
            .collect::<Vec<_>>();
        let all = self.processes.iter().copied().chain(scripted);
        all.filter(|process| self.handle.instance.is_none_or(|i| i == process.instance)).collect()
    }

    /// Memory of the device, or of the instance.
    pub fn memory(&self) -> Memory {
        let held = self.processes().into_iter().map(|process| process.bytes);
        let used = held.fold(0, u64::saturating_add);
        let parts = if self.handle.instance.is_some() { u64::from(MAX_INSTANCES) } else { 1 };
        let (total, reserved) = (MEMORY / parts, RESERVED / parts);
        Memory { total, reserved, used: used.min(total - reserved) }
    }

    /// The UUID that the simulated CUDA device has.
    pub fn uuid(&self) -> Vec<u8> {
        if let Some(uuid) = &self.changes.uuid {
            return uuid.clone();
        }
        let gpu = self.handle.gpu;
        match self.handle.instance {
            None => format!("GPU-63756461-7369-6d00-7370-616e707262{gpu:02x}").into_bytes(),
            Some(i) => format!("MIG-63756461-7369-6d00-{i:04x}-616e707262{gpu:02x}").into_bytes(),
        }
    }

    /// The product's name.
    pub fn name(&self) -> Vec<u8> {
        self.changes.name.clone().unwrap_or_else(|| match self.handle.instance {
            None => NAME.to_vec(),
            Some(_) => [NAME, b" MIG 1g.10gb"].concat(),
        })
    }
}
