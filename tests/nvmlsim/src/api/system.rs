//! The library itself, and how devices are reached.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::{put, put_text};
use crate::error::{Code, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, code};
use crate::gpu::MAX_INSTANCES;
use crate::library::{self, Handle, with};

/// A driver version that no driver has.
const VERSION: &[u8] = b"999.0.0-simulated";

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Code {
    code(library::init())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Code {
    code(library::init())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Code {
    code(library::shutdown())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, room: c_uint) -> Code {
    code(with(|_| put_text(to, room, VERSION)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Code {
    code(with(|library| put(count, library.count())))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) -> Code {
    code(with(|library| {
        let gpu = library.at(Handle { gpu: index, instance: None })?;
        gpu.check("handle")?;
        put(device, gpu.handle.pointer())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        let mode = gpu.of_gpu("mig", u64::from(gpu.is_split()))? as c_uint;
        put(current, mode)?;
        put(pending, mode)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: *mut c_uint) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        put(count, gpu.of_gpu("mig_count", u64::from(MAX_INSTANCES))? as c_uint)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    instance: *mut nvmlDevice_t,
) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        if gpu.handle.instance.is_some() || index >= MAX_INSTANCES {
            return Err(INVALID_ARGUMENT);
        }
        if !gpu.is_split() {
            return Err(NOT_SUPPORTED);
        }
        let handle = Handle { instance: Some(index), ..gpu.handle };
        library.at(handle).map_err(|_| NOT_FOUND)?;
        put(instance, handle.pointer())
    }))
}
