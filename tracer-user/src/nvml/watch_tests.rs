use proptest::prelude::*;

use super::*;
use crate::nvml::{
    State,
    testing::{sample, tell, told},
};

const TRACED: u32 = 5;

/// What the samples change, as kinds and processes.
fn changes(told: impl IntoIterator<Item = Told>) -> Vec<(Kind, Option<u32>)> {
    let mut watch = Watch::default();
    let mut out = Vec::new();
    for told in told {
        watch.take(1, &told, |pid| pid == TRACED, &mut out);
    }
    out.into_iter().map(|change| (change.kind, change.pid)).collect()
}

fn reading(reading: Reading, states: &[State]) -> Vec<(Kind, Option<u32>)> {
    changes(states.iter().map(|state| tell(sample("GPU-0", 1, (reading, *state), &[]))))
}

#[test]
fn throttling_begins_and_ends_by_reason() {
    use State::{Error, Unsupported, Value};
    let begin = (Kind::ThrottleBegin, None);
    let end = (Kind::ThrottleEnd, None);
    let reasons = |states: &[State]| reading(Reading::ThrottleReasons, states);
    // Idle, and clocks set by hand, are nobody's throttling.
    assert_eq!(reasons(&[Value(0), Value(1), Value(2), Value(0x101)]), []);
    assert_eq!(reasons(&[Value(0), Value(0x20), Value(0x21), Value(1)]), [begin, end]);
    assert_eq!(
        reasons(&[Value(0x20), Value(0x44), Value(0)]),
        [begin, begin, end, begin, end, end]
    );
    // A failure between is no end.
    assert_eq!(reasons(&[Value(4), Error(15), Value(4), Unsupported, Value(0)]), [begin, end]);
}

#[test]
fn memory_errors_are_told_when_they_become_more() {
    use State::{Error, Value};
    let ecc = (Kind::Ecc, None);
    let errors = |states: &[State]| reading(Reading::EccUncorrected, states);
    assert_eq!(errors(&[Value(9), Value(9)]), []);
    assert_eq!(errors(&[Value(9), Error(15), Value(10), Value(12)]), [ecc, ecc]);
    // The driver was loaded anew.
    assert_eq!(errors(&[Value(9), Value(0), Value(1)]), [ecc]);
}

#[test]
fn neighbours_are_those_beside_a_traced_process() {
    let used = (Reading::MemoryUsed, State::Value(1));
    let list = |pids: &[u32]| tell(sample("GPU-0", 1, used, pids));
    let begin = |pid| (Kind::NeighbourBegin, Some(pid));
    let end = |pid| (Kind::NeighbourEnd, Some(pid));
    assert_eq!(changes([list(&[7]), list(&[7, 8])]), []);
    assert_eq!(
        changes([list(&[TRACED]), list(&[TRACED, 7]), list(&[TRACED, 7]), list(&[TRACED])]),
        [begin(7), end(7)]
    );
    assert_eq!(changes([list(&[TRACED, 7]), list(&[7])]), [begin(7), end(7)]);
    let mut failed = sample("GPU-0", 1, used, &[]);
    failed.processes = crate::nvml::Listed::Not(State::Error(999));
    assert_eq!(changes([list(&[TRACED, 7]), tell(failed), list(&[TRACED, 7])]), [begin(7)]);
}

#[test]
fn xids_are_told_with_what_they_mean() {
    let mut out = Vec::new();
    let told = Told::Xid { uuid: "GPU-0".into(), xid: 79 };
    Watch::default().take(8, &told, |_| false, &mut out);
    assert_eq!(
        out,
        [Change {
            time_ns: 8,
            kind: Kind::Xid,
            text: "XID 79: the GPU has fallen off the bus".into(),
            gpu: "GPU-0".into(),
            pid: None
        }]
    );
    assert_eq!(xid_text(12_345), "see NVIDIA's catalogue");
}

#[test]
fn devices_that_are_gone_are_forgotten() {
    let hot = || tell(sample("GPU-0", 1, (Reading::ThrottleReasons, State::Value(4)), &[]));
    let begin = (Kind::ThrottleBegin, None);
    assert_eq!(changes([hot(), hot(), Told::Devices(Vec::new()), hot()]), [begin, begin]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_told_is_survived(all in prop::collection::vec(told(), 0..40)) {
        let _ = changes(all);
    }
}
