//! The readings by name, and the states that one can have. Names carry the unit.

use serde::{Deserialize, Serialize};

/// The answer to one question. Zero is a value; that the device cannot say, that asking failed, and
/// that nobody has asked are three other things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The device's answer, in the unit that the reading's name says.
    Value(u64),
    /// The device, its mode, or the driver library has no such reading.
    Unsupported,
    /// Asking failed: NVML's return code (`nvmlReturn_t`), or [`NOT_UNDERSTOOD`].
    Error(u32),
    /// Not asked, or not to be had yet: some need two samples.
    Unread,
}

/// The library answered something that makes no sense.
pub const NOT_UNDERSTOOD: u32 = u32::MAX;

impl State {
    /// The value, where there is one.
    pub fn value(self) -> Option<u64> {
        match self {
            Self::Value(value) => Some(value),
            Self::Unsupported | Self::Error(_) | Self::Unread => None,
        }
    }

    /// In a word, where it is no value: `unsupported`, `unread`, `error(gpu-is-lost)`.
    pub fn word(self) -> Option<String> {
        match self {
            Self::Value(_) => None,
            Self::Unsupported => Some("unsupported".to_owned()),
            Self::Unread => Some("unread".to_owned()),
            Self::Error(code) => Some(match code_name(code) {
                Some(name) => format!("error({name})"),
                None => format!("error({code})"),
            }),
        }
    }
}

/// What a return code is called: `nvml.h`, without `NVML_ERROR_`.
pub fn code_name(code: u32) -> Option<&'static str> {
    Some(match code {
        1 => "uninitialized",
        2 => "invalid-argument",
        3 => "not-supported",
        4 => "no-permission",
        6 => "not-found",
        7 => "insufficient-size",
        8 => "insufficient-power",
        9 => "driver-not-loaded",
        10 => "timeout",
        11 => "irq-issue",
        12 => "library-not-found",
        13 => "function-not-found",
        14 => "corrupted-inforom",
        15 => "gpu-is-lost",
        16 => "reset-required",
        17 => "operating-system",
        18 => "lib-rm-version-mismatch",
        19 => "in-use",
        20 => "memory",
        21 => "no-data",
        999 => "unknown",
        NOT_UNDERSTOOD => "not-understood",
        _ => return None,
    })
}

/// An answer, and when it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The answer.
    pub state: State,
    /// When, ns of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
}

macro_rules! readings {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $timeline:literal;)+) => {
        /// What can be asked of a device. Percentages of utilisation are of the driver's last
        /// window, 1/6 s to 1 s long.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub enum Reading {
            $($(#[doc = $doc])+ #[serde(rename = $text)] $name,)+
        }

        impl Reading {
            /// Every reading, in the order in which they are asked and shown.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// As it is written in JSON: a name that ends with the unit.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// Whether timelines carry it: what can explain one request. The others are for
            /// metrics.
            pub fn is_on_timelines(self) -> bool {
                match self {
                    $(Self::$name => $timeline,)+
                }
            }
        }
    };
}

readings! {
    /// Time in which some kernel ran, percent. Says nothing about how much of the device it used.
    GpuUtilization = "gpu_utilization_percent", true;
    /// Time in which device memory was read or written, percent.
    MemoryUtilization = "memory_utilization_percent", true;
    /// Use of the video encoder, percent.
    EncoderUtilization = "encoder_utilization_percent", false;
    /// Use of the video decoder, percent.
    DecoderUtilization = "decoder_utilization_percent", false;
    /// Device memory, bytes.
    MemoryTotal = "memory_total_bytes", false;
    /// Device memory in use, bytes.
    MemoryUsed = "memory_used_bytes", true;
    /// Device memory that is free, bytes.
    MemoryFree = "memory_free_bytes", true;
    /// Device memory that the driver keeps for itself, bytes.
    MemoryReserved = "memory_reserved_bytes", false;
    /// Memory mapped through the bus in use, bytes.
    Bar1Used = "bar1_used_bytes", false;
    /// Clock of the multiprocessors, MHz.
    SmClock = "sm_clock_mhz", true;
    /// The highest that it can be, MHz.
    SmClockMax = "sm_clock_max_mhz", false;
    /// Clock of the memory, MHz.
    MemoryClock = "memory_clock_mhz", true;
    /// Performance state, 0 (highest) to 15.
    PerformanceState = "performance_state", false;
    /// Why clocks are held down: the bits of `nvmlClocksThrottleReasons`. 0: they are not.
    ThrottleReasons = "throttle_reasons_bits", true;
    /// Time in which the power limit held the clocks down since the driver was loaded, ns.
    PowerViolation = "power_violation_ns", false;
    /// Time in which heat did, ns.
    ThermalViolation = "thermal_violation_ns", false;
    /// Power drawn by the board, mW.
    Power = "power_milliwatts", true;
    /// Its limit, mW.
    PowerLimit = "power_limit_milliwatts", false;
    /// Energy since the driver was loaded, mJ.
    Energy = "energy_millijoules", false;
    /// Temperature of the GPU, degrees Celsius.
    Temperature = "temperature_celsius", true;
    /// Temperature of its memory, degrees Celsius.
    MemoryTemperature = "memory_temperature_celsius", true;
    /// Sent over PCIe in a window of 20 ms, kB/s.
    PcieTx = "pcie_tx_kilobytes_per_second", true;
    /// Received over PCIe in a window of 20 ms, kB/s.
    PcieRx = "pcie_rx_kilobytes_per_second", true;
    /// Packets that PCIe had to send again.
    PcieReplays = "pcie_replays_count", false;
    /// Generation of the PCIe link as it runs now.
    PcieGeneration = "pcie_link_generation", false;
    /// Lanes of the PCIe link as it runs now.
    PcieWidth = "pcie_link_width", false;
    /// Memory errors that were corrected, since the driver was loaded.
    EccCorrected = "ecc_corrected_count", false;
    /// Memory errors that were not, since the driver was loaded.
    EccUncorrected = "ecc_uncorrected_count", true;
    /// Memory errors that were corrected in the device's life.
    EccCorrectedLifetime = "ecc_corrected_lifetime_count", false;
    /// Memory errors that were not, in the device's life.
    EccUncorrectedLifetime = "ecc_uncorrected_lifetime_count", false;
    /// Pages retired for errors that were corrected.
    RetiredPagesCorrected = "retired_pages_corrected_count", false;
    /// Pages retired for errors that were not.
    RetiredPagesUncorrected = "retired_pages_uncorrected_count", false;
    /// Rows remapped for errors that were corrected.
    RemappedRowsCorrected = "remapped_rows_corrected_count", false;
    /// Rows remapped for errors that were not.
    RemappedRowsUncorrected = "remapped_rows_uncorrected_count", false;
    /// Rows wait for a reset to be remapped: 1 or 0.
    RemapPending = "remap_pending", false;
    /// Remapping rows has failed: 1 or 0.
    RemapFailure = "remap_failure", false;
    /// The device's last XID since sampling began; 0: none.
    XidLast = "xid_last", true;
    /// Multi-instance mode is on: 1 or 0.
    MigMode = "mig_mode", false;
    /// Time in which the graphics engine was active (GPM), 1/1000 percent.
    GraphicsActive = "gpm_graphics_active_millipercent", true;
    /// Time in which a multiprocessor had a warp, on average (GPM), 1/1000 percent.
    SmActive = "gpm_sm_active_millipercent", true;
    /// Warps resident against the most that fit (GPM), 1/1000 percent.
    SmOccupancy = "gpm_sm_occupancy_millipercent", true;
    /// Time in which a tensor pipe was active (GPM), 1/1000 percent.
    TensorActive = "gpm_tensor_active_millipercent", true;
    /// Bandwidth of device memory in use (GPM), 1/1000 percent.
    DramActive = "gpm_dram_active_millipercent", true;
    /// Sent over PCIe (GPM), bytes/s.
    GpmPcieTx = "gpm_pcie_tx_bytes_per_second", false;
    /// Received over PCIe (GPM), bytes/s.
    GpmPcieRx = "gpm_pcie_rx_bytes_per_second", false;
    /// Sent over NVLink (GPM), bytes/s.
    NvlinkTx = "gpm_nvlink_tx_bytes_per_second", false;
    /// Received over NVLink (GPM), bytes/s.
    NvlinkRx = "gpm_nvlink_rx_bytes_per_second", false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_those_of_json() {
        let mut names: Vec<&str> = Reading::ALL.iter().map(|reading| reading.as_str()).collect();
        for reading in Reading::ALL {
            let json = serde_json::to_value(reading).unwrap();
            assert_eq!(json, reading.as_str());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reading::ALL.len());
    }

    #[test]
    fn states_are_four_different_things() {
        let states = [State::Value(0), State::Unsupported, State::Error(15), State::Unread];
        let words: Vec<_> = states.iter().map(|state| state.word()).collect();
        assert_eq!(
            words,
            [
                None,
                Some("unsupported".to_owned()),
                Some("error(gpu-is-lost)".to_owned()),
                Some("unread".to_owned())
            ]
        );
        for state in states {
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state, "{json}");
        }
        assert_eq!(State::Error(777).word().as_deref(), Some("error(777)"));
    }
}
