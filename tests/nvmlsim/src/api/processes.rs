//! Who computes on a device, and how much.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t};

use super::{get, put, put_at};
use crate::error::{Code, INSUFFICIENT_SIZE, NOT_FOUND, Res, code};
use crate::library::{now_ns, with};

/// `gpuInstanceId` and `computeInstanceId` where there are none.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Hands out a list by NVML's rule: with too little room the count that is needed, and a code.
fn list<T>(answers: Vec<T>, count: *mut c_uint, to: *mut T, lie: Option<u64>) -> Res {
    let room = get(count)?;
    let needed = lie.unwrap_or(answers.len() as u64) as c_uint;
    put(count, needed)?;
    if room < needed {
        return Err(INSUFFICIENT_SIZE);
    }
    for (at, answer) in answers.into_iter().enumerate() {
        put_at(to, at, answer)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut nvmlProcessInfo_t,
) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        gpu.check("processes")?;
        let split = gpu.is_split();
        let info = |process: crate::gpu::Process| nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.bytes,
            gpuInstanceId: if split { process.instance } else { NO_INSTANCE },
            computeInstanceId: if split { 0 } else { NO_INSTANCE },
        };
        let lie = gpu.changes.values.get("processes_count").copied();
        list(gpu.processes().into_iter().map(info).collect(), count, to, lie)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    to: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    since_us: c_ulonglong,
) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        gpu.whole("process_utilization", 0)?;
        let now_us = now_ns() / 1_000;
        let busy = gpu.processes().into_iter().filter(|process| process.utilization > 0);
        let samples: Vec<_> = busy
            .map(|process| nvmlProcessUtilizationSample_t {
                pid: process.pid,
                timeStamp: now_us,
                smUtil: process.utilization as c_uint,
                memUtil: 0,
                encUtil: 0,
                decUtil: 0,
            })
            .collect();
        if samples.is_empty() || now_us <= since_us {
            return Err(NOT_FOUND);
        }
        list(samples, count, to, None)
    }))
}
