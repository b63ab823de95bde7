//! A snapshot as metrics: the names of OpenTelemetry's hardware convention where it has one,
//! `spanprobe_gpu_*` where it has none, and, where they are wanted, the datacenter exporter's.
//!
//! A reading that has no value has no series, and says why in `spanprobe_gpu_reading_state`: so zero,
//! unsupported and failed stay three things here too.

use super::{
    history::{Gpu, Snapshot},
    reading::{Reading, State},
    watch::THROTTLES,
};

/// One metric. Its series are bounded by the number of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Its name; a counter's without `_total`.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// It only grows.
    pub counter: bool,
    /// Its series.
    pub series: Vec<Series>,
}

/// Labels, and the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Labels.
    pub labels: Vec<(&'static str, String)>,
    /// Value.
    pub value: f64,
}

/// How a reading's unit becomes a metric's.
#[derive(Clone, Copy)]
enum Scale {
    /// So many of the metric's units in one of the reading's.
    Times(f64),
    /// So many of the reading's units in one of the metric's.
    Per(f64),
}

impl Scale {
    fn of(self, value: u64) -> f64 {
        match self {
            Self::Times(factor) => value as f64 * factor,
            Self::Per(divisor) => value as f64 / divisor,
        }
    }
}

/// A metric that readings make up, one series of a device for each.
struct Family {
    name: &'static str,
    help: &'static str,
    counter: bool,
    scale: Scale,
    /// The label that tells its readings apart; empty where there is only one.
    label: &'static str,
    readings: &'static [(Reading, &'static str)],
}

const ONE: Scale = Scale::Times(1.0);
const PERCENT: Scale = Scale::Per(100.0);
const MILLIPERCENT: Scale = Scale::Per(100_000.0);
const MILLI: Scale = Scale::Per(1_000.0);
const NANO: Scale = Scale::Per(1e9);
const KILO: Scale = Scale::Times(1e3);
const MEGA: Scale = Scale::Times(1e6);
const MIB: Scale = Scale::Per(1_048_576.0);

macro_rules! families {
    ($($kind:ident $name:literal, $help:literal, $scale:ident,
       $label:literal [$($reading:ident $value:literal),+];)+) => {
        /// Names without a counter's `_total`.
        const FAMILIES: &[Family] = &[$(Family {
            name: $name,
            help: $help,
            counter: families!(@ $kind),
            scale: $scale,
            label: $label,
            readings: &[$((Reading::$reading, $value)),+],
        }),+];
    };
    (@ gauge) => { false };
    (@ counter) => { true };
}

families! {
    gauge "hw_gpu_utilization_ratio", "Time in which some kernel ran, or a coder was in use", PERCENT,
        "hw_gpu_task" [GpuUtilization "general", EncoderUtilization "encoder",
                       DecoderUtilization "decoder"];
    gauge "hw_gpu_memory_usage_bytes", "Device memory in use", ONE, "" [MemoryUsed ""];
    gauge "hw_gpu_memory_limit_bytes", "Device memory", ONE, "" [MemoryTotal ""];
    gauge "hw_power_watts", "Power drawn by the board", MILLI, "" [Power ""];
    gauge "hw_power_limit_watts", "Limit of the power drawn", MILLI, "" [PowerLimit ""];
    counter "hw_energy_joules", "Energy since the driver was loaded", MILLI, "" [Energy ""];
    gauge "hw_temperature_celsius", "Temperature", ONE,
        "sensor" [Temperature "gpu", MemoryTemperature "memory"];
    counter "hw_errors", "Memory errors since the driver was loaded", ONE,
        "error_type" [EccCorrected "corrected", EccUncorrected "uncorrected"];
    gauge "spanprobe_gpu_memory_copy_ratio", "Time in which device memory was read or written",
        PERCENT, "" [MemoryUtilization ""];
    gauge "spanprobe_gpu_memory_reserved_bytes", "Device memory that the driver keeps for itself",
        ONE, "" [MemoryReserved ""];
    gauge "spanprobe_gpu_clock_hertz", "Clock as it is now", MEGA,
        "clock" [SmClock "sm", MemoryClock "memory"];
    gauge "spanprobe_gpu_performance_state", "Performance state, 0 the highest", ONE,
        "" [PerformanceState ""];
    counter "spanprobe_gpu_throttled_seconds",
        "Time in which clocks were held down since the driver was loaded", NANO,
        "reason" [PowerViolation "power", ThermalViolation "thermal"];
    gauge "spanprobe_gpu_pcie_bytes_per_second", "Bytes over PCIe in a window of 20 ms", KILO,
        "direction" [PcieTx "transmit", PcieRx "receive"];
    counter "spanprobe_gpu_pcie_replays", "Packets that PCIe had to send again", ONE,
        "" [PcieReplays ""];
    gauge "spanprobe_gpu_xid", "The last XID since sampling began, 0 for none", ONE, "" [XidLast ""];
    gauge "spanprobe_gpu_retired_pages", "Pages of memory that were retired", ONE,
        "error_type" [RetiredPagesCorrected "corrected", RetiredPagesUncorrected "uncorrected"];
    gauge "spanprobe_gpu_remapped_rows", "Rows of memory that were remapped", ONE,
        "error_type" [RemappedRowsCorrected "corrected", RemappedRowsUncorrected "uncorrected"];
    gauge "spanprobe_gpu_row_remap_failed", "1 where remapping rows has failed", ONE,
        "" [RemapFailure ""];
    gauge "spanprobe_gpu_active_ratio", "Time in which a part of the GPU was active (GPM)",
        MILLIPERCENT, "part" [GraphicsActive "graphics", SmActive "sm", TensorActive "tensor",
                              DramActive "dram"];
    gauge "spanprobe_gpu_sm_occupancy_ratio", "Warps resident against the most that fit (GPM)",
        MILLIPERCENT, "" [SmOccupancy ""];
    gauge "spanprobe_gpu_nvlink_bytes_per_second", "Bytes over NVLink (GPM)", ONE,
        "direction" [NvlinkTx "transmit", NvlinkRx "receive"];
}

/// The datacenter exporter's default set, as far as NVML answers it. Its counters bear names that no
/// counter may have here, so all are gauges.
const DATACENTER: [(&str, Reading, Scale); 24] = [
    ("DCGM_FI_DEV_SM_CLOCK", Reading::SmClock, ONE),
    ("DCGM_FI_DEV_MEM_CLOCK", Reading::MemoryClock, ONE),
    ("DCGM_FI_DEV_MEMORY_TEMP", Reading::MemoryTemperature, ONE),
    ("DCGM_FI_DEV_GPU_TEMP", Reading::Temperature, ONE),
    ("DCGM_FI_DEV_POWER_USAGE", Reading::Power, MILLI),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Reading::Energy, ONE),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Reading::PcieReplays, ONE),
    ("DCGM_FI_DEV_GPU_UTIL", Reading::GpuUtilization, ONE),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", Reading::MemoryUtilization, ONE),
    ("DCGM_FI_DEV_ENC_UTIL", Reading::EncoderUtilization, ONE),
    ("DCGM_FI_DEV_DEC_UTIL", Reading::DecoderUtilization, ONE),
    ("DCGM_FI_DEV_XID_ERRORS", Reading::XidLast, ONE),
    ("DCGM_FI_DEV_FB_FREE", Reading::MemoryFree, MIB),
    ("DCGM_FI_DEV_FB_USED", Reading::MemoryUsed, MIB),
    ("DCGM_FI_DEV_FB_RESERVED", Reading::MemoryReserved, MIB),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", Reading::RemappedRowsUncorrected, ONE),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", Reading::RemappedRowsCorrected, ONE),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", Reading::RemapFailure, ONE),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", Reading::GraphicsActive, MILLIPERCENT),
    ("DCGM_FI_PROF_SM_ACTIVE", Reading::SmActive, MILLIPERCENT),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Reading::TensorActive, MILLIPERCENT),
    ("DCGM_FI_PROF_DRAM_ACTIVE", Reading::DramActive, MILLIPERCENT),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", Reading::GpmPcieTx, ONE),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", Reading::GpmPcieRx, ONE),
];

/// Every metric that has a series now. `now_ns` is of `CLOCK_MONOTONIC`; `datacenter`: with the
/// datacenter exporter's names besides.
pub fn metrics(snapshot: &Snapshot, now_ns: u64, datacenter: bool) -> Vec<Metric> {
    let gpus = &snapshot.gpus;
    let mut all = vec![info(gpus)];
    all.extend(FAMILIES.iter().map(|family| family.metric(gpus)));
    all.push(throttled(gpus));
    all.push(xids(gpus));
    all.push(ages(gpus, now_ns));
    all.push(states(gpus));
    if datacenter {
        all.extend(DATACENTER.iter().map(|row| exporters(gpus, row)));
    }
    all.retain(|metric| !metric.series.is_empty());
    all
}

impl Family {
    fn metric(&self, gpus: &[Gpu]) -> Metric {
        let series = self.readings.iter().flat_map(|(reading, value)| {
            gpus.iter().filter_map(move |gpu| {
                let answer = gpu.sample.as_ref()?.state(*reading).value()?;
                let mut labels = vec![("gpu", gpu.device.uuid.clone())];
                if !self.label.is_empty() {
                    labels.push((self.label, (*value).to_owned()));
                }
                Some(Series { labels, value: self.scale.of(answer) })
            })
        });
        metric(self.name, self.help, self.counter, series)
    }
}

fn metric(
    name: &'static str,
    help: &'static str,
    counter: bool,
    series: impl Iterator<Item = Series>,
) -> Metric {
    Metric { name, help, counter, series: series.collect() }
}

/// Which device bears which UUID.
fn info(gpus: &[Gpu]) -> Metric {
    let one = |gpu: &Gpu| {
        let device = &gpu.device;
        let labels = vec![
            ("gpu", device.uuid.clone()),
            ("index", device.index.to_string()),
            ("name", device.name.clone()),
            ("pci_bus_id", device.pci_bus_id.clone()),
            ("parent", device.parent.clone().unwrap_or_default()),
        ];
        Series { labels, value: 1.0 }
    };
    metric("spanprobe_gpu_info", "1 for each GPU and instance", false, gpus.iter().map(one))
}

fn throttled(gpus: &[Gpu]) -> Metric {
    let one = |gpu: &Gpu| {
        let bits = gpu.sample.as_ref()?.state(Reading::ThrottleReasons).value()?;
        let uuid = gpu.device.uuid.clone();
        Some(THROTTLES.iter().map(move |(bit, reason)| Series {
            labels: vec![("gpu", uuid.clone()), ("reason", (*reason).to_owned())],
            value: f64::from(u8::from(bits & bit != 0)),
        }))
    };
    let help = "1 while clocks are held down for this reason";
    metric("spanprobe_gpu_throttled", help, false, gpus.iter().filter_map(one).flatten())
}

fn xids(gpus: &[Gpu]) -> Metric {
    let listened = |gpu: &&Gpu| {
        let sample = gpu.sample.as_ref();
        sample.is_some_and(|sample| sample.state(Reading::XidLast).value().is_some())
    };
    let one = |gpu: &Gpu| Series {
        labels: vec![("gpu", gpu.device.uuid.clone())],
        value: gpu.xids as f64,
    };
    let help = "XIDs since tracing began";
    metric("spanprobe_gpu_xids", help, true, gpus.iter().filter(listened).map(one))
}

fn ages(gpus: &[Gpu], now_ns: u64) -> Metric {
    let one = |gpu: &Gpu| {
        let age_ns = now_ns.saturating_sub(gpu.sample.as_ref()?.time_ns);
        let labels = vec![("gpu", gpu.device.uuid.clone())];
        Some(Series { labels, value: NANO.of(age_ns) })
    };
    let help = "Time since the GPU's last sample";
    metric("spanprobe_gpu_sample_age_seconds", help, false, gpus.iter().filter_map(one))
}

/// Readings without a value, and why.
fn states(gpus: &[Gpu]) -> Metric {
    let of = |gpu: &Gpu| {
        let sample = gpu.sample.as_ref()?;
        let one = |reading: &Reading| {
            // Return codes are many: they are told on the timelines.
            let state = match sample.state(*reading) {
                State::Value(_) => return None,
                State::Unsupported => "unsupported",
                State::Error(_) => "error",
                State::Unread => "unread",
            };
            let labels = vec![
                ("gpu", gpu.device.uuid.clone()),
                ("reading", reading.as_str().to_owned()),
                ("state", state.to_owned()),
            ];
            Some(Series { labels, value: 1.0 })
        };
        Some(Reading::ALL.iter().filter_map(one).collect::<Vec<_>>())
    };
    let help = "1 for each reading that has no value now, and why";
    metric("spanprobe_gpu_reading_state", help, false, gpus.iter().filter_map(of).flatten())
}

/// A metric as the datacenter exporter has it, with its labels.
fn exporters(gpus: &[Gpu], (name, reading, scale): &(&'static str, Reading, Scale)) -> Metric {
    let one = |gpu: &Gpu| {
        // Instances are labelled in ways of their own there; they are left out.
        let device = Some(&gpu.device).filter(|device| device.parent.is_none())?;
        let value = gpu.sample.as_ref()?.state(*reading).value()?;
        let labels = vec![
            ("gpu", device.index.to_string()),
            ("UUID", device.uuid.clone()),
            ("pci_bus_id", device.pci_bus_id.clone()),
            ("device", format!("nvidia{}", device.index)),
            ("modelName", device.name.clone()),
        ];
        Some(Series { labels, value: scale.of(value) })
    };
    metric(name, "As the datacenter exporter has it", false, gpus.iter().filter_map(one))
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
