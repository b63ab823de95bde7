use std::{collections::BTreeSet, sync::Arc};

use super::*;
use crate::nvml::testing::{gpu, sample};

fn snapshot(states: &[(Reading, State)]) -> Snapshot {
    let mut taken = sample("GPU-0", 1_000, (Reading::MemoryUsed, State::Value(5 << 20)), &[]);
    for (reading, state) in states {
        let time_ns = taken.time_ns;
        taken.readings.insert(*reading, crate::nvml::Taken { state: *state, time_ns });
    }
    let known = Gpu { device: gpu(0), sample: Some(Arc::new(taken)), xids: 3 };
    let silent = Gpu { device: gpu(1), sample: None, xids: 0 };
    Snapshot { gpus: vec![known, silent] }
}

/// Series of a metric, as text.
fn series(all: &[Metric], name: &str) -> Vec<String> {
    let metric = all.iter().find(|metric| metric.name == name);
    let text = |series: &Series| {
        let labels: Vec<_> = series.labels.iter().map(|(n, v)| format!("{n}={v}")).collect();
        format!("{} {}", labels.join(","), series.value)
    };
    metric.map_or_else(Vec::new, |metric| metric.series.iter().map(text).collect())
}

#[test]
fn values_are_in_the_units_of_their_names() {
    let all = metrics(
        &snapshot(&[
            (Reading::GpuUtilization, State::Value(50)),
            (Reading::Power, State::Value(250_500)),
            (Reading::SmClock, State::Value(1_980)),
            (Reading::TensorActive, State::Value(37_500)),
            (Reading::ThrottleReasons, State::Value(0x20)),
            (Reading::XidLast, State::Value(79)),
        ]),
        2_000_001_000,
        true,
    );
    let of = |name| series(&all, name);
    assert_eq!(of("hw_gpu_utilization_ratio"), ["gpu=GPU-0,hw_gpu_task=general 0.5"]);
    assert_eq!(of("hw_gpu_memory_usage_bytes"), ["gpu=GPU-0 5242880"]);
    assert_eq!(of("hw_power_watts"), ["gpu=GPU-0 250.5"]);
    assert_eq!(of("spanprobe_gpu_clock_hertz"), ["gpu=GPU-0,clock=sm 1980000000"]);
    assert_eq!(of("spanprobe_gpu_active_ratio"), ["gpu=GPU-0,part=tensor 0.375"]);
    assert_eq!(of("spanprobe_gpu_sample_age_seconds"), ["gpu=GPU-0 2"]);
    assert_eq!(of("spanprobe_gpu_xids"), ["gpu=GPU-0 3"]);
    assert_eq!(of("spanprobe_gpu_info").len(), 2);
    let throttled = of("spanprobe_gpu_throttled");
    assert_eq!(throttled.len(), THROTTLES.len());
    assert_eq!(throttled.iter().filter(|line| line.ends_with(" 1")).count(), 1);
    assert_eq!(
        of("DCGM_FI_DEV_FB_USED"),
        ["gpu=0,UUID=GPU-0,pci_bus_id=00000000:00:00.0,device=nvidia0,modelName=a GPU 5"]
    );
    assert_eq!(of("DCGM_FI_DEV_GPU_UTIL").len(), 1);
    assert!(of("DCGM_FI_DEV_ENC_UTIL").is_empty());
}

#[test]
fn what_has_no_value_has_no_series_and_says_why() {
    let all = metrics(
        &snapshot(&[
            (Reading::Power, State::Unsupported),
            (Reading::Temperature, State::Error(15)),
            (Reading::EncoderUtilization, State::Value(0)),
        ]),
        0,
        false,
    );
    assert!(series(&all, "hw_power_watts").is_empty());
    assert!(series(&all, "spanprobe_gpu_throttled").is_empty());
    assert_eq!(series(&all, "hw_gpu_utilization_ratio"), ["gpu=GPU-0,hw_gpu_task=encoder 0"]);
    let states = series(&all, "spanprobe_gpu_reading_state");
    for wanted in [
        "gpu=GPU-0,reading=power_milliwatts,state=unsupported 1",
        "gpu=GPU-0,reading=temperature_celsius,state=error 1",
        "gpu=GPU-0,reading=sm_clock_mhz,state=unread 1",
    ] {
        assert!(states.iter().any(|line| line == wanted), "no {wanted} in {states:?}");
    }
    assert!(!all.iter().any(|metric| metric.name.starts_with("DCGM")));
    assert!(metrics(&Snapshot::default(), 0, true).is_empty());
}

#[test]
fn no_metric_comes_twice() {
    let full: Vec<_> = Reading::ALL.iter().map(|r| (*r, State::Value(1))).collect();
    let all = metrics(&snapshot(&full), 0, true);
    let names: BTreeSet<&str> = all.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all.len());
    for metric in &all {
        let labels: BTreeSet<_> = metric.series.iter().map(|s| format!("{:?}", s.labels)).collect();
        assert_eq!(labels.len(), metric.series.len(), "{}", metric.name);
    }
}
