//! Why a request took its time: of a session made by hand, through a session file.
//!
//! Thread 41 owns the sockets and hands each request to thread 51, which works on it and tells 41
//! through an `eventfd`; half-way it waits for a lock that 52 holds.

use std::mem::offset_of;

use tracer_ebpf::wire::{
    Header, Kind, WIRE_VERSION, cuda,
    cuda_api::Api,
    sched,
    sched::{Call, NO_TIMEOUT},
};

use super::super::explain::{render_candidates, render_explanation};
use super::super::style::Style;
use super::check_fits;
use super::snapshots::snapshot;
use super::styles;
use crate::{
    intake::{
        decode::sample::{self, PID, TID, put},
        event::{Descriptor, IoCall, ProcFact},
        input::{Input, SessionStart},
    },
    pipeline::Pipeline,
    record::{Options, Reader, Writer},
    timeline::explain::{Answer, Explanation},
};

const LOOP: u32 = TID;
const WORKER: u32 = 51;
const HOLDER: u32 = 52;
const OTHER: u32 = 53;
const CONN: u64 = 7;
const EPOLL: u64 = 77;
const EVENT_FD: u64 = 99;
const QUEUE: u64 = 0xa0;
const LOCK: u64 = 0xb0;
const REQUEST: &[u8] = b"POST /v1/embed?x=1 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn start() -> SessionStart {
    SessionStart {
        wire_version: WIRE_VERSION,
        host: "host".into(),
        boot_id: String::new(),
        kernel: "6.18".into(),
        started_monotonic_ns: 0,
        realtime_offset_ns: 1_764_475_927_000_000_000,
        seed: *b"0123456789abcdef",
        clock_ticks_per_s: 100,
        spanprobe_version: "0".into(),
        selectors: vec![],
    }
}

/// Records with their times, µs.
#[derive(Default)]
struct Session(Vec<(u64, Vec<u8>)>);

impl Session {
    fn add(&mut self, us: u64, tid: u32, mut record: Vec<u8>) {
        put(&mut record, offset_of!(Header, tid), tid.to_le_bytes());
        self.0.push((us, record));
    }

    fn io(&mut self, us: u64, call: IoCall, data: &[u8]) {
        self.add(us, LOOP, sample::io(us * 1_000, CONN, call, data, 0));
    }

    /// A call of `tid` in which it slept from `out` until `waker` (thread, call, object) woke it.
    fn wait(
        &mut self,
        tid: u32,
        (call, object): (Call, u64),
        [out, woken, back]: [u64; 3],
        (waker, by, acted): (u32, Call, u64),
    ) {
        let mut record = sample::raw(Kind::SchedWait, (back + 5) * 1_000, 0, &[]);
        let at = offset_of!(sched::Wait, sleep);
        for (at, value) in [
            (offset_of!(sched::Wait, enter_ns), out * 1_000 - 500),
            (offset_of!(sched::Wait, object), object),
            (offset_of!(sched::Wait, timeout_ns), NO_TIMEOUT),
            (offset_of!(sched::Wait, ret), u64::from(call == Call::EpollWait)),
            (at + offset_of!(sched::Sleep, out_ns), out * 1_000),
            (at + offset_of!(sched::Sleep, woken_ns), woken * 1_000),
            (at + offset_of!(sched::Sleep, in_ns), back * 1_000),
            (at + offset_of!(sched::Sleep, waker_object), acted),
        ] {
            put(&mut record, at, value.to_le_bytes());
        }
        put(&mut record, offset_of!(sched::Wait, call), [call as u8]);
        put(&mut record, at + offset_of!(sched::Sleep, waker_tgid), PID.to_le_bytes());
        put(&mut record, at + offset_of!(sched::Sleep, waker_tid), waker.to_le_bytes());
        put(&mut record, at + offset_of!(sched::Sleep, state), 1u16.to_le_bytes());
        put(&mut record, at + offset_of!(sched::Sleep, waker_call), [by as u8]);
        self.add(back + 5, tid, record);
    }

    fn signal(&mut self, us: u64, tid: u32, written: bool) {
        let mut record = sample::raw(Kind::SchedSignal, us * 1_000, 0, &[]);
        put(&mut record, offset_of!(sched::Signal, enter_ns), (us * 1_000 - 4_000).to_le_bytes());
        put(&mut record, offset_of!(sched::Signal, object), EVENT_FD.to_le_bytes());
        put(&mut record, offset_of!(sched::Signal, ret), 8u64.to_le_bytes());
        put(&mut record, offset_of!(sched::Signal, written), [u8::from(written)]);
        self.add(us, tid, record);
    }

    fn watch(&mut self, us: u64) {
        let mut record = sample::raw(Kind::SchedEpollCtl, us * 1_000, 0, &[]);
        put(&mut record, offset_of!(sched::EpollCtl, epoll), EPOLL.to_le_bytes());
        put(&mut record, offset_of!(sched::EpollCtl, object), EVENT_FD.to_le_bytes());
        put(&mut record, offset_of!(sched::EpollCtl, op), 1u32.to_le_bytes());
        self.add(us, LOOP, record);
    }

    fn driver(&mut self, [enter, exit]: [u64; 2], api: Api, args: [u64; 4]) {
        let mut record = sample::call(exit * 1_000, api as u16, &[]);
        put(&mut record, offset_of!(cuda::Call, enter_ns), (enter * 1_000).to_le_bytes());
        for (index, arg) in args.iter().enumerate() {
            put(&mut record, offset_of!(cuda::Call, args) + index * 8, arg.to_le_bytes());
        }
        self.add(exit, WORKER, record);
    }

    /// A request that is read at a time, and what is done for it.
    fn request(&mut self, at: u64, idle_since: u64) {
        self.io(at, IoCall::Read, REQUEST);
        let (lock, queue, event) = ((Call::Futex, LOCK), (Call::Futex, QUEUE), Call::EpollWait);
        let handed = [idle_since, at + 100, at + 130];
        self.wait(WORKER, queue, handed, (LOOP, Call::Futex, QUEUE));
        // Others wait there too: that is what makes it a lock.
        self.wait(OTHER, lock, [at + 10, at + 20, at + 25], (0, Call::None, 0));
        let locked = [at + 2_000, at + 4_000, at + 4_050];
        self.wait(WORKER, lock, locked, (HOLDER, Call::Futex, LOCK));
        self.driver([at + 5_000, at + 5_010], Api::CtxSynchronize, [0; 4]);
        self.driver([at + 5_100, at + 5_110], Api::MemcpyDtoHAsync, [1, 2, 64, 99]);
        self.driver([at + 5_200, at + 9_200], Api::StreamSynchronize, [99, 0, 0, 0]);
        self.signal(at + 10_000, WORKER, true);
        let done = [at + 200, at + 9_998, at + 10_200];
        self.wait(LOOP, (event, EPOLL), done, (WORKER, Call::Write, EVENT_FD));
        self.signal(at + 10_250, LOOP, false);
        self.io(at + 10_500, IoCall::Write, RESPONSE);
    }

    /// A session file of all that.
    fn file(mut self) -> Vec<u8> {
        self.0.sort_by_key(|(us, _)| *us);
        let exe = "/opt/model-server".to_owned();
        let target = ProcFact::Target { pid: PID, exe, comm: "model-server".into(), cuda: true };
        let address = |port: u16| ([127, 0, 0, 1], port).into();
        let kind = Descriptor::Tcp { local: address(80), peer: address(4_000), server: true };
        let connection = ProcFact::Descriptor { pid: PID, fd: 7, conn: CONN, kind };
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, &start(), Options::default()).expect("written");
        for fact in [&target, &connection] {
            writer.push(Input::Fact { time_ns: 1, fact }).expect("written");
        }
        for (_, record) in &self.0 {
            writer.push(Input::Record(record)).expect("written");
        }
        writer.push(Input::Tick { now_ns: 3_000_000_000 }).expect("written");
        writer.finish().expect("written");
        drop(writer);
        file
    }
}

/// Two requests, one after the other.
fn session() -> Vec<u8> {
    let mut session = Session::default();
    session.watch(500);
    session.request(10_000, 1_000);
    session.request(50_000, 20_100);
    session.file()
}

fn ask(file: &[u8], id: &str) -> Answer {
    let mut reader = Reader::new(file).expect("a session file");
    let mut pipeline = Pipeline::new(reader.start().clone());
    pipeline.explain(id);
    let mut out = Vec::new();
    while let Some(input) = reader.read() {
        pipeline.push(input, &mut out);
    }
    pipeline.finish(&mut out);
    pipeline.explanation().expect("it was asked for")
}

/// The first request, by its trace id.
fn explanation() -> Explanation {
    let file = session();
    let Answer::Many { requests: 2, first } = ask(&file, "") else { panic!("two requests") };
    let Answer::One(found) = ask(&file, &first[0].trace_id.to_string()) else {
        panic!("one request")
    };
    *found
}

#[test]
fn an_explanation_looks() {
    let found = explanation();
    let text = |width| render_explanation(&found, Style::plain(width));
    snapshot!("explain-40", text(40), Style::plain(40));
    snapshot!("explain-120", text(120), Style::plain(120));
    styles(73).into_iter().for_each(|style| check_fits(&render_explanation(&found, style), style));
}

#[test]
fn it_tells_who_worked_and_how_that_is_known() {
    let found = explanation();
    let json: serde_json::Value = serde_json::to_value(&found).expect("JSON");
    let item = &json["items"][0];
    assert_eq!((&item["tid"], &item["from"]), (&WORKER.into(), &LOOP.into()), "{item}");
    assert_eq!(item["evidence"], "wake-chain");
    let of = |tid: u32| found.threads.iter().find(|story| story.tid == tid).expect("told");
    for story in &found.threads {
        let mut at = 0;
        for doing in &story.doings {
            assert_eq!(doing.offset_ns, at, "a gap in {story:?}");
            at += doing.duration_ns;
        }
        assert_eq!(at, found.timeline.duration_ns);
    }
    let edge = |story: &crate::cause::story::ThreadStory| {
        let wake = story.doings.iter().find_map(|doing| doing.wake.clone());
        wake.and_then(|wake| wake.edge.map(|_| wake.tid))
    };
    assert_eq!(edge(of(LOOP)), Some(WORKER));
    assert_eq!(edge(of(WORKER)), Some(LOOP));
    assert!(found.wakes.iter().any(|wake| (wake.from, wake.to) == (LOOP, WORKER)));
    assert!(found.timeline.phases.iter().any(|phase| phase.detail == "held by thread 52"));
}

#[test]
fn a_span_id_will_do() {
    let found = explanation();
    let Answer::One(again) = ask(&session(), &found.timeline.span_id.to_string()) else {
        panic!("not found")
    };
    assert_eq!(again.timeline, found.timeline);
}

#[test]
fn asking_changes_no_timeline() {
    let file = session();
    let mut reader = Reader::new(file.as_slice()).expect("a session file");
    let mut pipeline = Pipeline::new(reader.start().clone());
    let mut out = Vec::new();
    while let Some(input) = reader.read() {
        pipeline.push(input, &mut out);
    }
    pipeline.finish(&mut out);
    assert!(pipeline.explanation().is_none());
    assert_eq!(explanation().timeline, out[0]);
}

#[test]
fn an_unknown_id_lists_the_slowest() {
    let Answer::None { requests: 2, slowest } = ask(&session(), "0") else { panic!("not none") };
    assert_eq!(slowest.len(), 2);
    let text = render_candidates(&slowest, Style::plain(200));
    assert_eq!(text.lines().count(), 2);
    assert!(text.contains("POST /v1/embed"), "{text}");
}

#[test]
fn an_open_request_is_explained_too() {
    let mut session = Session::default();
    session.io(10_000, IoCall::Read, REQUEST);
    let Answer::One(found) = ask(&session.file(), "") else { panic!("not one") };
    assert!(found.timeline.open);
}
