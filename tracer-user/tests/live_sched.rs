//! The scheduler's records, waits and signals, from a process that this test starts and traces.
//!
//! Needs root and `python3`; says loudly where it cannot run.
#![cfg(feature = "live")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_ebpf::wire::policy::Class;
use tracer_ebpf::wire::sched::OTHER_END;
use tracer_user::discover::process::threads;
use tracer_user::intake::decode::{Decoded, decode};
use tracer_user::intake::event::{
    Direction, Event, Process, Sched, SchedCall, Sleep, SleepState, Socket, Timeout, WaitCall, What,
};
use tracer_user::probe::{Availability, Door, Probes, Ring, Settings};

const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live_sched/peer.py");
const CAPTURE_LEN: u32 = 64;
const ETIMEDOUT: i64 = 110;
const PATIENCE: Duration = Duration::from_secs(5);

/// Why nothing can be traced here; `None` where it can.
fn cannot_trace() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    if uid.and_then(|ids| ids.split_whitespace().nth(1)) != Some("0") {
        return Some("not root: eBPF programs cannot be loaded".to_owned());
    }
    if !Path::new("/sys/kernel/tracing/events/raw_syscalls").exists() {
        return Some("tracefs is not mounted on /sys/kernel/tracing".to_owned());
    }
    let python = Command::new("python3").args(["-c", "import os; os.eventfd"]).output();
    (!python.is_ok_and(|out| out.status.success()))
        .then(|| "no python3 that knows os.eventfd".to_owned())
}

/// A process of `peer.py`.
struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(mode: &str) -> Self {
        let mut child = Command::new("python3")
            .args([PEER, mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut peer = Self { child, input, output };
        peer.says();
        peer
    }

    fn says(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Lets it do its thing; what it did.
    fn go(&mut self) -> Value {
        self.input.as_mut().unwrap().write_all(b"go\n").unwrap();
        self.says()
    }

    fn end(mut self) {
        drop(self.input.take());
        self.child.wait().unwrap();
    }
}

/// What the kernel half told.
struct Told {
    events: Vec<Event>,
    did: Value,
    /// The peer's threads at the end, and those that the kernel half remembers.
    threads: [Vec<u32>; 2],
}

/// Traces a peer while it does its thing. `None`, said loudly, where nothing can be traced.
fn trace(mode: &str) -> Option<Told> {
    trace_while(mode, || {})
}

/// The same, while something else happens too.
fn trace_while(mode: &str, beside: impl FnOnce()) -> Option<Told> {
    if let Some(reason) = cannot_trace() {
        eprintln!("SKIPPED: {reason}");
        return None;
    }
    let settings = Settings { ring_bytes: 8 << 20, ..Settings::default() };
    let mut probes = Probes::load(settings).unwrap();
    assert_eq!(probes.sched, Availability::Available);
    let (mut door, mut ring) = (probes.door().unwrap(), probes.ring().unwrap());
    let mut losses = probes.losses().unwrap();
    let mut peer = Peer::start(mode);
    adopt(&mut door, peer.child.id());
    let did = peer.go();
    beside();
    let events = drain(&mut ring);
    let lost = losses.read(true).unwrap();
    assert_eq!((lost.sched, lost.socket, lost.process), (0, 0, 0), "{lost:?}");
    let threads = settled(&door, peer.child.id());
    peer.end();
    Some(Told { events, did, threads })
}

/// As the scout does it.
fn adopt(door: &mut Door, pid: u32) {
    let seed = |door: &mut Door| {
        threads(pid)
            .into_iter()
            .filter(|tid| door.seed_thread(pid, *tid, CAPTURE_LEN).unwrap())
            .count()
    };
    seed(door);
    door.trace(pid, CAPTURE_LEN, 0).unwrap();
    while seed(door) > 0 {}
    for fd in 0..3 {
        door.seed(pid, fd, Class::Other, 1).unwrap();
    }
}

/// The process's threads and those that are remembered, once the last that has ended is gone from
/// both; as they are where that does not come.
fn settled(door: &Door, pid: u32) -> [Vec<u32>; 2] {
    let begin = Instant::now();
    loop {
        let mut tids = [threads(pid), door.threads()];
        tids.iter_mut().for_each(|tids| tids.sort_unstable());
        if tids[0] == tids[1] || begin.elapsed() > PATIENCE {
            return tids;
        }
    }
}

fn drain(ring: &mut Ring) -> Vec<Event> {
    let mut events = Vec::new();
    ring.drain(usize::MAX, |record| match decode(record).unwrap() {
        Decoded::Event(event) => events.push(event),
        Decoded::Nothing => {}
    });
    events
}

impl Told {
    fn number(&self, name: &str) -> u64 {
        self.did[name].as_u64().unwrap()
    }

    fn tid(&self, name: &str) -> u32 {
        self.number(name).try_into().unwrap()
    }

    /// What was told of one thread's scheduling, with the time.
    fn sched(&self, thread: &str) -> Vec<(u64, &Sched)> {
        let tid = self.tid(thread);
        let of = |event: &&Event| event.tid == tid;
        let sched = |event| match event {
            &Event { time_ns, what: What::Sched(ref sched), .. } => Some((time_ns, sched)),
            _ => None,
        };
        self.events.iter().filter(of).filter_map(sched).collect()
    }

    fn waits(&self, thread: &str) -> Vec<(u64, WaitCall)> {
        let wait = |(time_ns, sched): (u64, &Sched)| match sched {
            Sched::Wait(wait) => Some((time_ns, *wait)),
            _ => None,
        };
        self.sched(thread).into_iter().filter_map(wait).collect()
    }

    /// The one wait of a thread on an object.
    fn wait(&self, thread: &str, object: u64) -> (u64, WaitCall) {
        let waits = self.waits(thread);
        let own: Vec<_> = waits.iter().filter(|(_, wait)| wait.object == object).collect();
        match own.as_slice() {
            [wait] => **wait,
            _ => panic!("not one wait on {object:#x}: {waits:#?}"),
        }
    }

    fn absences(&self, thread: &str) -> Vec<Sleep> {
        let off = |(_, sched): (u64, &Sched)| match sched {
            Sched::OffCpu(sleep) => Some(*sleep),
            _ => None,
        };
        self.sched(thread).into_iter().filter_map(off).collect()
    }

    /// Bytes that a thread moved through something: object, what came of it, which way.
    fn signals(&self, thread: &str) -> Vec<(u64, i64, Direction)> {
        let signal = |(_, sched): (u64, &Sched)| match sched {
            Sched::Signal { object, ret, direction, .. } => Some((*object, *ret, *direction)),
            _ => None,
        };
        self.sched(thread).into_iter().filter_map(signal).collect()
    }

    /// The one sleep of a thread that the call of another thread ended.
    fn woken_by(&self, thread: &str, waker: &str, call: SchedCall) -> Sleep {
        let absences = self.absences(thread);
        let tid = self.tid(waker);
        let by = |sleep: &&Sleep| sleep.waker.is_some_and(|w| w.tid == tid && w.call == call);
        let own: Vec<_> = absences.iter().filter(by).collect();
        match own.as_slice() {
            [sleep] => **sleep,
            _ => panic!("not one sleep that {call:?} of {tid} ended: {absences:#?}"),
        }
    }
}

fn in_order(times: &[u64]) {
    assert!(times.is_sorted() && times.first() > Some(&0), "{times:?}");
}

#[test]
fn a_futex_is_handed_on() {
    let Some(told) = trace("handoff") else { return };
    let address = told.number("address");
    let (exit_ns, wait) = told.wait("sleeper", address);
    assert_eq!((wait.call, wait.ret, wait.futex_op), (SchedCall::Futex, 0, 128));
    assert_eq!(wait.timeout, Timeout::Never);
    let sleep = wait.sleep.unwrap();
    let woken_ns = sleep.woken_ns.unwrap();
    in_order(&[wait.enter_ns, sleep.out_ns, woken_ns, sleep.in_ns, exit_ns]);
    assert_eq!(sleep.state, SleepState::Interruptible);
    let waker = sleep.waker.unwrap();
    assert_eq!((waker.tid, waker.call, waker.left), (told.tid("main"), SchedCall::Futex, false));
    assert_eq!(waker.object, address);
}

#[test]
fn a_wait_that_began_before_tracing_is_told() {
    let Some(told) = trace("late") else { return };
    let address = told.number("address");
    let (exit_ns, wait) = told.wait("sleeper", address);
    assert_eq!((wait.call, wait.ret, wait.enter_ns), (SchedCall::Futex, 0, 0));
    let sleep = wait.sleep.unwrap();
    // When it fell asleep nobody saw.
    assert_eq!(sleep.woken_ns, Some(sleep.out_ns));
    in_order(&[sleep.out_ns, sleep.in_ns, exit_ns]);
    let waker = sleep.waker.unwrap();
    assert_eq!((waker.tid, waker.object), (told.tid("main"), address));
    // The reader's call is none that a wait tells of: its sleep comes by itself, before the bytes.
    told.woken_by("reader", "main", SchedCall::Write);
    let reader = told.tid("reader");
    let mut of_reader = told.events.iter().filter(|event| event.tid == reader);
    assert!(matches!(of_reader.next().unwrap().what, What::Sched(Sched::OffCpu(_))));
    // The pipe was there before, so that it is looked at as if it were a socket.
    let io = of_reader.find_map(|event| match &event.what {
        What::Socket(Socket::Io(io)) => Some((io.enter_ns, io.ret)),
        _ => None,
    });
    assert_eq!(io, Some((0, 1)));
}

#[test]
fn timeouts_are_told() {
    let Some(told) = trace("timeouts") else { return };
    let (_, relative) = told.wait("main", told.number("relative"));
    assert_eq!((relative.ret, relative.timeout), (-ETIMEDOUT, Timeout::After(5_000_000)));
    let sleep = relative.sleep.unwrap();
    assert!(sleep.in_ns - sleep.out_ns > 1_000_000);
    let (_, absolute) = told.wait("main", told.number("absolute"));
    assert_eq!((absolute.ret, absolute.futex_op), (-ETIMEDOUT, 137));
    let Timeout::After(left) = absolute.timeout else { panic!("{absolute:?}") };
    assert!((1..50_000_000).contains(&left));
    let waits = told.waits("main");
    assert!(waits.iter().all(|(_, wait)| wait.object != told.number("refused")));
    let calls = |call| waits.iter().filter(move |(_, wait)| wait.call == call);
    let epoll: Vec<_> = calls(SchedCall::EpollWait).map(|(_, w)| (w.ret, w.timeout)).collect();
    // The other asked without waiting.
    assert_eq!(epoll, [(0, Timeout::After(3_000_000))]);
    let slept: Vec<_> = calls(SchedCall::Sleep).map(|(_, wait)| wait.ret).collect();
    assert_eq!(slept, [0]);
}

#[test]
fn every_way_to_wait_is_known() {
    const MOST: u64 = 50_000_000;
    let Some(told) = trace("waits") else { return };
    let pipe = told.signals("main")[1].0;
    let waits: Vec<_> = told
        .waits("main")
        .into_iter()
        .filter(|(_, wait)| matches!(wait.timeout, Timeout::After(1..=MOST)))
        .map(|(_, wait)| {
            assert!(wait.sleep.is_some(), "{wait:?}");
            let exact = wait.timeout == Timeout::After(2_000_000);
            let object = if wait.call == SchedCall::EpollWait { 0 } else { wait.object };
            (wait.call, object, exact, wait.ret)
        })
        .collect();
    let expected = [
        (SchedCall::Poll, pipe, true, 0),
        (SchedCall::Select, 0, true, 0),
        (SchedCall::Poll, pipe, true, 0),
        (SchedCall::EpollWait, 0, true, 0),
        (SchedCall::Futex, told.number("one"), false, -ETIMEDOUT),
        (SchedCall::FutexWaitv, told.number("many"), false, -ETIMEDOUT),
        (SchedCall::Sleep, 0, false, 0),
    ];
    assert_eq!(waits, expected);
}

#[test]
fn a_pair_and_a_copied_descriptor_keep_what_they_are() {
    let Some(told) = trace("copies") else { return };
    let written = told.signals("main");
    let [(pair, 3, Direction::Out)] = written.as_slice() else { panic!("{written:?}") };
    assert_eq!(told.signals("reader"), [(pair ^ OTHER_END, 3, Direction::In)]);
    let waker = told.woken_by("reader", "main", SchedCall::Write).waker.unwrap();
    assert_eq!(waker.object, *pair);
}

#[test]
fn a_pipe_wakes_its_reader() {
    let Some(told) = trace("pipe") else { return };
    let signals = told.signals("reader");
    let [(pipe, 1, Direction::In)] = signals.as_slice() else { panic!("{signals:?}") };
    let written = told.signals("main");
    // What found the pipe empty is left out.
    assert_eq!(written, [(pipe | OTHER_END, 1, Direction::Out)]);
    let sleep = told.woken_by("reader", "main", SchedCall::Write);
    let waker = sleep.waker.unwrap();
    assert_eq!((waker.object, waker.left), (pipe | OTHER_END, false));
    in_order(&[sleep.out_ns, sleep.woken_ns.unwrap(), sleep.in_ns]);
}

#[test]
fn closing_the_last_writer_wakes_the_reader() {
    let Some(told) = trace("close") else { return };
    let signals = told.signals("reader");
    let [(pipe, 0, Direction::In)] = signals.as_slice() else { panic!("{signals:?}") };
    // Linux releases the file in `close` itself, before 6.6 on the way back to user space.
    let waker = told.woken_by("reader", "main", SchedCall::Close).waker.unwrap();
    assert_eq!(waker.object, pipe | OTHER_END);
}

#[test]
fn replacing_the_last_writer_wakes_the_reader() {
    let Some(told) = trace("replace") else { return };
    let signals = told.signals("reader");
    let [(pipe, 0, Direction::In)] = signals.as_slice() else { panic!("{signals:?}") };
    // The old file is released on the way back to user space.
    let waker = told.woken_by("reader", "main", SchedCall::Close).waker.unwrap();
    assert_eq!((waker.object, waker.left), (pipe | OTHER_END, true));
}

#[test]
fn an_eventfd_wakes_who_watches_it() {
    let Some(told) = trace("eventfd") else { return };
    let signals = told.signals("main");
    let [(event, 8, Direction::Out)] = signals.as_slice() else { panic!("{signals:?}") };
    let fd: i32 = told.number("event").try_into().unwrap();
    let watched: Vec<_> = told
        .sched("main")
        .into_iter()
        .filter_map(|(_, sched)| match sched {
            Sched::EpollCtl { epoll, object, fd: of, watched } if *of == fd => {
                Some((*epoll, *object, *watched))
            }
            _ => None,
        })
        .collect();
    let [(epoll, object, true), (again, _, false)] = watched.as_slice() else {
        panic!("{watched:?}")
    };
    assert_eq!((object, again), (event, epoll));
    let (_, wait) = told.wait("watcher", *epoll);
    assert_eq!((wait.call, wait.ret, wait.timeout), (SchedCall::EpollWait, 1, Timeout::Never));
    let waker = wait.sleep.unwrap().waker.unwrap();
    assert_eq!((waker.tid, waker.call), (told.tid("main"), SchedCall::Write));
    assert_eq!(waker.object, *event);
}

#[test]
fn a_preempted_thread_was_not_woken() {
    let Some(told) = trace("preempted") else { return };
    let absences = told.absences("main");
    let preempted: Vec<_> =
        absences.iter().filter(|sleep| sleep.state == SleepState::Preempted).collect();
    assert!(preempted.len() >= 3, "{absences:#?}");
    assert!(preempted.iter().all(|sleep| sleep.woken_ns.is_none() && sleep.out_ns < sleep.in_ns));
}

#[test]
fn yields_are_counted_in_streaks() {
    let Some(told) = trace("yields") else { return };
    let streaks: Vec<_> = told
        .sched("main")
        .into_iter()
        .filter_map(|(time_ns, sched)| match sched {
            Sched::Yields { first_ns, last_ns, count, goes_on: false } => {
                in_order(&[*first_ns, *last_ns, time_ns]);
                Some(*count)
            }
            _ => None,
        })
        .collect();
    assert_eq!(streaks.iter().sum::<u64>(), 1000);
    assert!(streaks.len() < 100, "{streaks:?}");
}

#[test]
fn a_thread_s_first_record_is_its_birth() {
    let Some(told) = trace("birth") else { return };
    let child = told.tid("child");
    let of_child = told.sched("child");
    let Some((_, Sched::OffCpu(first))) = of_child.first() else { panic!("{of_child:?}") };
    let waker = first.waker.unwrap();
    assert_eq!((waker.tid, waker.call), (told.tid("main"), SchedCall::Clone));
    assert_eq!(first.woken_ns, Some(first.out_ns));
    let born = What::Process(Process::NewThread { tid: child });
    assert!(told.events.iter().any(|event| event.what == born));
}

#[test]
fn a_dying_process_wakes_its_parent() {
    let Some(told) = trace("death") else { return };
    told.woken_by("main", "child", SchedCall::Exit);
}

#[test]
fn the_dead_are_forgotten() {
    let Some(told) = trace("crowd") else { return };
    let [alive, remembered] = &told.threads;
    assert_eq!(alive, remembered);
    // The thread that began the new program has the first one's number, and goes on being seen.
    let written = told.signals("main");
    assert!(matches!(written.as_slice(), [(_, 1, Direction::Out)]), "{written:?}");
}

#[test]
fn nothing_is_told_of_others() {
    let mut other = None;
    let told = trace_while("pipe", || {
        let mut peer = Peer::start("pipe");
        peer.go();
        other = Some(peer);
    });
    let (Some(told), Some(other)) = (told, other) else { return };
    let pid = other.child.id();
    other.end();
    assert!(told.events.iter().all(|event| event.pid != pid));
}
