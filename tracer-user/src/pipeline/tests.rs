//! The whole pipeline on hand-made and on arbitrary sessions.

mod causes;
mod nvml;
mod rests;

use std::mem::offset_of;

use proptest::prelude::*;
use tracer_ebpf::wire::{WIRE_VERSION, cuda, cuda_api::APIS, cuda_api::Api, socket};

use super::*;
use crate::{
    intake::{
        decode::sample::{self, PID, TID},
        event::{Descriptor, IoCall, Naming},
    },
    record::{Options, Reader, Writer},
    timeline::{
        model::{Arrival, Evidence, Method, Outcome, PhaseName},
        tile::tiles,
    },
};

const MS: u64 = 1_000_000;
const CONN: u64 = 7;

fn start() -> SessionStart {
    SessionStart {
        wire_version: WIRE_VERSION,
        host: "host".into(),
        boot_id: String::new(),
        kernel: "6.18".into(),
        started_monotonic_ns: 0,
        realtime_offset_ns: 1_000_000_000_000,
        seed: *b"0123456789abcdef",
        clock_ticks_per_s: 100,
        spanprobe_version: "0".into(),
        selectors: vec![],
    }
}

/// An input that owns what it says.
#[derive(Clone, Debug)]
enum Step {
    Record(Vec<u8>),
    Fact(u64, ProcFact),
    Losses(u64, Losses),
    Nvml(u64, crate::nvml::Told),
    Tick(u64),
}

impl Step {
    fn input(&self) -> Input<'_> {
        match self {
            Self::Record(bytes) => Input::Record(bytes),
            Self::Fact(time_ns, fact) => Input::Fact { time_ns: *time_ns, fact },
            Self::Losses(time_ns, losses) => Input::Losses { time_ns: *time_ns, losses: *losses },
            Self::Nvml(time_ns, told) => Input::Nvml { time_ns: *time_ns, told },
            Self::Tick(now_ns) => Input::Tick { now_ns: *now_ns },
        }
    }
}

fn run(steps: &[Step]) -> (Vec<Timeline>, Vec<Timeline>) {
    let mut pipeline = Pipeline::new(start());
    let mut out = Vec::new();
    for step in steps {
        pipeline.push(step.input(), &mut out);
    }
    let open = pipeline.finish(&mut out);
    (out, open)
}

/// A call of the driver: entry, return, code, and its first four arguments.
fn driver(enter_ns: u64, exit_ns: u64, api: Api, ret: i32, args: [u64; 4]) -> Step {
    let mut record = sample::call(exit_ns, api as u16, &[]);
    sample::put(&mut record, offset_of!(cuda::Call, enter_ns), enter_ns.to_le_bytes());
    sample::put(&mut record, offset_of!(cuda::Call, ret), ret.to_le_bytes());
    for (index, arg) in args.iter().enumerate() {
        let at = offset_of!(cuda::Call, args) + index * 8;
        sample::put(&mut record, at, arg.to_le_bytes());
    }
    Step::Record(record)
}

fn moved(time_ns: u64, call: IoCall, data: &[u8]) -> Step {
    Step::Record(sample::io(time_ns, CONN, call, data, 0))
}

fn closed(time_ns: u64, fd: i32) -> Step {
    let mut record = sample::close(time_ns, CONN);
    sample::put(&mut record, offset_of!(socket::Close, fd), fd.to_le_bytes());
    Step::Record(record)
}

fn target() -> Step {
    let exe = "/opt/model-server".to_owned();
    Step::Fact(1, ProcFact::Target { pid: PID, exe, comm: "model-server".into(), cuda: true })
}

fn server_connection() -> Step {
    let local = "127.0.0.1:80".parse().unwrap();
    let peer = "127.0.0.1:4000".parse().unwrap();
    let kind = Descriptor::Tcp { local, peer, server: true };
    Step::Fact(2, ProcFact::Descriptor { pid: PID, fd: 5, conn: CONN, kind })
}

const REQUEST: &[u8] = b"POST /v1/embed?x=1 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn story() -> Vec<Step> {
    vec![
        target(),
        server_connection(),
        moved(10 * MS, IoCall::Read, REQUEST),
        // From here on it is known that nothing is outstanding.
        driver(10 * MS + 20, 10 * MS + 40, Api::CtxSynchronize, 0, [0; 4]),
        driver(11 * MS, 15 * MS, Api::MemcpyDtoH, 0, [1, 2, 4096, 0]),
        driver(16 * MS, 16 * MS + 10, Api::MemcpyDtoHAsync, 0, [1, 2, 64, 99]),
        driver(17 * MS, 27 * MS, Api::StreamSynchronize, 0, [99, 0, 0, 0]),
        moved(30 * MS, IoCall::Write, RESPONSE),
        Step::Tick(2_000 * MS),
    ]
}

#[test]
fn a_request_gets_its_own_work() {
    let (timelines, open) = run(&story());
    assert!(open.is_empty());
    let [timeline] = timelines.as_slice() else { panic!("{} timelines", timelines.len()) };
    assert_eq!(timeline.route, "/v1/embed");
    assert_eq!(timeline.service, "model-server");
    assert_eq!(timeline.status, Some(200));
    assert_eq!(timeline.outcome, Some(Outcome::Ok));
    assert_eq!(timeline.arrival, Arrival::Read);
    assert_eq!(timeline.start_monotonic_ns, 10 * MS);
    assert_eq!(timeline.start_unix_ns, 1_000_000_000_000 + 10 * MS);
    assert_eq!(timeline.duration_ns, 20 * MS);
    assert!(tiles(&timeline.phases, timeline.duration_ns));
    let time_in = |name: PhaseName| -> u64 {
        timeline.phases.iter().filter(|p| p.phase == name).map(|p| p.duration_ns).sum()
    };
    // What the blocking copy on the default stream waited for besides is not known this early after
    // attach; the stream's own copy is alone on it.
    assert_eq!(time_in(PhaseName::Gpu), 4 * MS, "{:?}", timeline.phases);
    assert_eq!(time_in(PhaseName::D2h), 10 * MS, "{:?}", timeline.phases);
    let gpu = timeline.gpu.as_ref().unwrap();
    assert_eq!(gpu.d2h_bytes, 4096 + 64);
    assert!(timeline.links.iter().all(|link| link.evidence == Evidence::SameThread));
    assert_eq!(timeline.links.len(), gpu.step_count as usize);
    let bounded = |p: &&crate::timeline::model::Phase| p.method == Method::SyncBounded;
    assert_eq!(timeline.phases.iter().filter(bounded).count(), 2, "{:?}", timeline.phases);
}

#[test]
fn work_is_not_claimed_while_its_thread_serves_two() {
    let mut steps = story();
    // A second connection's request, read by the same thread before the work began, is still open.
    let mut other = sample::io(10 * MS + 5, CONN + 1, IoCall::Read, REQUEST, 0);
    sample::put(&mut other, 12, TID.to_le_bytes());
    steps.insert(3, Step::Record(other));
    let local = "127.0.0.1:80".parse().unwrap();
    let peer = "127.0.0.1:4001".parse().unwrap();
    let kind = Descriptor::Tcp { local, peer, server: true };
    let fact = ProcFact::Descriptor { pid: PID, fd: 6, conn: CONN + 1, kind };
    steps.insert(2, Step::Fact(3, fact));
    let (timelines, open) = run(&steps);
    assert_eq!((timelines.len(), open.len()), (1, 1));
    assert!(timelines.iter().all(|timeline| timeline.links.is_empty()));
}

#[test]
fn an_open_request_shows_its_age() {
    let steps = [
        target(),
        server_connection(),
        moved(10 * MS, IoCall::Read, REQUEST),
        Step::Tick(510 * MS),
    ];
    let mut pipeline = Pipeline::new(start());
    let mut out = Vec::new();
    steps.iter().for_each(|step| pipeline.push(step.input(), &mut out));
    let open = pipeline.open();
    let [timeline] = open.as_slice() else { panic!("{} open", open.len()) };
    assert!(timeline.open && out.is_empty());
    assert_eq!(timeline.duration_ns, 500 * MS);
    assert!(tiles(&timeline.phases, timeline.duration_ns));
}

#[test]
fn what_processes_say_to_each_other_is_no_verdict_on_the_clients() {
    let kind = Descriptor::Unix { inode: 1, peer: 2 };
    let steps = [
        target(),
        Step::Fact(2, ProcFact::Descriptor { pid: PID, fd: 5, conn: CONN, kind }),
        Step::Record(sample::io(10 * MS, CONN, IoCall::Read, b"whatever it is", 0)),
        Step::Tick(510 * MS),
    ];
    let mut pipeline = Pipeline::new(start());
    steps.iter().for_each(|step| pipeline.push(step.input(), &mut Vec::new()));
    let unix = pipeline.why_nothing();
    assert!(
        unix.starts_with("no request seen yet; what was seen is something else: unix ("),
        "{unix}"
    );
}

#[test]
fn lost_events_are_said_on_the_timelines_they_touched() {
    let mut steps = story();
    let losses = Losses { socket: 3, ..Losses::default() };
    steps.insert(4, Step::Losses(12 * MS, losses));
    let (timelines, _) = run(&steps);
    assert!(timelines.iter().all(|timeline| !timeline.complete));
}

#[test]
fn the_driver_hooked_midway_is_said() {
    let mut steps = story();
    let library = "libcuda.so.1".to_owned();
    let fact = ProcFact::Coverage { pid: PID, library, hooked: 1, exist: 1 };
    steps.insert(4, Step::Fact(12 * MS, fact));
    let (timelines, _) = run(&steps);
    assert_eq!(timelines[0].incomplete, ["driver-hooked-late"]);
}

#[test]
fn the_container_is_that_of_the_process_and_no_longer() {
    let container = Some("5c0ffee".to_owned());
    let place = ProcFact::Container { pid: PID, container: container.clone(), pod: None };
    let mut steps = story();
    steps.insert(1, Step::Fact(1, place.clone()));
    let (timelines, _) = run(&steps);
    assert_eq!((&timelines[0].container, &timelines[0].pod), (&container, &None));
    // Another process of that number.
    let mut steps = story();
    steps.insert(0, Step::Fact(0, ProcFact::Gone { pid: PID }));
    steps.insert(0, Step::Fact(0, place));
    let (timelines, _) = run(&steps);
    assert_eq!(timelines[0].container, None);
}

#[test]
fn what_the_fuzzer_makes_up_can_be_read() {
    for kind in 0..8 {
        let mut data = [1; 24];
        data[0] = kind;
        let mut pipeline = Pipeline::new(start());
        let mut out = Vec::new();
        let record = fuzz::records::sched(5 * MS, &data);
        pipeline.push(Input::Record(&record), &mut out);
        pipeline.push(Input::Tick { now_ns: 100 * MS }, &mut out);
        assert_eq!(pipeline.families().sched, 1, "kind {kind}");
    }
    // A request read and answered on connection 1, by thread 1, 20 us apart.
    let ticks = [0, 0xff, 0, 0xff];
    let io = |what, ago| [100, 1, 9, 1, 1, what, ago];
    let session = [&ticks[..], &io(0, 5), &io(3, 1), &[15, 0xff].repeat(600)].concat();
    assert!(fuzz(&session) > 0);
}

/// Fragments from which connections are put together: whole messages, halves, and junk.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(REQUEST.to_vec()),
        Just(RESPONSE.to_vec()),
        Just(REQUEST[..20].to_vec()),
        Just(REQUEST[20..].to_vec()),
        Just(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n".to_vec()),
        Just(b"b\r\ndata: hi\n\n\n\r\n".to_vec()),
        Just(b"0\r\n\r\n".to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

fn step(time_ns: u64) -> impl Strategy<Value = Step> {
    let io =
        (fragment(), 0u64..4, any::<bool>(), 0u64..5000).prop_map(move |(data, conn, out, gap)| {
            let call = if out { IoCall::Write } else { IoCall::Read };
            Step::Record(sample::io(time_ns, conn, call, &data, gap))
        });
    let call = (0..APIS.len(), 0u64..200_000, -1i32..3, prop::array::uniform4(0u64..4)).prop_map(
        move |(api, took, ret, args)| {
            driver(time_ns.saturating_sub(took), time_ns, APIS[api].api, ret * 300, args)
        },
    );
    prop_oneof![
        6 => io,
        6 => call,
        2 => (0u64..100_000).prop_map(move |ago| {
            Step::Record(sample::launches(time_ns, time_ns.saturating_sub(ago)))
        }),
        1 => (0u64..4).prop_map(move |conn| Step::Record(sample::close(time_ns, conn))),
        1 => prop::sample::select(sample::each()).prop_map(Step::Record),
        1 => Just(Step::Losses(time_ns, Losses { socket: 1, cuda: 1, ..Losses::default() })),
        1 => (0u64..4).prop_map(move |conn| {
            Step::Fact(time_ns, ProcFact::Closed(Naming { conn, pid: PID, fd: 7 }))
        }),
        1 => Just(target()),
        1 => Just(server_connection()),
        6 => prop::collection::vec(any::<u8>(), 24).prop_map(move |data| {
            let mut record = fuzz::records::sched(time_ns, &data);
            sample::put(&mut record, 8, PID.to_le_bytes());
            Step::Record(record)
        }),
        2 => Just(Step::Tick(time_ns)),
    ]
}

fn session() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(0u64..400_000_000, 1..120).prop_flat_map(|gaps| {
        let mut now = MS;
        let steps: Vec<_> = gaps
            .into_iter()
            .map(|gap| {
                now += gap / 100;
                step(now).boxed()
            })
            .collect();
        steps
    })
}

fn lines(timelines: &[Timeline]) -> Vec<String> {
    timelines.iter().map(|timeline| serde_json::to_string(timeline).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_every_timeline_tiles(steps in session()) {
        let (closed, open) = run(&steps);
        let mut ids: Vec<_> =
            closed.iter().chain(&open).map(|timeline| timeline.span_id).collect();
        for timeline in closed.iter().chain(&open) {
            prop_assert!(tiles(&timeline.phases, timeline.duration_ns), "{timeline:?}");
            prop_assert_eq!(timeline.complete, timeline.incomplete.is_empty());
            for phase in &timeline.phases {
                prop_assert!(phase.lower_ns <= phase.upper_ns);
            }
            for link in &timeline.links {
                prop_assert!(link.share > 0.0 && link.share <= 1.0);
            }
        }
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), all, "a request was reported twice");
    }

    #[test]
    fn whatever_threads_do_every_timeline_tiles(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        super::fuzz(&data);
    }

    #[test]
    fn a_recording_gives_the_same_timelines(steps in session()) {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, &start(), Options::default()).unwrap();
        let mut live = Pipeline::new(start());
        let mut live_out = Vec::new();
        for step in &steps {
            let mut then = |written: Input<'_>| live.push(written, &mut live_out);
            writer.push_and(step.input(), &mut then).unwrap();
        }
        let live_open = live.finish(&mut live_out);
        writer.finish().unwrap();
        drop(writer);
        let mut reader = Reader::new(file.as_slice()).unwrap();
        let mut pipeline = Pipeline::new(reader.start().clone());
        let mut out = Vec::new();
        while let Some(input) = reader.read() {
            pipeline.push(input, &mut out);
        }
        let open = pipeline.finish(&mut out);
        prop_assert_eq!(lines(&out), lines(&live_out));
        prop_assert_eq!(lines(&open), lines(&live_open));
    }
}
