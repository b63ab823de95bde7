//! What tests of several rooms tell.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Device, History, Joined, Listed, ProcessUse, Reading, Sample, State, Taken, Told};

pub(crate) fn gpu(index: u32) -> Device {
    Device {
        uuid: format!("GPU-{index}"),
        index,
        name: "a GPU".into(),
        pci_bus_id: format!("00000000:0{index}:00.0"),
        parent: None,
    }
}

/// A sample of a device with one reading and these processes.
pub(crate) fn sample(uuid: &str, time_ns: u64, reading: (Reading, State), pids: &[u32]) -> Sample {
    let process = |pid: &u32| ProcessUse {
        pid: *pid,
        memory: State::Value(u64::from(*pid)),
        utilization: State::Unread,
        gpu_instance: None,
    };
    Sample {
        uuid: uuid.to_owned(),
        time_ns,
        readings: BTreeMap::from([(reading.0, Taken { state: reading.1, time_ns })]),
        processes: Listed::List {
            processes: pids.iter().map(process).collect(),
            time_ns,
            left_out: 0,
        },
    }
}

pub(crate) fn tell(sample: Sample) -> Told {
    Told::Sample(Box::new(sample))
}

pub(crate) fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        any::<u64>().prop_map(State::Value),
        Just(State::Unsupported),
        any::<u32>().prop_map(State::Error),
        Just(State::Unread),
    ]
}

fn uuid() -> impl Strategy<Value = String> {
    prop_oneof!["GPU-[0-3]", "MIG-[0-3]", ".{0,12}"]
}

fn device() -> impl Strategy<Value = Device> {
    (uuid(), any::<u32>(), ".{0,9}", ".{0,9}", prop::option::of(uuid())).prop_map(
        |(uuid, index, name, pci_bus_id, parent)| Device { uuid, index, name, pci_bus_id, parent },
    )
}

fn listed() -> impl Strategy<Value = Listed> {
    let process = (0..6_u32, state(), state(), any::<Option<u32>>()).prop_map(
        |(pid, memory, utilization, gpu_instance)| ProcessUse {
            pid,
            memory,
            utilization,
            gpu_instance,
        },
    );
    prop_oneof![
        (prop::collection::vec(process, 0..5), any::<u64>(), any::<u64>()).prop_map(
            |(processes, time_ns, left_out)| Listed::List { processes, time_ns, left_out }
        ),
        state().prop_map(Listed::Not),
    ]
}

pub(crate) fn any_sample() -> impl Strategy<Value = Sample> {
    let reading = prop::sample::select(Reading::ALL.to_vec());
    let taken = (state(), any::<u64>()).prop_map(|(state, time_ns)| Taken { state, time_ns });
    let readings = prop::collection::btree_map(reading, taken, 0..8);
    (uuid(), any::<u64>(), readings, listed()).prop_map(|(uuid, time_ns, readings, processes)| {
        Sample { uuid, time_ns, readings, processes }
    })
}

/// Any readings that belong to a request.
pub(crate) fn any_joined() -> impl Strategy<Value = Joined> {
    (any_sample(), 0..6_u32).prop_map(|(sample, pid)| {
        let mut history = History::default();
        let device = Device { uuid: sample.uuid.clone(), ..gpu(0) };
        history.take(&Told::Devices(vec![device]));
        history.take(&tell(sample));
        history.join(pid, true, u64::MAX).expect("there is one device and one sample")
    })
}

/// Anything that can be told.
pub(crate) fn told() -> impl Strategy<Value = Told> {
    prop_oneof![
        prop::collection::vec(device(), 0..6).prop_map(Told::Devices),
        any_sample().prop_map(|sample| Told::Sample(Box::new(sample))),
        (uuid(), any::<u64>()).prop_map(|(uuid, xid)| Told::Xid { uuid, xid }),
    ]
}
