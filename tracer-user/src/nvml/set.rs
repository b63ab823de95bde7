//! Which devices there are, instances included, and how they are known.

use nvml_wrapper::{Device, Nvml, error::NvmlError};

use super::told;

/// GPUs and instances that are sampled at most.
const MAX_DEVICES: usize = 256;
/// Instances of one GPU that are asked for: NVML knows at most 7.
const MAX_INSTANCES: u32 = 16;

/// A device that can be asked, and how it is known.
pub(super) struct Member<'nvml> {
    pub(super) device: Device<'nvml>,
    pub(super) known: told::Device,
}

impl Member<'_> {
    pub(super) fn is_instance(&self) -> bool {
        self.known.parent.is_some()
    }
}

/// Every device, and what is wrong with those that cannot be asked, in words.
///
/// # Errors
/// Where not even their number is known.
pub(super) fn devices(nvml: &Nvml) -> Result<(Vec<Member<'_>>, Vec<String>), NvmlError> {
    let mut members = Vec::new();
    let mut wrong = Vec::new();
    let count = nvml.device_count()?;
    if count as usize > MAX_DEVICES {
        wrong.push(format!("only the first {MAX_DEVICES} of {count} GPUs are asked"));
    }
    for index in 0..count.min(MAX_DEVICES as u32) {
        match gpu(nvml, index) {
            Ok(member) => {
                let instances = instances(&member);
                members.push(member);
                members.extend(instances);
            }
            Err(error) => wrong.push(format!("GPU {index} cannot be asked: {error}")),
        }
    }
    members.truncate(MAX_DEVICES);
    Ok((members, wrong))
}

/// What has no UUID cannot be told apart from others, so it is not asked; a name that cannot be read
/// is none.
fn gpu(nvml: &Nvml, index: u32) -> Result<Member<'_>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let known = told::Device {
        uuid: device.uuid()?,
        index,
        name: device.name().unwrap_or_default(),
        pci_bus_id: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        parent: None,
    };
    Ok(Member { device, known })
}

/// The instances that a GPU is split into; none where it is not, or cannot be.
fn instances<'nvml>(gpu: &Member<'nvml>) -> Vec<Member<'nvml>> {
    if !gpu.device.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return Vec::new();
    }
    let slots = gpu.device.mig_device_count().unwrap_or(0).min(MAX_INSTANCES);
    // Most slots are empty: "not found".
    let instance = |index| {
        let device = gpu.device.mig_device_by_index(index).ok()?;
        let known = told::Device {
            uuid: device.uuid().ok()?,
            index,
            name: device.name().unwrap_or_else(|_| gpu.known.name.clone()),
            pci_bus_id: gpu.known.pci_bus_id.clone(),
            parent: Some(gpu.known.uuid.clone()),
        };
        Some(Member { device, known })
    };
    (0..slots).filter_map(instance).collect()
}
