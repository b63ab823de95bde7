//! What NVML tells, in the pipeline: on timelines, and in the event log.

use super::*;
use crate::nvml::{
    Reading, State, Told,
    testing::{gpu, sample as readings, tell},
};

fn told(time_ns: u64, used: u64, pids: &[u32]) -> Step {
    let used = (Reading::MemoryUsed, State::Value(used));
    Step::Nvml(time_ns, tell(readings("GPU-0", time_ns, used, pids)))
}

/// The story, with a device and samples before, in and after its GPU time, which ends at 27 ms.
fn sampled(pids: &[u32]) -> Vec<Step> {
    let mut steps = story();
    let tick = steps.len() - 1;
    steps.splice(tick..tick, [5, 20, 28].map(|ms| told(ms * MS, ms, pids)));
    steps.insert(0, Step::Nvml(1, Told::Devices(vec![gpu(0)])));
    steps
}

#[test]
fn readings_are_those_at_the_end_of_the_gpu_time() {
    for pids in [&[PID][..], &[]] {
        let (timelines, _) = run(&sampled(pids));
        let [timeline] = timelines.as_slice() else { panic!("{} timelines", timelines.len()) };
        assert_eq!(timeline.gpu_end_ns(), 27 * MS);
        let joined = timeline.nvml.as_ref().unwrap();
        let used = joined.readings().find(|(name, ..)| *name == "memory_used_bytes");
        assert_eq!(used, Some(("memory_used_bytes", State::Value(20), 7 * MS)));
        assert_eq!(timeline.gpu.as_ref().unwrap().device.as_deref(), Some("GPU-0"));
        let json = serde_json::to_value(timeline).unwrap();
        assert_eq!(json["nvml"]["memory_used_bytes"]["value"], 20);
        assert_eq!(json["gpu"]["device"], "GPU-0");
    }
}

#[test]
fn without_nvml_nothing_is_said_of_it() {
    let (timelines, _) = run(&story());
    let json = serde_json::to_value(&timelines[0]).unwrap();
    assert_eq!(json.get("nvml"), None);
    assert_eq!(json["gpu"].get("device"), None);
}

#[test]
fn visible_devices_choose_among_several() {
    let mut steps = sampled(&[]);
    steps[0] = Step::Nvml(1, Told::Devices(vec![gpu(0), gpu(1)]));
    let device = |steps: &[Step]| {
        let (timelines, _) = run(steps);
        timelines[0].nvml.as_ref().map(|joined| joined.device().to_owned())
    };
    assert_eq!(device(&steps), None);
    steps.insert(2, Step::Fact(3, ProcFact::Visible { pid: PID, devices: "0".into() }));
    assert_eq!(device(&steps).as_deref(), Some("GPU-0"));
}

/// The event log of the steps.
fn happenings(steps: &[Step]) -> Vec<Happening> {
    let mut pipeline = Pipeline::new(start());
    steps.iter().for_each(|step| pipeline.push(step.input(), &mut Vec::new()));
    pipeline.happenings().into_iter().filter(|h| h.kind != Kind::ProcessStart).collect()
}

#[test]
fn what_changes_is_a_line_of_the_event_log() {
    let mut steps = sampled(&[PID]);
    steps.push(told(2_001 * MS, 1, &[PID, 9]));
    steps.push(Step::Nvml(2_002 * MS, Told::Xid { uuid: "GPU-0".into(), xid: 48 }));
    let all = happenings(&steps);
    let [neighbour, xid] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((neighbour.kind, neighbour.pid), (Kind::NeighbourBegin, Some(9)));
    assert_eq!((xid.kind, xid.gpu.as_deref()), (Kind::Xid, Some("GPU-0")));
    assert_eq!(xid.unix_ns, 1_000_000_000_000 + 2_002 * MS);
}

#[test]
fn running_out_of_device_memory_is_told_once_a_second() {
    let mut steps = vec![target()];
    for ms in [100, 150, 1_050, 1_200] {
        steps.push(driver(ms * MS, ms * MS + 10, Api::MemAlloc, 2, [0; 4]));
    }
    steps.push(Step::Tick(2_000 * MS));
    let all = happenings(&steps);
    let [first, second] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((first.kind, first.pid), (Kind::OutOfMemory, Some(PID)));
    assert_eq!(first.text, "cuMemAlloc: out of device memory");
    assert_eq!(second.unix_ns - first.unix_ns, 1_100 * MS);
}
