//! Phases of whole timelines that come of who waited for whom.

use tracer_ebpf::wire::{Header, Kind, socket};

use super::*;
use crate::timeline::model::Phase;

/// A worker, and the queue that it waits on.
const WORKER: u32 = TID + 1;

fn by_thread(tid: u32, step: Step) -> Step {
    let Step::Record(mut record) = step else { return step };
    sample::put(&mut record, offset_of!(Header, tid), tid.to_le_bytes());
    Step::Record(record)
}

/// Name, end in ms, words.
fn told(timeline: &Timeline) -> Vec<(PhaseName, u64, &str)> {
    let end = |phase: &Phase| (phase.offset_ns + phase.duration_ns + MS / 2) / MS;
    let mut told: Vec<(PhaseName, u64, &str)> = Vec::new();
    for phase in timeline.phases.iter().filter(|phase| phase.duration_ns > MS / 10) {
        match told.last_mut() {
            Some(last) if last.0 == phase.phase && last.2 == phase.detail => last.1 = end(phase),
            _ => told.push((phase.phase, end(phase), &phase.detail)),
        }
    }
    told
}

#[test]
fn running_lies_before_between_and_after_the_gpu() {
    let (timelines, _) = run(&story());
    assert_eq!(
        told(&timelines[0]),
        [
            (PhaseName::Cpu, 1, "pre"),
            (PhaseName::Gpu, 5, "may include work enqueued before attach or unseen"),
            (PhaseName::Cpu, 7, "between"),
            (PhaseName::D2h, 17, ""),
            (PhaseName::Cpu, 20, "post"),
        ]
    );
}

/// A write that took so long.
fn slow_write(enter_ns: u64, exit_ns: u64, data: &[u8]) -> Step {
    let mut record = sample::io(exit_ns, CONN, IoCall::Write, data, 0);
    sample::put(&mut record, offset_of!(socket::Io, enter_ns), enter_ns.to_le_bytes());
    Step::Record(record)
}

#[test]
fn a_slow_client_is_waited_for_in_the_write() {
    let steps = [
        target(),
        server_connection(),
        moved(10 * MS, IoCall::Read, REQUEST),
        slow_write(20 * MS, 50 * MS, RESPONSE),
        Step::Tick(2_000 * MS),
    ];
    let (timelines, _) = run(&steps);
    assert_eq!(told(&timelines[0]), [(PhaseName::Cpu, 10, ""), (PhaseName::Send, 40, "")]);
}

#[test]
fn a_pipelined_request_waits_for_the_one_before_it() {
    let both = [REQUEST, REQUEST].concat();
    let steps = [
        target(),
        server_connection(),
        moved(10 * MS, IoCall::Read, &both),
        moved(30 * MS, IoCall::Write, RESPONSE),
        moved(40 * MS, IoCall::Write, RESPONSE),
        Step::Tick(2_000 * MS),
    ];
    let (timelines, _) = run(&steps);
    assert_eq!(timelines.len(), 2);
    assert_eq!(told(&timelines[0]), [(PhaseName::Cpu, 20, "")]);
    assert_eq!(told(&timelines[1]), [(PhaseName::ThreadBusy, 20, ""), (PhaseName::Cpu, 30, "")]);
}

#[test]
fn a_pipelined_request_waits_without_a_gpu_as_well() {
    let exe = "/usr/sbin/proxy".to_owned();
    let fact = ProcFact::Target { pid: PID, exe, comm: "proxy".into(), cuda: false };
    let both = [REQUEST, REQUEST].concat();
    let steps = [
        Step::Fact(1, fact),
        server_connection(),
        moved(10 * MS, IoCall::Read, &both),
        moved(30 * MS, IoCall::Write, RESPONSE),
        moved(40 * MS, IoCall::Write, RESPONSE),
        Step::Tick(2_000 * MS),
    ];
    let (timelines, _) = run(&steps);
    assert_eq!(told(&timelines[1]), [(PhaseName::ThreadBusy, 20, ""), (PhaseName::Cpu, 30, "")]);
}

#[test]
fn a_request_given_up_is_walked_from_its_end() {
    let steps = [
        target(),
        server_connection(),
        moved(10 * MS, IoCall::Read, REQUEST),
        by_thread(WORKER, driver(11 * MS, 15 * MS, Api::MemcpyDtoH, 0, [1, 2, 4096, 0])),
        closed(30 * MS, 5),
        closed(30 * MS, 7),
        Step::Tick(2_000 * MS),
    ];
    let (timelines, open) = run(&steps);
    assert!(open.is_empty());
    assert_eq!(timelines[0].duration_ns, 20 * MS);
    assert_eq!(told(&timelines[0]).last(), Some(&(PhaseName::Cpu, 20, "post")));
}

#[test]
fn an_open_request_shows_what_it_does_now() {
    let steps = [
        target(),
        server_connection(),
        moved(10 * MS, IoCall::Read, REQUEST),
        Step::Tick(510 * MS),
    ];
    let (_, open) = run(&steps);
    assert_eq!(told(&open[0]), [(PhaseName::Cpu, 500, "")]);
}

/// What was let go for want of room is said.
#[test]
fn records_without_room_are_counted() {
    let mut pipeline = Pipeline::new(start());
    let mut out = Vec::new();
    // More threads than are kept.
    for tid in 0..65_600u32 {
        let record = sample::raw(Kind::SchedYields, MS + u64::from(tid), 0, &[]);
        pipeline.push(by_thread(tid, Step::Record(record)).input(), &mut out);
    }
    pipeline.push(Input::Tick { now_ns: 2_000 * MS }, &mut out);
    let lost = pipeline.health().events_lost;
    assert!(lost.contains(&("evicted waits of threads".to_owned(), 65_536)), "{lost:?}");
}
