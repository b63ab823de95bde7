//! GPM: metrics between two samples, of devices from Hopper on.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlDevice_t, nvmlGpmMetricsGet_t,
    nvmlGpmSample_t, nvmlGpmSupport_t,
};

use super::{get, put};
use crate::error::{Code, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, code};
use crate::library::{Handle, now_ns, with};

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, to: *mut nvmlGpmSupport_t) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        if get(to)?.version != NVML_GPM_SUPPORT_VERSION {
            return Err(INVALID_ARGUMENT);
        }
        let supported = gpu.of_gpu("gpm", 1)? as c_uint;
        put(
            to,
            nvmlGpmSupport_t { version: NVML_GPM_SUPPORT_VERSION, isSupportedDevice: supported },
        )
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmSampleAlloc(sample: *mut nvmlGpmSample_t) -> Code {
    code(with(|library| {
        let id = library.id();
        library.samples.insert(id, (0, 0));
        put(sample, id as nvmlGpmSample_t)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> Code {
    code(with(|library| {
        library.samples.remove(&(sample as usize)).map(drop).ok_or(INVALID_ARGUMENT)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmSampleGet(device: nvmlDevice_t, sample: nvmlGpmSample_t) -> Code {
    code(with(|library| {
        let gpu = library.device(device)?;
        gpu.of_gpu("gpm_sample", 0)?;
        let slot = library.samples.get_mut(&(sample as usize)).ok_or(INVALID_ARGUMENT)?;
        *slot = (gpu.handle.gpu, now_ns());
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmMetricsGet(to: *mut nvmlGpmMetricsGet_t) -> Code {
    code(with(|library| {
        let mut request = get(to)?;
        let sample = |pointer| library.samples.get(&(pointer as usize)).copied();
        let (first, second) =
            sample(request.sample1).zip(sample(request.sample2)).ok_or(INVALID_ARGUMENT)?;
        if request.version != NVML_GPM_METRICS_GET_VERSION
            || first.1 == 0
            || second.1 <= first.1
            || first.0 != second.0
        {
            return Err(INVALID_ARGUMENT);
        }
        let gpu = library.at(Handle { gpu: first.0, instance: None })?;
        let count = request.numMetrics as usize;
        for metric in request.metrics.iter_mut().take(count) {
            let busy = gpu.utilization.gpu as f64;
            let answer = match metric.metricId {
                // Graphics engine, multiprocessors, occupancy.
                1 => Ok(busy),
                2 => Ok(busy * 0.75),
                3 => Ok(busy * 0.5),
                // Any tensor pipe, memory bandwidth.
                5 => Ok(0.0),
                10 => Ok(gpu.utilization.memory as f64),
                // PCIe, MiB/s.
                20 | 21 => Ok(gpu.utilization.memory as f64 / 10.0),
                // This device has no NVLink.
                _ => Err(NOT_SUPPORTED),
            };
            metric.nvmlReturn = answer.err().unwrap_or(SUCCESS);
            metric.value = answer.unwrap_or(f64::NAN);
        }
        put(to, request)
    }))
}
