//! Who a device is, and answers of more than one number.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    field_id, nvmlBAR1Memory_t, nvmlDevice_t, nvmlFieldValue_t, nvmlMemory_v2_t, nvmlPciInfo_t,
    nvmlUtilization_t, nvmlValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
    nvmlViolationTime_t,
};

use super::{get, put, put_at, put_text};
use crate::error::{Code, INVALID_ARGUMENT, NOT_SUPPORTED, Res, SUCCESS, code};
use crate::gpu::Gpu;
use crate::library::{now_ns, with};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: nvmlDevice_t, to: *mut c_char, room: c_uint) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        gpu.check("name")?;
        put_text(to, room, &gpu.name())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: nvmlDevice_t, to: *mut c_char, room: c_uint) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        gpu.check("uuid")?;
        put_text(to, room, &gpu.uuid())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, to: *mut nvmlPciInfo_t) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        gpu.of_gpu("pci", 0)?;
        let bus = gpu.handle.gpu + 1;
        let mut bus_id = [0; 32];
        for (to, byte) in bus_id.iter_mut().zip(format!("00000000:{bus:02X}:00.0").bytes()) {
            *to = byte as c_char;
        }
        put(
            to,
            nvmlPciInfo_t {
                busIdLegacy: [0; 16],
                domain: 0,
                bus,
                device: 0,
                pciDeviceId: 0x0000_10de,
                pciSubSystemId: 0,
                busId: bus_id,
            },
        )
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, to: *mut nvmlMemory_v2_t) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        let version = get(to)?.version;
        if version != size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24 {
            return Err(INVALID_ARGUMENT);
        }
        let memory = gpu.memory();
        let used = gpu.answer("memory", memory.used)?;
        let free = memory.total.saturating_sub(memory.reserved).saturating_sub(used);
        let (total, reserved) = (memory.total, memory.reserved);
        put(to, nvmlMemory_v2_t { version, total, reserved, free, used })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, to: *mut nvmlBAR1Memory_t) -> Code {
    code(with(|library| {
        let used = library.device(device)?.answer("bar1", 4 << 20)?;
        let total: u64 = 128 << 30;
        put(
            to,
            nvmlBAR1Memory_t {
                bar1Total: total,
                bar1Free: total.saturating_sub(used),
                bar1Used: used,
            },
        )
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    to: *mut nvmlUtilization_t,
) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        put(
            to,
            nvmlUtilization_t {
                gpu: gpu.whole("utilization", gpu.utilization.gpu)? as c_uint,
                memory: gpu.whole("memory_utilization", gpu.utilization.memory)? as c_uint,
            },
        )
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetViolationStatus(
    device: nvmlDevice_t,
    policy: c_uint,
    to: *mut nvmlViolationTime_t,
) -> Code {
    code(with(|library| {
        let key = if policy == 0 { "power_violation" } else { "thermal_violation" };
        let time = library.device(device)?.of_gpu(key, 0)?;
        put(to, nvmlViolationTime_t { referenceTime: now_ns() / 1_000, violationTime: time })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        gpu.of_gpu("fields", 0)?;
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        for at in 0..count {
            // The caller says which field it wants in the element that the answer goes to.
            let mut value = get(values.wrapping_add(at))?;
            let answer = field(&gpu, value.fieldId);
            value.timestamp = (now_ns() / 1_000) as i64;
            value.latencyUsec = 1;
            value.nvmlReturn = answer.err().unwrap_or(SUCCESS);
            value.valueType = nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
            value.value = nvmlValue_t { uiVal: answer.unwrap_or(0) as c_uint };
            put_at(values, at, value)?;
        }
        Ok(())
    }))
}

fn field(gpu: &Gpu, id: u32) -> Res<u64> {
    match id {
        field_id::NVML_FI_DEV_MEMORY_TEMP => {
            gpu.answer("memory_temperature", 40 + gpu.utilization.memory / 4)
        }
        // Devices remap rows or retire pages, never both.
        field_id::NVML_FI_DEV_RETIRED_SBE | field_id::NVML_FI_DEV_RETIRED_DBE => Err(NOT_SUPPORTED),
        field_id::NVML_FI_DEV_REMAPPED_COR => gpu.answer("remapped_corrected", 0),
        field_id::NVML_FI_DEV_REMAPPED_UNC => gpu.answer("remapped_uncorrected", 0),
        field_id::NVML_FI_DEV_REMAPPED_PENDING => gpu.answer("remap_pending", 0),
        field_id::NVML_FI_DEV_REMAPPED_FAILURE => gpu.answer("remap_failure", 0),
        _ => Err(NOT_SUPPORTED),
    }
}
