use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::nvml::testing::{any_sample, gpu, sample, tell, told};

const USED: (Reading, State) = (Reading::MemoryUsed, State::Value(7));

fn history(devices: Vec<Device>, samples: impl IntoIterator<Item = Sample>) -> History {
    let mut history = History::default();
    history.take(&Told::Devices(devices));
    samples.into_iter().for_each(|sample| history.take(&tell(sample)));
    history
}

fn device_of(history: &History, pid: u32, uses_gpu: bool, end_ns: u64) -> Option<String> {
    history.join(pid, uses_gpu, end_ns).map(|joined| joined.device().to_owned())
}

fn instance(index: u32, parent: &Device) -> Device {
    Device { uuid: format!("MIG-{index}"), parent: Some(parent.uuid.clone()), ..gpu(index) }
}

#[test]
fn the_newest_sample_that_had_been_taken_is_joined_with_its_age() {
    let at =
        |time_ns, used| sample("GPU-0", time_ns, (Reading::MemoryUsed, State::Value(used)), &[5]);
    let history = history(vec![gpu(0)], [at(100, 1), at(200, 2), at(300, 3)]);
    let row = |end_ns| {
        let joined = history.join(5, true, end_ns)?;
        joined.readings().find(|(name, _, _)| *name == "memory_used_bytes")
    };
    assert_eq!(row(99), None);
    assert_eq!(row(100), Some(("memory_used_bytes", State::Value(1), 0)));
    assert_eq!(row(299), Some(("memory_used_bytes", State::Value(2), 99)));
    assert_eq!(row(9_000), Some(("memory_used_bytes", State::Value(3), 8_700)));
}

#[test]
fn states_stay_apart_in_json() {
    let mut taken = sample("GPU-0", 100, (Reading::GpuUtilization, State::Value(0)), &[5]);
    for (reading, state) in
        [(Reading::Power, State::Unsupported), (Reading::Temperature, State::Error(15))]
    {
        taken.readings.insert(reading, Taken { state, time_ns: 90 });
    }
    let history = history(vec![gpu(0)], [taken]);
    let json = serde_json::to_value(history.join(5, true, 100)).unwrap();
    assert_eq!(json["gpu_utilization_percent"], json!({"value": 0, "age_ns": 0}));
    assert_eq!(json["power_milliwatts"], json!({"state": "unsupported", "age_ns": 10}));
    assert_eq!(json["temperature_celsius"], json!({"state": "error(gpu-is-lost)", "age_ns": 10}));
    assert_eq!(json["sm_clock_mhz"], json!({"state": "unread", "age_ns": 0}));
    assert_eq!(json["process_memory_used_bytes"], json!({"value": 5, "age_ns": 0}));
    assert_eq!(json["process_gpu_utilization_percent"], json!({"state": "unread", "age_ns": 0}));
    // What is for metrics only is not there.
    assert_eq!(json.get("energy_millijoules"), None);
}

#[test]
fn a_process_is_joined_to_the_device_that_lists_it() {
    let samples = [sample("GPU-0", 1, USED, &[5, 7]), sample("GPU-1", 1, USED, &[6, 7])];
    let history = history(vec![gpu(0), gpu(1)], samples);
    assert_eq!(device_of(&history, 5, true, 9).as_deref(), Some("GPU-0"));
    assert_eq!(device_of(&history, 6, false, 9).as_deref(), Some("GPU-1"));
    // On both: which of them a request used is not known.
    assert_eq!(device_of(&history, 7, true, 9), None);
    assert_eq!(device_of(&history, 8, true, 9), None);
}

#[test]
fn an_instance_is_more_than_its_gpu() {
    let samples = [sample("GPU-0", 1, USED, &[5]), sample("MIG-1", 1, USED, &[5])];
    let history = history(vec![gpu(0), instance(1, &gpu(0))], samples);
    assert_eq!(device_of(&history, 5, true, 9).as_deref(), Some("MIG-1"));
    // Which instance an unlisted process uses is not known.
    assert_eq!(device_of(&history, 6, true, 9), None);
}

#[test]
fn an_unlisted_process_that_uses_a_gpu_has_the_only_one() {
    let only = history(vec![gpu(0)], [sample("GPU-0", 1, USED, &[])]);
    assert_eq!(device_of(&only, 5, true, 9).as_deref(), Some("GPU-0"));
    assert_eq!(device_of(&only, 5, false, 9), None);
    assert_eq!(device_of(&History::default(), 5, true, 9), None);
}

#[test]
fn visible_devices_say_which_one() {
    let both = || [sample("GPU-0", 1, USED, &[]), sample("GPU-1", 1, USED, &[])];
    let mut two = history(vec![gpu(0), gpu(1)], both());
    for (visible, wanted) in [
        ("1", Some("GPU-1")),
        ("GPU-0", Some("GPU-0")),
        ("0,1", None),
        ("", None),
        ("-1", None),
        ("9", None),
        ("GPU-", None),
    ] {
        two.see(5, visible);
        assert_eq!(device_of(&two, 5, true, 9).as_deref(), wanted, "{visible:?}");
    }
    // CUDA numbers devices of different makes in an order of its own.
    let other = Device { name: "another GPU".into(), ..gpu(1) };
    let mut mixed = history(vec![gpu(0), other], both());
    mixed.see(5, "1");
    assert_eq!(device_of(&mixed, 5, true, 9), None);
    mixed.see(5, "GPU-1");
    assert_eq!(device_of(&mixed, 5, true, 9).as_deref(), Some("GPU-1"));
    mixed.forget(5);
    assert_eq!(device_of(&mixed, 5, true, 9), None);
}

#[test]
fn no_more_is_kept_than_allowed() {
    let mut many: Vec<Device> = (0..300).map(gpu).collect();
    many.push(Device { uuid: "x".repeat(97), ..gpu(0) });
    let mut history = history(many, []);
    assert_eq!((history.snapshot().gpus.len(), history.left_out()), (256, 45));
    let mut crowded = sample("GPU-0", 0, USED, &[]);
    for time_ns in 0..100 {
        crowded.time_ns = time_ns;
        history.take(&tell(crowded.clone()));
    }
    let pids: Vec<u32> = (0..2_000).collect();
    history.take(&tell(sample("GPU-0", 100, USED, &pids)));
    // The oldest went.
    assert_eq!(device_of(&history, 5, true, 36), None);
    let snapshot = history.snapshot();
    let last = snapshot.gpus.iter().find(|gpu| gpu.device.uuid == "GPU-0").unwrap();
    match &last.sample.as_ref().unwrap().processes {
        Listed::List { processes, left_out, .. } => {
            assert_eq!((processes.len(), *left_out), (1_024, 976));
        }
        Listed::Not(_) => panic!("a list was told"),
    }
    // A sample of a device that was never told is nobody's.
    history.take(&tell(sample("GPU-9999", 1, USED, &[])));
    assert_eq!(history.snapshot().gpus.len(), 256);
}

#[test]
fn a_device_keeps_its_samples_when_others_come_and_go() {
    let mut history = history(vec![gpu(0), gpu(1)], [sample("GPU-0", 1, USED, &[5])]);
    history.take(&Told::Xid { uuid: "GPU-0".into(), xid: 79 });
    history.take(&Told::Devices(vec![gpu(0)]));
    assert_eq!(device_of(&history, 5, true, 9).as_deref(), Some("GPU-0"));
    let gpus = history.snapshot().gpus;
    assert_eq!(gpus.iter().map(|gpu| gpu.xids).collect::<Vec<_>>(), [1]);
}

fn check(json: &Value, name: &str, state: State) {
    let row = &json[name];
    assert!(row["age_ns"].is_u64(), "{name}: {row}");
    match state {
        State::Value(value) => {
            assert_eq!((&row["value"], row.get("state")), (&json!(value), None));
        }
        other => {
            assert_eq!(row.get("value"), None);
            assert_eq!(row["state"].as_str(), other.word().as_deref());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_readings_become_json_with_their_states(taken in any_sample(), end_ns: u64) {
        let device = Device { uuid: taken.uuid.clone(), ..gpu(0) };
        let history = history(vec![device], [taken.clone()]);
        let Some(joined) = history.join(3, true, end_ns) else {
            prop_assert!(taken.time_ns > end_ns);
            return Ok(());
        };
        let json = serde_json::to_value(&joined).unwrap();
        for reading in Reading::ALL.iter().filter(|reading| reading.is_on_timelines()) {
            check(&json, reading.as_str(), taken.state(*reading));
        }
    }

    #[test]
    fn whatever_is_told_is_survived(all in prop::collection::vec(told(), 0..40), end_ns: u64) {
        let mut history = History::default();
        for told in &all {
            history.take(told);
            for pid in 0..6 {
                if let Some(joined) = history.join(pid, pid % 2 == 0, end_ns) {
                    serde_json::to_string(&joined).unwrap();
                }
            }
        }
        history.snapshot();
    }
}
