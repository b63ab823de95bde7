//! Sets of events: XIDs.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError,
};

use super::put;
use crate::error::{Code, INVALID_ARGUMENT, NOT_SUPPORTED, Res, TIMEOUT, code};
use crate::library::{EventSet, Handle, with};

/// How often a wait looks into the script.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const XID: u64 = nvmlEventTypeXidCriticalError as u64;
const NO_INSTANCE: c_uint = c_uint::MAX;

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    types: *mut c_ulonglong,
) -> Code {
    code(with(|library| put(types, library.device(device)?.of_gpu("events", XID)?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> Code {
    code(with(|library| {
        let id = library.id();
        library.sets.insert(id, EventSet::default());
        put(set, id as nvmlEventSet_t)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> Code {
    code(with(|library| library.sets.remove(&(set as usize)).map(drop).ok_or(INVALID_ARGUMENT)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: c_ulonglong,
    set: nvmlEventSet_t,
) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        gpu.of_gpu("register", 0)?;
        if types & !XID != 0 {
            return Err(NOT_SUPPORTED);
        }
        // What happened before is nobody's event.
        let past: Vec<usize> = library.script().xids.into_keys().collect();
        let set = library.sets.get_mut(&(set as usize)).ok_or(INVALID_ARGUMENT)?;
        set.delivered.extend(past);
        set.gpus.insert(gpu.handle.gpu);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> Code {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        match next(set as usize) {
            Ok(Some(event)) => return code(put(data, event)),
            Err(error) => return error,
            Ok(None) => {}
        }
        if Instant::now() >= deadline {
            return TIMEOUT;
        }
        // Others may call meanwhile: the library is not held.
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The first XID that the set has not handed out.
fn next(id: usize) -> Res<Option<nvmlEventData_t>> {
    with(|library| {
        let xids = library.script().xids;
        let set = library.sets.get_mut(&id).ok_or(INVALID_ARGUMENT)?;
        let new = xids
            .into_iter()
            .find(|(line, (gpu, _))| !set.delivered.contains(line) && set.gpus.contains(gpu));
        let Some((line, (gpu, xid))) = new else { return Ok(None) };
        set.delivered.insert(line);
        Ok(Some(nvmlEventData_t {
            device: Handle { gpu, instance: None }.pointer(),
            eventType: XID,
            eventData: xid,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        }))
    })
}
