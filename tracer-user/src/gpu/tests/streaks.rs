//! Streaks of NOT_READY queries.

use super::super::{Method, WaitPhase};
use super::bench::*;
use crate::intake::event::{Api, Direction, Event, Io, IoCall, Process, Socket, What};

const US: u64 = 1_000;

#[test]
fn streaks_of_queries_are_waits() {
    let polled = |more: Vec<Event>, last: Event| {
        let mut events = vec![
            launch(100, 100, 1, FREE),
            record(110, 111, 0xea, FREE),
            query(200, 201, 0xea).ret(600),
        ];
        events.extend(more);
        events.push(last);
        hear(events)
    };
    let heard = polled(vec![query(300, 301, 0xea).ret(600)], query(400, 401, 0xea));
    let wait = heard.wait(401).unwrap();
    assert_eq!((wait.enter_ns, wait.phase, wait.steps.len()), (200, WaitPhase::Kernel, 1));
    // The kernel half tells when the last unsuccessful query was asked, and of how many.
    let far = 10_000_000_000;
    let told = call(Api::EventQuery, far, far + 1, &[0xea, 0, 0, 0, far - 10, 9_000]);
    let heard = polled(vec![], told);
    assert_eq!(heard.wait(far + 1).unwrap().enter_ns, 200);
    // A gap too long, another call, bytes moved: the wait is only what came after.
    let read = Event {
        time_ns: 350,
        pid: PID,
        tid: 1,
        what: What::Socket(Socket::Io(Io {
            conn: 1,
            fd: 3,
            call: IoCall::Read,
            direction: Direction::In,
            enter_ns: 340,
            ret: 1,
            requested: 1,
            peek: false,
            data: bytes::Bytes::from_static(b"x"),
        })),
    };
    for (name, more, last) in [
        ("gap", vec![], query(200_000_000, 200_000_001, 0xea)),
        ("call", vec![call(Api::MemAlloc, 300, 301, &[])], query(400, 401, 0xea)),
        ("launch", vec![launch(300, 300, 1, OTHER)], query(400, 401, 0xea)),
        ("socket", vec![read], query(400, 401, 0xea)),
    ] {
        let end = last.time_ns;
        let heard = polled(more, last);
        assert_eq!(heard.wait(end), None, "{name}");
        assert_eq!(heard.proven(), [100], "{name}");
    }
    // Asking for the context, or for another event, does not end it.
    let others = vec![call(Api::CtxSetCurrent, 250, 251, &[CTX]), query(260, 261, 0xeb).ret(600)];
    assert_eq!(polled(others, query(400, 401, 0xea)).wait(401).unwrap().enter_ns, 200);
    // Without success it is reported as estimated when it ends.
    let heard = polled(
        vec![query(200 + 60 * US, 201 + 60 * US, 0xea).ret(600)],
        call(Api::MemAlloc, 300 + 60 * US, 301 + 60 * US, &[]),
    );
    let wait = heard.wait(201 + 60 * US).unwrap();
    assert_eq!((wait.method, wait.phase), (Method::Estimated, WaitPhase::Kernel));
}

#[test]
fn an_end_of_the_thread_ends_its_streak() {
    let mut events = vec![launch(100, 100, 1, FREE), record(110, 111, 0xea, FREE)];
    for at in [200, 200 + 60 * US] {
        events.push(query(at, at + 1, 0xea).ret(600));
    }
    let what = What::Process(Process::Exit { last: false });
    events.push(Event { time_ns: 300 + 60 * US, pid: PID, tid: 1, what });
    assert!(hear(events).wait(201 + 60 * US).is_some());
}
