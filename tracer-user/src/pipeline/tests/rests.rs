//! Pauses, what is left out, and looks at threads.

use super::*;
use crate::intake::event::{Activity, Doing};

const S: u64 = 1_000_000_000;
/// `futex`, by number.
const FUTEX: u32 = 202;

fn opened() -> Vec<Step> {
    vec![target(), server_connection(), moved(10 * MS, IoCall::Read, REQUEST), Step::Tick(20 * MS)]
}

#[test]
fn a_pause_ends_what_is_open_and_says_so() {
    let mut steps = opened();
    steps.extend([
        Step::Fact(30 * MS, ProcFact::Paused { pid: PID }),
        Step::Tick(5 * S),
        target(),
        // The connection goes on, under another number.
        Step::Record(sample::io(6 * S, CONN + 1, IoCall::Write, RESPONSE, 0)),
        Step::Tick(9 * S),
    ]);
    let (out, open) = run(&steps);
    assert!(open.is_empty());
    let first = out.first().expect("the request that was open");
    assert_eq!((first.incomplete.as_slice(), first.outcome), (&["paused"][..], None));
    assert_eq!(first.start_monotonic_ns + first.duration_ns, 30 * MS);
}

#[test]
fn without_the_scheduler_host_time_is_nobodys() {
    let mut steps = opened();
    steps.extend([
        Step::Fact(15 * MS, ProcFact::Shed { level: 2 }),
        moved(40 * MS, IoCall::Write, RESPONSE),
        Step::Fact(2 * S, ProcFact::Shed { level: 1 }),
        moved(3 * S, IoCall::Read, REQUEST),
        moved(3 * S + MS, IoCall::Write, RESPONSE),
        Step::Tick(9 * S),
    ]);
    let (out, _) = run(&steps);
    assert_eq!(out[0].incomplete, ["cost-shed"]);
    assert!(out[0].phases.iter().all(|phase| phase.phase != PhaseName::Cpu), "{:?}", out[0].phases);
    assert!(out[1].complete, "{:?}", out[1].incomplete);
}

#[test]
fn an_open_request_says_what_its_thread_is_in() {
    let mut steps = opened();
    let doing = Doing {
        pid: PID,
        tid: TID,
        state: Activity::Blocked,
        syscall: Some(FUTEX),
        since_ns: 12 * MS,
        object: 0x7000,
        driver: None,
        owner: Some(99),
    };
    steps.extend([Step::Fact(2 * S, ProcFact::Doing(doing)), Step::Tick(2 * S + 500 * MS)]);
    let (_, open) = run(&steps);
    let now = open[0].now.as_ref().expect("looked at");
    assert_eq!((now.tid, now.call.as_str(), now.for_ns), (TID, "futex", Some(2 * S - 12 * MS)));
    assert!(now.detail.contains("thread 99"), "{now:?}");
    let last = open[0].phases.last().expect("phases");
    assert_eq!((last.phase, &*last.detail), (PhaseName::Lock, "held by thread 99"));
    assert!(tiles(&open[0].phases, open[0].duration_ns));
}
