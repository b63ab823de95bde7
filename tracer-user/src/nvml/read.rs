//! One device's readings: which call answers which reading, and what its answer means.

use std::collections::BTreeMap;

use nvml_wrapper::{
    Device, GpmSample, Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{
        Clock, EccCounter, MemoryError, PcieUtilCounter, PerformancePolicy, PerformanceState,
        TemperatureSensor,
    },
    enums::{
        device::{SampleValue, UsedGpuMemory},
        gpm::GpmMetricId,
    },
    error::{Bits, NvmlError},
    gpm::gpm_metrics_get,
    structs::device::FieldId,
    sys_exports::field_id,
};

use super::{
    history::MAX_PROCESSES,
    reading::{NOT_UNDERSTOOD, Reading, State, Taken},
    told::{Listed, ProcessUse, Sample},
};
use crate::agent::clock::monotonic_ns;

/// NVML's return code where a driver has been asked for samples and has none.
const NOT_FOUND: u32 = 6;
/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;

/// What each field of `nvmlDeviceGetFieldValues` is read for.
const FIELDS: [(u32, Reading); 7] = [
    (field_id::NVML_FI_DEV_MEMORY_TEMP, Reading::MemoryTemperature),
    (field_id::NVML_FI_DEV_RETIRED_SBE, Reading::RetiredPagesCorrected),
    (field_id::NVML_FI_DEV_RETIRED_DBE, Reading::RetiredPagesUncorrected),
    (field_id::NVML_FI_DEV_REMAPPED_COR, Reading::RemappedRowsCorrected),
    (field_id::NVML_FI_DEV_REMAPPED_UNC, Reading::RemappedRowsUncorrected),
    (field_id::NVML_FI_DEV_REMAPPED_PENDING, Reading::RemapPending),
    (field_id::NVML_FI_DEV_REMAPPED_FAILURE, Reading::RemapFailure),
];

/// What each GPM metric is read for, and what its unit is multiplied with.
const GPM: [(GpmMetricId, Reading, f64); 9] = [
    (GpmMetricId::GraphicsUtil, Reading::GraphicsActive, 1_000.0),
    (GpmMetricId::SmUtil, Reading::SmActive, 1_000.0),
    (GpmMetricId::SmOccupancy, Reading::SmOccupancy, 1_000.0),
    (GpmMetricId::AnyTensorUtil, Reading::TensorActive, 1_000.0),
    (GpmMetricId::DramBwUtil, Reading::DramActive, 1_000.0),
    // Mebibytes per second, as the header says.
    (GpmMetricId::PcieTxPerSec, Reading::GpmPcieTx, 1_048_576.0),
    (GpmMetricId::PcieRxPerSec, Reading::GpmPcieRx, 1_048_576.0),
    (GpmMetricId::NvlinkTotalTxPerSec, Reading::NvlinkTx, 1_048_576.0),
    (GpmMetricId::NvlinkTotalRxPerSec, Reading::NvlinkRx, 1_048_576.0),
];

/// What is remembered of a device from one sample to the next.
#[derive(Default)]
pub(super) struct Memory<'nvml> {
    gpm: Option<GpmSample<'nvml>>,
    /// Newest sample of processes' use, µs by the driver's clock.
    utilization_seen_us: u64,
}

/// The state that a failure stands for.
pub(super) fn failure(error: NvmlError) -> State {
    match error {
        // An older library does not know the call at all.
        NvmlError::NotSupported
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_) => State::Unsupported,
        NvmlError::Utf8Error(_)
        | NvmlError::NulError(_)
        | NvmlError::StringTooLong { .. }
        | NvmlError::IncorrectBits(_) => State::Error(NOT_UNDERSTOOD),
        error => State::Error(error.into()),
    }
}

fn state<T: Into<u64>>(answer: Result<T, NvmlError>) -> State {
    answer.map_or_else(failure, |value| State::Value(value.into()))
}

/// A percentage is one up to 100; anything else makes no sense.
fn percent(answer: Result<u32, NvmlError>) -> State {
    match answer {
        Ok(value) if value > 100 => State::Error(NOT_UNDERSTOOD),
        answer => state(answer),
    }
}

/// A reading, and which part of an answer it is.
type Part<T> = (Reading, fn(&T) -> State);

/// Readings as they come in.
struct Gathered(BTreeMap<Reading, Taken>);

impl Gathered {
    fn add(&mut self, reading: Reading, state: State) {
        self.0.insert(reading, Taken { state, time_ns: monotonic_ns() });
    }

    /// Several readings out of one answer.
    fn split<T, const N: usize>(&mut self, answer: Result<T, NvmlError>, parts: [Part<T>; N]) {
        match answer {
            Ok(answer) => parts.into_iter().for_each(|(r, part)| self.add(r, part(&answer))),
            Err(error) => {
                let state = failure(error);
                parts.into_iter().for_each(|(reading, _)| self.add(reading, state));
            }
        }
    }
}

/// Asks a device everything. `xid`: its last one. An instance of a GPU is asked for what instances
/// have; the rest is unread.
pub(super) fn sample<'nvml>(
    nvml: &'nvml Nvml,
    device: &Device<'nvml>,
    uuid: &str,
    is_instance: bool,
    xid: State,
    memory: &mut Memory<'nvml>,
) -> Sample {
    let mut to = Gathered(BTreeMap::new());
    device_memory(device, &mut to);
    if !is_instance {
        utilization(device, &mut to);
        clocks(device, &mut to);
        power(device, &mut to);
        bus(device, &mut to);
        errors(device, &mut to);
        fields(device, &mut to);
        to.add(Reading::XidLast, xid);
        to.add(Reading::MigMode, state(device.mig_mode().map(|mode| u32::from(mode.current == 1))));
        gpm(nvml, device, memory, &mut to);
    }
    let processes = processes(device, is_instance, memory);
    Sample { uuid: uuid.to_owned(), time_ns: monotonic_ns(), readings: to.0, processes }
}

fn device_memory(device: &Device<'_>, to: &mut Gathered) {
    to.split(
        device.memory_info(),
        [
            (Reading::MemoryTotal, |info| State::Value(info.total)),
            (Reading::MemoryUsed, |info| State::Value(info.used)),
            (Reading::MemoryFree, |info| State::Value(info.free)),
            (Reading::MemoryReserved, |info| State::Value(info.reserved)),
        ],
    );
    to.add(Reading::Bar1Used, state(device.bar1_memory_info().map(|info| info.used)));
}

fn utilization(device: &Device<'_>, to: &mut Gathered) {
    to.split(
        device.utilization_rates(),
        [
            (Reading::GpuUtilization, |rates| percent(Ok(rates.gpu))),
            (Reading::MemoryUtilization, |rates| percent(Ok(rates.memory))),
        ],
    );
    let encoder = device.encoder_utilization().map(|info| info.utilization);
    let decoder = device.decoder_utilization().map(|info| info.utilization);
    to.add(Reading::EncoderUtilization, percent(encoder));
    to.add(Reading::DecoderUtilization, percent(decoder));
}

fn clocks(device: &Device<'_>, to: &mut Gathered) {
    to.add(Reading::SmClock, state(device.clock_info(Clock::SM)));
    to.add(Reading::SmClockMax, state(device.max_clock_info(Clock::SM)));
    to.add(Reading::MemoryClock, state(device.clock_info(Clock::Memory)));
    to.add(Reading::PerformanceState, performance(device.performance_state()));
    // Reasons newer than the wrapper come as an error that holds all bits.
    let reasons = match device.current_throttle_reasons_strict() {
        Ok(reasons) => State::Value(ThrottleReasons::bits(&reasons)),
        Err(NvmlError::IncorrectBits(Bits::U64(bits))) => State::Value(bits),
        Err(error) => failure(error),
    };
    to.add(Reading::ThrottleReasons, reasons);
    for (policy, reading) in [
        (PerformancePolicy::Power, Reading::PowerViolation),
        (PerformancePolicy::Thermal, Reading::ThermalViolation),
    ] {
        let held = device.violation_status(policy).map(|time| time.violation_time);
        to.add(reading, state(held));
    }
}

fn performance(answer: Result<PerformanceState, NvmlError>) -> State {
    match answer {
        // "Unknown performance state": the device has none.
        Ok(PerformanceState::Unknown) => State::Unsupported,
        answer => state(answer.map(|answer| answer.as_c())),
    }
}

fn power(device: &Device<'_>, to: &mut Gathered) {
    to.add(Reading::Power, state(device.power_usage()));
    to.add(Reading::PowerLimit, state(device.enforced_power_limit()));
    to.add(Reading::Energy, state(device.total_energy_consumption()));
    to.add(Reading::Temperature, state(device.temperature(TemperatureSensor::Gpu)));
}

fn bus(device: &Device<'_>, to: &mut Gathered) {
    to.add(Reading::PcieTx, state(device.pcie_throughput(PcieUtilCounter::Send)));
    to.add(Reading::PcieRx, state(device.pcie_throughput(PcieUtilCounter::Receive)));
    to.add(Reading::PcieReplays, state(device.pcie_replay_counter()));
    to.add(Reading::PcieGeneration, state(device.current_pcie_link_gen()));
    to.add(Reading::PcieWidth, state(device.current_pcie_link_width()));
}

fn errors(device: &Device<'_>, to: &mut Gathered) {
    use EccCounter::{Aggregate, Volatile};
    use MemoryError::{Corrected, Uncorrected};
    for (kind, counter, reading) in [
        (Corrected, Volatile, Reading::EccCorrected),
        (Uncorrected, Volatile, Reading::EccUncorrected),
        (Corrected, Aggregate, Reading::EccCorrectedLifetime),
        (Uncorrected, Aggregate, Reading::EccUncorrectedLifetime),
    ] {
        to.add(reading, state(device.total_ecc_errors(kind, counter)));
    }
}

fn fields(device: &Device<'_>, to: &mut Gathered) {
    let ids = FIELDS.map(|(id, _)| FieldId(id));
    match device.field_values_for(&ids) {
        Ok(values) => {
            for ((_, reading), value) in FIELDS.into_iter().zip(values) {
                let state = value.and_then(|value| value.value).map_or_else(failure, field);
                to.add(reading, state);
            }
        }
        Err(error) => {
            let state = failure(error);
            FIELDS.into_iter().for_each(|(_, reading)| to.add(reading, state));
        }
    }
}

fn field(value: SampleValue) -> State {
    match value {
        SampleValue::U32(value) => State::Value(value.into()),
        SampleValue::U64(value) => State::Value(value),
        SampleValue::I64(value) => {
            u64::try_from(value).map_or(State::Error(NOT_UNDERSTOOD), State::Value)
        }
        SampleValue::F64(value) => scaled(value, 1.0),
    }
}

/// A float as a whole number of smaller units; what is none, or negative, makes no sense.
fn scaled(value: f64, factor: f64) -> State {
    let scaled = value * factor;
    if scaled.is_finite() && (0.0..9e18).contains(&scaled) {
        State::Value(scaled.round() as u64)
    } else {
        State::Error(NOT_UNDERSTOOD)
    }
}

/// Needs two samples: the first sample of a device has none.
fn gpm<'nvml>(
    nvml: &'nvml Nvml,
    device: &Device<'nvml>,
    memory: &mut Memory<'nvml>,
    to: &mut Gathered,
) {
    let all = |to: &mut Gathered, state| GPM.iter().for_each(|(_, r, _)| to.add(*r, state));
    match device.gpm_support() {
        Ok(true) => {}
        Ok(false) => return all(to, State::Unsupported),
        Err(error) => return all(to, failure(error)),
    }
    let now = match device.gpm_sample() {
        Ok(now) => now,
        Err(error) => return all(to, failure(error)),
    };
    let Some(before) = memory.gpm.replace(now) else { return all(to, State::Unread) };
    let Some(now) = &memory.gpm else { return };
    let ids = GPM.map(|(id, _, _)| id);
    match gpm_metrics_get(nvml, &before, now, &ids) {
        Ok(values) => {
            for ((_, reading, factor), value) in GPM.into_iter().zip(values) {
                to.add(reading, value.map_or_else(failure, |value| scaled(value.value, factor)));
            }
        }
        Err(error) => all(to, failure(error)),
    }
}

fn processes(device: &Device<'_>, is_instance: bool, memory: &mut Memory<'_>) -> Listed {
    // The wrapper makes room for as many as the library says: so it is asked first.
    let processes = match device.running_compute_processes_count() {
        Ok(count) if count as usize > MAX_PROCESSES => {
            return Listed::Not(State::Error(NOT_UNDERSTOOD));
        }
        Ok(_) => device.running_compute_processes(),
        Err(error) => Err(error),
    };
    let processes = match processes {
        Ok(processes) => processes,
        Err(error) => return Listed::Not(failure(error)),
    };
    let time_ns = monotonic_ns();
    let used =
        if is_instance { Use::All(State::Unsupported) } else { use_by_process(device, memory) };
    let left_out = processes.len().saturating_sub(MAX_PROCESSES) as u64;
    let processes = processes.into_iter().take(MAX_PROCESSES).map(|process| ProcessUse {
        pid: process.pid,
        memory: match process.used_gpu_memory {
            UsedGpuMemory::Used(NOT_AVAILABLE) | UsedGpuMemory::Unavailable => State::Unsupported,
            UsedGpuMemory::Used(bytes) => State::Value(bytes),
        },
        utilization: used.of(process.pid),
        gpu_instance: process.gpu_instance_id,
    });
    Listed::List { processes: processes.collect(), time_ns, left_out }
}

/// Processes' use of the multiprocessors.
enum Use {
    /// The same for all: none could be read.
    All(State),
    /// When (µs by the driver's clock) and how much, by process.
    Each(BTreeMap<u32, (u64, State)>),
}

impl Use {
    /// A process without a sample since the last time has not been measured.
    fn of(&self, pid: u32) -> State {
        match self {
            Self::All(state) => *state,
            Self::Each(samples) => samples.get(&pid).map_or(State::Unread, |(_, state)| *state),
        }
    }
}

fn use_by_process(device: &Device<'_>, memory: &mut Memory<'_>) -> Use {
    let samples = match device.process_utilization_stats(memory.utilization_seen_us) {
        Ok(samples) => samples,
        Err(error) => {
            return Use::All(match failure(error) {
                State::Error(NOT_FOUND) => State::Unread,
                state => state,
            });
        }
    };
    let mut each: BTreeMap<u32, (u64, State)> = BTreeMap::new();
    for sample in samples.into_iter().take(16 * MAX_PROCESSES) {
        memory.utilization_seen_us = memory.utilization_seen_us.max(sample.timestamp);
        let newest = each.entry(sample.pid).or_insert((0, State::Unread));
        if sample.timestamp >= newest.0 {
            *newest = (sample.timestamp, percent(Ok(sample.sm_util)));
        }
    }
    Use::Each(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_failed_and_zero_stay_apart() {
        assert_eq!(state(Ok(0_u32)), State::Value(0));
        assert_eq!(state::<u32>(Err(NvmlError::NotSupported)), State::Unsupported);
        assert_eq!(state::<u32>(Err(NvmlError::FunctionNotFound)), State::Unsupported);
        let missing = NvmlError::FailedToLoadSymbol("x".to_owned());
        assert_eq!(state::<u32>(Err(missing)), State::Unsupported);
        assert_eq!(state::<u32>(Err(NvmlError::GpuLost)), State::Error(15));
        assert_eq!(state::<u32>(Err(NvmlError::Unknown)), State::Error(999));
        assert_eq!(state::<u32>(Err(NvmlError::UnexpectedVariant(77))), State::Error(77));
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        assert_eq!(percent(Ok(100)), State::Value(100));
        assert_eq!(percent(Ok(101)), State::Error(NOT_UNDERSTOOD));
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            assert_eq!(scaled(bad, 1.0), State::Error(NOT_UNDERSTOOD), "{bad}");
        }
        assert_eq!(scaled(37.5, 1_000.0), State::Value(37_500));
        assert_eq!(field(SampleValue::I64(-1)), State::Error(NOT_UNDERSTOOD));
    }
}
