//! Pauses, what is left out, and looks at threads.

use super::*;
use crate::intake::event::{Activity, Doing, Naming};

const S: u64 = 1_000_000_000;
/// `futex`, by number.
const FUTEX: u32 = 202;

/// The descriptor under which the connection's calls come. (`/proc` found it under another.)
const NAMING: Naming = Naming { conn: CONN, pid: PID, fd: 7 };

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
fn a_close_that_was_lost_leaves_no_request_open() {
    let mut pipeline = Pipeline::new(start());
    let mut out = Vec::new();
    let lost = Losses { socket: 9, ..Losses::default() };
    let steps = [opened(), vec![Step::Losses(30 * MS, lost), Step::Tick(2 * S)]].concat();
    steps.iter().for_each(|step| pipeline.push(step.input(), &mut out));
    let doubts = pipeline.doubtful(None, 8);
    assert!(doubts.contains(&NAMING) && pipeline.open_count() == 1, "{doubts:?}");
    let found = doubts.into_iter().map(|naming| Step::Fact(2 * S, ProcFact::Closed(naming)));
    for step in found.chain([Step::Tick(4 * S)]) {
        pipeline.push(step.input(), &mut out);
    }
    assert_eq!((pipeline.open_count(), pipeline.doubtful(None, 8).len()), (0, 0));
    let [timeline] = out.as_slice() else { panic!("{} timelines", out.len()) };
    assert_eq!(timeline.incomplete, ["end-not-seen", "lost-events"]);
    assert_eq!((timeline.outcome, timeline.duration_ns, timeline.open), (None, 0, false));
}

#[test]
fn a_dependency_whose_end_was_not_seen_has_no_duration() {
    let mut pipeline = Pipeline::new(start());
    let steps = |last: Step| [moved(10 * MS, IoCall::Write, REQUEST), last, Step::Tick(S)];
    let mut asked = |last: Step| {
        steps(last).iter().for_each(|step| pipeline.push(step.input(), &mut Vec::new()));
        (pipeline.take_outgoing().len(), pipeline.doubtful(None, 8).len())
    };
    assert_eq!(asked(moved(30 * MS, IoCall::Read, RESPONSE)), (1, 0));
    assert_eq!(asked(Step::Fact(30 * MS, ProcFact::Closed(NAMING))), (0, 0));
}

#[test]
fn an_answer_waits_for_the_events_before_it() {
    // The response, the close and the next connection of that number are still in the ring when the
    // descriptor is looked at.
    let mut steps = opened();
    steps.extend([
        Step::Losses(25 * MS, Losses { socket: 9, ..Losses::default() }),
        Step::Fact(50 * MS, ProcFact::Closed(NAMING)),
        moved(30 * MS, IoCall::Write, RESPONSE),
        closed(35 * MS, NAMING.fd),
        Step::Record(sample::io(40 * MS, CONN + 1, IoCall::Read, REQUEST, 0)),
        Step::Tick(S),
        Step::Record(sample::io(2 * S, CONN + 1, IoCall::Write, RESPONSE, 0)),
        Step::Tick(4 * S),
    ]);
    let (out, open) = run(&steps);
    assert!(open.is_empty());
    let ends: Vec<_> = out.iter().map(|t| (t.outcome, t.duration_ns)).collect();
    let ok = Some(Outcome::Ok);
    assert_eq!(ends, [(ok, 20 * MS), (ok, 2 * S - 40 * MS)]);
    assert!(out.iter().all(|t| !t.incomplete.contains(&"end-not-seen")));
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
