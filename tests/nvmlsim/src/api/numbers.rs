//! Functions that answer with one number.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::put;
use crate::error::{Code, INVALID_ARGUMENT, Res, code};
use crate::gpu::Gpu;
use crate::library::with;

macro_rules! numbers {
    ($($name:ident($($arg:ident),*) -> $out:ty = $answer:expr;)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(device: nvmlDevice_t, $($arg: c_uint,)* to: *mut $out) -> Code {
                code(with(|library| {
                    let gpu = library.device(device)?;
                    let answer: fn(&Gpu, $(numbers!(@u32 $arg)),*) -> Res<u64> = $answer;
                    put(to, answer(&gpu, $($arg),*)? as $out)
                }))
            }
        )+
    };
    (@u32 $arg:ident) => { u32 };
}

const SM: u32 = 1;
const MEMORY: u32 = 2;

numbers! {
    nvmlDeviceGetIndex() -> c_uint = |gpu| {
        Ok(u64::from(gpu.handle.instance.unwrap_or(gpu.handle.gpu)))
    };
    nvmlDeviceGetClockInfo(kind) -> c_uint = |gpu, kind| match kind {
        SM => gpu.of_gpu("sm_clock", gpu.clock_mhz(1_980, 345)),
        MEMORY => gpu.of_gpu("memory_clock", 2_619),
        _ => Err(INVALID_ARGUMENT),
    };
    nvmlDeviceGetMaxClockInfo(kind) -> c_uint = |gpu, kind| match kind {
        SM => gpu.of_gpu("max_clock", 1_980),
        _ => Err(INVALID_ARGUMENT),
    };
    nvmlDeviceGetPerformanceState() -> c_uint = |gpu| gpu.of_gpu("pstate", 0);
    nvmlDeviceGetCurrentClocksThrottleReasons() -> c_ulonglong = |gpu| {
        gpu.of_gpu("throttle", u64::from(gpu.utilization.gpu == 0))
    };
    nvmlDeviceGetPowerUsage() -> c_uint = |gpu| {
        gpu.of_gpu("power", 70_000 + 6_000 * gpu.utilization.gpu)
    };
    nvmlDeviceGetEnforcedPowerLimit() -> c_uint = |gpu| gpu.of_gpu("power_limit", 700_000);
    nvmlDeviceGetTotalEnergyConsumption() -> c_ulonglong = |gpu| {
        gpu.of_gpu("energy", 70 * gpu.up_ms)
    };
    nvmlDeviceGetTemperature(_sensor) -> c_uint = |gpu, _sensor| {
        gpu.of_gpu("temperature", 35 + gpu.utilization.gpu / 2)
    };
    nvmlDeviceGetPcieThroughput(counter) -> c_uint = |gpu, counter| {
        gpu.of_gpu(if counter == 0 { "pcie_tx" } else { "pcie_rx" }, 100 * gpu.utilization.memory)
    };
    nvmlDeviceGetPcieReplayCounter() -> c_uint = |gpu| gpu.of_gpu("pcie_replay", 0);
    nvmlDeviceGetCurrPcieLinkGeneration() -> c_uint = |gpu| gpu.of_gpu("pcie_link", 5);
    nvmlDeviceGetCurrPcieLinkWidth() -> c_uint = |gpu| gpu.of_gpu("pcie_width", 16);
    nvmlDeviceGetTotalEccErrors(kind, _counter) -> c_ulonglong = |gpu, kind, _counter| {
        let errors = gpu.changes.ecc.get(kind as usize).copied().ok_or(INVALID_ARGUMENT)?;
        gpu.of_gpu("ecc", errors)
    };
}

macro_rules! coders {
    ($($name:ident = $key:literal;)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(
                device: nvmlDevice_t,
                percent: *mut c_uint,
                period_us: *mut c_uint,
            ) -> Code {
                code(with(|library| {
                    put(percent, library.device(device)?.whole($key, 0)? as c_uint)?;
                    put(period_us, 167_000)
                }))
            }
        )+
    };
}

coders! {
    nvmlDeviceGetEncoderUtilization = "encoder";
    nvmlDeviceGetDecoderUtilization = "decoder";
}
