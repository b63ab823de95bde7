//! The walk: for each phase a history in which it must be found, and in which it must end.
//!
//! Times are ms. The request is read at 100 and handed to worker A at 101, which runs from 102 on,
//! is done at 120 and tells the loop; the loop, asleep since 103, runs from 121 on and answers at
//! 122.

use tracer_ebpf::wire::sched::OTHER_END;

use super::world::*;
use crate::{
    intake::event::{
        Direction, ProcFact, Sched, SchedCall, Sleep, SleepState, Socket, Timeout, WaitCall, Waker,
        What,
    },
    stream::{Exchange, Role},
    timeline::model::{Evidence, PhaseName as P},
};

const PIPE_OUT: u64 = PIPE_IN ^ OTHER_END;

fn phase(name: P, until_ms: f64) -> (P, f64, String) {
    (name, until_ms, String::new())
}

fn named(name: P, until_ms: f64, detail: &str) -> (P, f64, String) {
    (name, until_ms, detail.to_owned())
}

/// The loop wakes a sleeping worker, which runs a millisecond later.
fn hand_over(world: &mut World, tid: u32, since_ms: u64, at_ms: u64) {
    let waker = by(LOOP, SchedCall::Futex, QUEUE);
    let sleep = slept(since_ms * MS, at_ms * MS, (at_ms + 1) * MS, waker);
    world.waited(tid, wait(SchedCall::Futex, QUEUE, sleep));
}

/// A worker writes to the loop's pipe, and the loop, asleep since then, runs a millisecond later.
fn tell_loop(world: &mut World, tid: u32, since_ms: u64, at_ms: u64) {
    world.signal(at_ms * MS, tid, PIPE_OUT, Direction::Out);
    let waker = by(tid, SchedCall::Write, PIPE_OUT);
    let sleep = slept(since_ms * MS, at_ms * MS + 500, (at_ms + 1) * MS, waker);
    world.waited(LOOP, wait(SchedCall::EpollWait, EPOLL, sleep));
    world.signal((at_ms + 1) * MS + 500, LOOP, PIPE_IN, Direction::In);
}

/// A loop that watches its pipe, and a worker that it knows.
fn server() -> World {
    let mut world = World::default();
    let watch = Sched::EpollCtl { epoll: EPOLL, object: PIPE_IN, fd: 4, watched: true };
    world.tell(1, LOOP, What::Sched(watch));
    world.signal(1, LOOP, PIPE_IN, Direction::In);
    for tid in [A, B] {
        world.signal(10 * MS, tid, PIPE_OUT, Direction::Out);
    }
    world
}

fn read(world: &mut World, id: u64, at_ms: u64) -> Exchange {
    let exchange = request(id, at_ms * MS);
    world.moved(at_ms * MS - US, LOOP, exchange.conn, Direction::In);
    world.causes.on_exchange(&exchange);
    exchange
}

fn answer(world: &mut World, exchange: &Exchange, at_ms: u64) -> Exchange {
    world.moved(at_ms * MS, LOOP, exchange.conn, Direction::Out);
    let exchange = closed(wrote(exchange.clone(), LOOP, at_ms * MS));
    world.causes.on_exchange(&exchange);
    exchange
}

/// The story above, with what worker A does meanwhile.
fn story(meanwhile: impl FnOnce(&mut World)) -> (World, Exchange) {
    let mut world = server();
    let exchange = read(&mut world, 1, 100);
    hand_over(&mut world, A, 90, 101);
    meanwhile(&mut world);
    tell_loop(&mut world, A, 103, 120);
    let exchange = answer(&mut world, &exchange, 122);
    world.settle();
    (world, exchange)
}

/// Its phases, where worker A's own are these.
fn around(phases: &[(P, f64, String)]) -> Vec<(P, f64, String)> {
    let before = [phase(P::Cpu, 101.0), phase(P::RunQueue, 102.0)];
    let after = [phase(P::RunQueue, 121.0), phase(P::Cpu, 122.0)];
    let mut all = [&before, phases, &after].concat();
    // Between the write into the pipe and the wake, the worker ran.
    for (name, end, _) in &mut all {
        if *name == P::Cpu && (*end - 120.0).abs() < 0.01 {
            *end = 120.0;
        }
    }
    all
}

/// Ends to the nearest microsecond.
fn rounded(phases: Vec<(P, f64, String)>) -> Vec<(P, f64, String)> {
    let mut out: Vec<(P, f64, String)> = Vec::new();
    for (name, end, detail) in phases {
        let end = (end * 100.0).round() / 100.0;
        match out.last_mut() {
            Some((last, until, words)) if *last == name && *words == detail => *until = end,
            Some((_, until, _)) if *until == end => {}
            _ => out.push((name, end, detail)),
        }
    }
    out
}

fn check(meanwhile: impl FnOnce(&mut World), expected: &[(P, f64, String)]) {
    let (world, exchange) = story(meanwhile);
    let phases = rounded(world.phases(&exchange));
    assert_eq!(phases, around(expected), "{:#?}", world.path(&exchange, None).notes);
}

#[test]
fn cpu_and_a_late_wake() {
    check(|_| {}, &[phase(P::Cpu, 120.0)]);
}

#[test]
fn preempted() {
    let preempted = Sleep {
        out_ns: 105 * MS,
        woken_ns: None,
        in_ns: 110 * MS,
        state: SleepState::Preempted,
        waker: None,
    };
    check(
        |world| world.off_cpu(A, preempted),
        &[phase(P::Cpu, 105.0), phase(P::RunQueue, 110.0), phase(P::Cpu, 120.0)],
    );
}

#[test]
fn a_lock_names_its_holder() {
    check(
        |world| {
            // B holds it: it had to wait for it as well.
            let waker = by(LOOP, SchedCall::Futex, LOCK);
            world.waited(B, wait(SchedCall::Futex, LOCK, slept(90 * MS, 91 * MS, 92 * MS, waker)));
            let waker = by(B, SchedCall::Futex, LOCK);
            world.waited(
                A,
                wait(SchedCall::Futex, LOCK, slept(105 * MS, 110 * MS, 111 * MS, waker)),
            );
        },
        &[
            phase(P::Cpu, 105.0),
            named(P::Lock, 110.0, "held by thread 22"),
            phase(P::RunQueue, 111.0),
            phase(P::Cpu, 120.0),
        ],
    );
}

#[test]
fn a_lock_asked_for_every_few_milliseconds() {
    check(
        |world| {
            let timeout = Timeout::After(5 * MS);
            let futex =
                |sleep, ret| WaitCall { ret, timeout, ..wait(SchedCall::Futex, LOCK, sleep) };
            let timer = Waker { tid: 0, pid: 0, ..by(0, SchedCall::None, 0) };
            world.waited(B, futex(slept(90 * MS, 95 * MS, 95 * MS, timer), -110));
            world.waited(A, futex(slept(105 * MS, 110 * MS, 110 * MS, timer), -110));
        },
        &[phase(P::Cpu, 105.0), phase(P::Lock, 110.0), phase(P::Cpu, 120.0)],
    );
}

#[test]
fn a_disk() {
    let disk = Sleep {
        state: SleepState::Uninterruptible,
        ..slept(105 * MS, 110 * MS, 111 * MS, by(0, SchedCall::None, 0))
    };
    check(
        |world| world.off_cpu(A, disk),
        &[
            phase(P::Cpu, 105.0),
            phase(P::Io, 110.0),
            phase(P::RunQueue, 111.0),
            phase(P::Cpu, 120.0),
        ],
    );
}

/// A request that a thread makes of another server, and its wait for the answer.
fn asks(world: &mut World, tid: u32, from_ms: u64, to_ms: u64) {
    let sleep =
        slept(from_ms * MS + US, to_ms * MS - US, to_ms * MS - US, by(0, SchedCall::None, 0));
    world.waited(tid, wait(SchedCall::Read, 5_000, sleep));
    asked(world, tid, from_ms, to_ms);
}

fn asked(world: &mut World, tid: u32, from_ms: u64, to_ms: u64) {
    let mut exchange = read_by(tid, request(80, from_ms * MS + US));
    exchange.role = Role::Client;
    exchange.conn = 5_000;
    let exchange = closed(wrote(exchange, tid, to_ms * MS - US));
    world.causes.on_exchange(&exchange);
}

#[test]
fn another_server() {
    check(
        |world| asks(world, A, 105, 110),
        &[phase(P::Cpu, 105.0), phase(P::Dependency, 110.0), phase(P::Cpu, 120.0)],
    );
}

#[test]
fn several_questions_to_another_server_at_once() {
    check(
        |world| {
            // Told when they end: the one that is told last began first.
            asked(world, A, 130, 131);
            asked(world, A, 105, 140);
        },
        &[phase(P::Cpu, 105.0), phase(P::Dependency, 120.0)],
    );
}

#[test]
fn connecting_to_another_server() {
    let sleep = slept(105 * MS, 110 * MS, 110 * MS, by(0, SchedCall::None, 0));
    check(
        |world| {
            let (conn, fd, peer, ret, enter_ns) = (5_000, 9, None, 0, 105 * MS);
            world.off_cpu(A, sleep);
            let connect = Socket::Connect { conn, fd, peer, ret, enter_ns };
            world.tell(110 * MS, A, What::Socket(connect));
        },
        &[phase(P::Cpu, 105.0), named(P::Dependency, 110.0, "connecting"), phase(P::Cpu, 120.0)],
    );
}

#[test]
fn sleeping_is_nobodys() {
    let sleep = slept(105 * MS, 110 * MS, 110 * MS, by(0, SchedCall::None, 0));
    check(
        |world| world.waited(A, wait(SchedCall::Sleep, 0, sleep)),
        &[phase(P::Cpu, 105.0), named(P::Unattributed, 110.0, "sleeping"), phase(P::Cpu, 120.0)],
    );
}

#[test]
fn a_wake_by_a_thread_that_did_not_work_for_it_is_not_followed() {
    check(
        |world| {
            let other_pipe = 700;
            world.signal(50 * MS, A, other_pipe, Direction::In);
            let sleep = slept(105 * MS, 110 * MS, 110 * MS, by(B, SchedCall::Write, other_pipe));
            world.waited(A, wait(SchedCall::Read, other_pipe, sleep));
        },
        &[phase(P::Cpu, 105.0), named(P::Unattributed, 110.0, "ambiguous"), phase(P::Cpu, 120.0)],
    );
}

#[test]
fn a_barrier_is_followed_to_the_last_helper() {
    let (h1, h2) = (51, 52);
    let (start, barrier) = (0xa000, 0xb000);
    let (world, exchange) = story(|world| {
        for tid in [h1, h2] {
            let waker = by(A, SchedCall::Futex, start);
            let sleep = slept(50 * MS, 105 * MS, 105 * MS, waker);
            world.waited(tid, wait(SchedCall::Futex, start, sleep));
        }
        // The first to be through waits as well; the second wakes everybody.
        let waker = by(h2, SchedCall::Futex, barrier);
        let sleep = slept(107 * MS, 115 * MS, 116 * MS, waker);
        world.waited(h1, wait(SchedCall::Futex, barrier, sleep));
        // The second had to wait for a page.
        let page = Sleep {
            state: SleepState::Uninterruptible,
            ..slept(108 * MS, 112 * MS, 112 * MS, by(0, SchedCall::None, 0))
        };
        world.off_cpu(h2, page);
        let sleep = slept(106 * MS, 115 * MS, 115 * MS, waker);
        world.waited(A, wait(SchedCall::Futex, barrier, sleep));
    });
    let phases = rounded(world.phases(&exchange));
    let expected = [phase(P::Cpu, 108.0), phase(P::Io, 112.0), phase(P::Cpu, 120.0)];
    assert_eq!(phases, around(&expected), "{:#?}", world.path(&exchange, None).notes);
    let path = world.path(&exchange, None);
    assert!(path.slices.iter().any(|(tid, ..)| *tid == h2));
    assert!(path.slices.iter().all(|(tid, ..)| *tid != h1));
    // Both worked for it.
    for tid in [h1, h2] {
        let segment = path.segments.iter().find(|segment| segment.tid == tid).unwrap();
        assert_eq!(segment.evidence, Evidence::WakeChain);
    }
}

#[test]
fn a_request_behind_another_in_a_busy_pool() {
    let mut world = server();
    // One item for each request, as has been seen a few times.
    for id in 50..58 {
        let ms = 20 + 9 * (id - 50);
        let before = read(&mut world, id, ms);
        hand_over(&mut world, A, ms - 1, ms + 1);
        tell_loop(&mut world, A, ms + 2, ms + 4);
        answer(&mut world, &before, ms + 6);
    }
    let first = read(&mut world, 1, 100);
    hand_over(&mut world, A, 90, 101);
    let second = read(&mut world, 2, 105);
    tell_loop(&mut world, A, 106, 120);
    answer(&mut world, &first, 122);
    // It took the second without sleeping.
    tell_loop(&mut world, A, 123, 130);
    let second = answer(&mut world, &second, 132);
    world.settle();
    let phases = rounded(world.phases(&second));
    let expected = [
        phase(P::Queue, 120.0),
        phase(P::Cpu, 130.0),
        phase(P::RunQueue, 131.0),
        phase(P::Cpu, 132.0),
    ];
    assert_eq!(phases, expected, "{:#?}", world.path(&second, None).notes);
}

#[test]
fn until_the_worker_was_free_a_request_waited_for_it() {
    let mut world = server();
    let first = read(&mut world, 1, 100);
    hand_over(&mut world, A, 90, 101);
    let second = read(&mut world, 2, 105);
    tell_loop(&mut world, A, 106, 120);
    let first = answer(&mut world, &first, 122);
    // It fell asleep before the loop handed it the second.
    hand_over(&mut world, A, 121, 124);
    tell_loop(&mut world, A, 126, 130);
    let second = answer(&mut world, &second, 132);
    world.settle();
    let phases = rounded(world.phases(&second));
    assert_eq!(phases.first(), Some(&phase(P::Queue, 120.0)), "{phases:?}");
    assert!(phases.contains(&phase(P::Cpu, 130.0)), "{phases:?}");
    assert!(rounded(world.phases(&first)).iter().all(|(name, ..)| *name != P::Queue));
}

#[test]
fn what_a_worker_did_for_the_same_request_before_is_no_queue() {
    let mut world = server();
    let exchange = read(&mut world, 1, 100);
    hand_over(&mut world, A, 90, 101);
    tell_loop(&mut world, A, 103, 110);
    hand_over(&mut world, A, 112, 113);
    tell_loop(&mut world, A, 115, 120);
    let exchange = answer(&mut world, &exchange, 122);
    world.settle();
    let phases = rounded(world.phases(&exchange));
    assert!(phases.iter().all(|(name, ..)| *name != P::Queue), "{phases:?}");
    assert!(phases.contains(&phase(P::Cpu, 120.0)), "{phases:?}");
}

#[test]
fn a_thread_that_is_made_for_a_request_was_not_waited_for() {
    let mut world = server();
    let exchange = read(&mut world, 1, 100);
    let made = 77;
    world.born(104 * MS, LOOP, made);
    // It is known from its first time off the processor on.
    let page = Sleep {
        state: SleepState::Uninterruptible,
        ..slept(106 * MS, 108 * MS, 108 * MS, by(0, SchedCall::None, 0))
    };
    world.off_cpu(made, page);
    tell_loop(&mut world, made, 105, 120);
    let exchange = answer(&mut world, &exchange, 122);
    world.settle();
    let phases = rounded(world.phases(&exchange));
    let expected = [
        phase(P::Cpu, 106.0),
        phase(P::Io, 108.0),
        phase(P::Cpu, 120.0),
        phase(P::RunQueue, 121.0),
        phase(P::Cpu, 122.0),
    ];
    assert_eq!(phases, expected, "{:#?}", world.path(&exchange, None).notes);
}

#[test]
fn a_wake_by_way_of_an_own_thread_that_another_process_woke_is_elsewhere() {
    let (between, connection) = (61, 5_000);
    let mut world = server();
    let target = ProcFact::Target {
        pid: PEER,
        exe: "/usr/bin/python3".to_owned(),
        comm: "engine".to_owned(),
        cuda: false,
    };
    world.tell(2, 0, What::Proc(target));
    let exchange = read(&mut world, 1, 100);
    let engine = Waker { pid: PEER, ..by(91, SchedCall::Write, connection) };
    let sleep = slept(90 * MS, 118 * MS, 119 * MS, engine);
    world.waited(between, wait(SchedCall::EpollWait, 700, sleep));
    tell_loop(&mut world, between, 103, 120);
    let exchange = answer(&mut world, &exchange, 122);
    world.settle();
    let phases = rounded(world.phases(&exchange));
    let words = format!("elsewhere: woken from process {PEER} (engine)");
    assert!(phases.contains(&named(P::Unattributed, 118.0, &words)), "{phases:?}");
}

#[test]
fn who_waits_for_nobody_and_hands_nothing_over_ran_through() {
    // Here a thread of its own serves, and reads no others' bytes.
    let served = |meanwhile: &dyn Fn(&mut World)| {
        let mut world = World::default();
        world.off_cpu(LOOP, slept(90 * MS, 95 * MS, 95 * MS, by(0, SchedCall::None, 0)));
        let exchange = read(&mut world, 1, 100);
        meanwhile(&mut world);
        let exchange = answer(&mut world, &exchange, 122);
        world.causes.ran_through(&exchange)
    };
    assert!(served(&|_| {}));
    let preempted = Sleep {
        state: SleepState::Preempted,
        ..slept(105 * MS, 106 * MS, 107 * MS, by(0, SchedCall::None, 0))
    };
    assert!(served(&|world| world.off_cpu(LOOP, preempted)));
    assert!(!served(&|world| tell_loop(world, A, 103, 120)), "it waited");
    assert!(!served(&|world| hand_over(world, A, 90, 101)), "it handed something over");
}

#[test]
fn an_event_loop_that_serves_others() {
    let mut world = server();
    let exchange = read(&mut world, 1, 100);
    // From 110 to 130 it reads and answers others; then it turns to this one.
    for at in [110, 115, 129] {
        world.moved(at * MS, LOOP, 3_000, Direction::In);
        world.moved(at * MS + 999 * US, LOOP, 3_001, Direction::Out);
    }
    let exchange = answer(&mut world, &exchange, 140);
    world.settle();
    assert_eq!(
        rounded(world.phases(&exchange)),
        [phase(P::Cpu, 110.0), phase(P::ThreadBusy, 130.0), phase(P::Cpu, 140.0)]
    );
}

#[test]
fn each_chunk_of_a_stream_has_its_walk() {
    let mut world = server();
    let mut exchange = read(&mut world, 1, 100);
    exchange.sse = true;
    for at in [110, 120, 130] {
        // Between the chunks the loop waits for a timer.
        let timer = Waker { tid: 0, pid: 0, ..by(0, SchedCall::None, 0) };
        let sleep = slept((at - 5) * MS, (at - 2) * MS, (at - 2) * MS, timer);
        world.waited(LOOP, WaitCall { ret: 0, ..wait(SchedCall::EpollWait, EPOLL, sleep) });
        world.moved(at * MS, LOOP, exchange.conn, Direction::Out);
        exchange = wrote(exchange, LOOP, at * MS);
        exchange.chunks += 1;
        world.causes.on_exchange(&exchange);
    }
    exchange = closed(exchange);
    world.causes.on_exchange(&exchange);
    world.settle();
    let idle = "waiting for an event";
    let mut phases = rounded(world.phases(&exchange));
    // The writes themselves are the host's to name.
    phases.retain(|(name, _, detail)| *name != P::Unattributed || !detail.is_empty());
    assert_eq!(
        phases,
        [105.0, 115.0, 125.0]
            .map(|at| { [phase(P::Cpu, at), named(P::Unattributed, at + 3.0, idle)] })
            .into_iter()
            .flatten()
            .chain([phase(P::Cpu, 130.0)])
            .collect::<Vec<_>>()
            .as_slice()
    );
}

#[test]
fn an_open_request_is_walked_from_now_on_the_thread_that_works_for_it() {
    let mut world = server();
    let mut exchange = read(&mut world, 1, 100);
    hand_over(&mut world, A, 90, 101);
    let disk = Sleep {
        state: SleepState::Uninterruptible,
        ..slept(105 * MS, 110 * MS, 110 * MS, by(0, SchedCall::None, 0))
    };
    world.off_cpu(A, disk);
    world.settle();
    exchange.end_ns = 150 * MS;
    let expected = [
        phase(P::Cpu, 101.0),
        phase(P::RunQueue, 102.0),
        phase(P::Cpu, 105.0),
        phase(P::Io, 110.0),
        phase(P::Cpu, 150.0),
    ];
    assert_eq!(rounded(world.phases(&exchange)), expected);
    // Given up by its client: the walk begins at the close.
    let exchange = closed(exchange);
    world.causes.on_exchange(&exchange);
    world.settle();
    assert_eq!(rounded(world.phases(&exchange)), expected);
}

#[test]
fn nothing_is_said_of_threads_that_are_not_known() {
    let world = World::default();
    let exchange = closed(wrote(request(1, 100 * MS), LOOP, 110 * MS));
    assert_eq!(world.phases(&exchange), [phase(P::Unattributed, 110.0)]);
}
