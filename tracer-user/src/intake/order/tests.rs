use proptest::prelude::*;

use super::*;
use crate::intake::{
    decode::{sample, tests::any_record},
    event::{IoCall, Losses},
};

/// An event that can be told from others by its thread.
fn event(time_ns: u64, number: usize) -> Event {
    Event { time_ns, pid: 1, tid: number as u32, what: What::Loss(Losses::default()) }
}

/// What is due now.
fn due(order: &mut Orderer) -> impl Iterator<Item = Event> + '_ {
    std::iter::from_fn(|| order.next_due())
}

fn times(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.time_ns).collect()
}

#[test]
fn events_wait_until_the_clock_has_passed_them_by_the_margin() {
    let (mut order, mut out) = (Orderer::default(), Vec::new());
    for time in [MARGIN_NS + 20, 30, 10, 20] {
        order.push(event(time, 0));
        out.extend(due(&mut order));
    }
    order.tick(MARGIN_NS + 19);
    out.extend(due(&mut order));
    assert_eq!(times(&out), [10]);
    order.tick(MARGIN_NS + 20);
    out.extend(due(&mut order));
    assert_eq!(times(&out), [10, 20]);
    order.tick(5);
    out.extend(due(&mut order));
    assert_eq!((order.watermark_ns(), order.waiting()), (20, 2));
    order.finish();
    out.extend(due(&mut order));
    assert_eq!(times(&out), [10, 20, 30, MARGIN_NS + 20]);
    assert_eq!(order.counts(), OrderCounts::default());
}

#[test]
fn events_of_one_time_keep_the_order_of_their_arrival() {
    let (mut order, mut out) = (Orderer::default(), Vec::new());
    for number in 0..50 {
        order.push(event(7, number));
        out.extend(due(&mut order));
    }
    order.finish();
    out.extend(due(&mut order));
    assert!(out.iter().map(|event| event.tid).eq(0..50));
}

#[test]
fn late_events_are_delivered_and_counted() {
    let (mut intake, mut out) = (Intake::default(), Vec::new());
    intake.push(Input::Record(&sample::io(100, 1, IoCall::Read, b"a", 0)));
    out.extend(due(&mut intake.order));
    intake.push(Input::Tick { now_ns: MARGIN_NS + 100 });
    out.extend(due(&mut intake.order));
    intake.push(Input::Record(&sample::io(99, 1, IoCall::Read, b"b", 0)));
    out.extend(due(&mut intake.order));
    intake.push(Input::Record(&sample::launches(101, 50)));
    out.extend(due(&mut intake.order));
    intake.push(Input::Tick { now_ns: MARGIN_NS + 100 });
    out.extend(due(&mut intake.order));
    assert_eq!(times(&out), [100, 50, 99]);
    let counts = intake.counts().order;
    assert_eq!(counts, OrderCounts { late: 2, late_runs: 1, early: 0 });
}

#[test]
fn beyond_the_limits_the_oldest_go_early() {
    let mut out = Vec::new();
    let mut few = Orderer::new(Limits { events: 2, payload_bytes: 100 });
    for time in [3, 1, 2] {
        few.push(event(time, 0));
        out.extend(due(&mut few));
    }
    assert_eq!((times(&out), few.counts().early), (vec![1], 1));
    let mut small = Intake::new(Limits { events: 10, payload_bytes: 5 });
    out.clear();
    for time in [3, 1, 2] {
        let record = sample::io(time, 1, IoCall::Read, b"abc", 0);
        small.push(Input::Record(&record));
        out.extend(due(&mut small.order));
    }
    assert_eq!((times(&out), small.counts().order.early), (vec![1, 2], 2));
    let record = sample::io(4, 1, IoCall::Read, b"abcdefgh", 0);
    small.push(Input::Record(&record));
    out.extend(due(&mut small.order));
    assert_eq!(times(&out), [1, 2, 3, 4]);
}

#[test]
fn facts_and_losses_take_their_place_in_time() {
    let (mut intake, mut out) = (Intake::default(), Vec::new());
    let fact = ProcFact::Gone { pid: 12 };
    let losses = Losses { cuda: 4, ..Losses::default() };
    intake.push(Input::Fact { time_ns: 30, fact: &fact });
    out.extend(due(&mut intake.order));
    intake.push(Input::Losses { time_ns: 10, losses });
    out.extend(due(&mut intake.order));
    intake.push(Input::Record(&sample::close(20, 1)));
    out.extend(due(&mut intake.order));
    intake.push(Input::Record(b"junk"));
    out.extend(due(&mut intake.order));
    intake.finish();
    out.extend(due(&mut intake.order));
    assert_eq!(times(&out), [10, 20, 30]);
    assert_eq!(out[0].what, What::Loss(losses));
    assert_eq!((out[2].pid, &out[2].what), (12, &What::Proc(fact)));
    let counts = intake.counts();
    assert_eq!((counts.records, counts.bad_records), (2, 1));
    assert!(matches!(counts.first_bad, Some(DecodeError::Short { have: 4, .. })));
}

#[derive(Clone, Debug)]
enum Step {
    Event(u64),
    Tick(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let margin = MARGIN_NS;
    let step = prop_oneof![
        4 => (0..2_000u64).prop_map(Step::Event),
        1 => (margin..margin + 2_000).prop_map(Step::Tick),
    ];
    proptest::collection::vec(step, 0..300)
}

fn run(steps: &[Step], limits: Limits) -> (Vec<Event>, OrderCounts) {
    let (mut order, mut out) = (Orderer::new(limits), Vec::new());
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Event(time) => order.push(event(*time, number)),
            Step::Tick(now) => order.tick(*now),
        }
        out.extend(due(&mut order));
    }
    order.finish();
    out.extend(due(&mut order));
    (out, order.counts())
}

proptest! {
    #[test]
    fn nothing_is_lost_and_only_late_events_are_out_of_order(
        steps in steps(),
        events in 1..40usize,
    ) {
        let limits = Limits { events, payload_bytes: 1 << 20 };
        let (out, counts) = run(&steps, limits);
        let mut seen: Vec<_> = out.iter().map(|event| event.tid as usize).collect();
        seen.sort_unstable();
        let is_event = |(number, step): (usize, &Step)| matches!(step, Step::Event(_)).then_some(number);
        let pushed: Vec<_> = steps.iter().enumerate().filter_map(is_event).collect();
        prop_assert_eq!(seen, pushed);
        let mut latest = 0;
        let mut late = 0;
        for event in &out {
            late += u64::from(event.time_ns < latest);
            latest = latest.max(event.time_ns);
        }
        prop_assert_eq!(late, counts.late);
        prop_assert_eq!(run(&steps, limits), (out, counts));
    }

    #[test]
    fn any_records_leave_the_intake_standing(
        records in proptest::collection::vec(any_record(), 0..20),
    ) {
        let (mut intake, mut out) = (Intake::default(), Vec::new());
        for record in &records {
            intake.push(Input::Record(record));
            out.extend(due(&mut intake.order));
            intake.push(Input::Tick { now_ns: 50 });
            out.extend(due(&mut intake.order));
        }
        intake.finish();
        out.extend(due(&mut intake.order));
        let counts = intake.counts();
        prop_assert!(out.len() as u64 + counts.bad_records <= counts.records);
    }
}
