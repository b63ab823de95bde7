//! Threads that hand things to each other by polling memory.
//!
//! Times are ms. Worker W of another process polls from 50 on. The loop reads a request at 100,
//! leaves it in memory, and polls from 101 on; W works until 110 and polls again; the loop answers
//! at 111.

use super::world::*;
use crate::{
    cause::{End, FOLLOWED, Owner, spin::Unled},
    intake::event::{Api, Call, Cuda, ProcFact, Sched, SchedCall, Sleep, SleepState, What},
    stream::Exchange,
    timeline::model::{Evidence, PhaseName as P},
};

const W: (u32, u32) = (PEER, 91);
const L: (u32, u32) = (PID, LOOP);
const V: (u32, u32) = (PEER + 100, 191);

/// A streak that ends as the thread enters another call.
fn polls(world: &mut World, thread: (u32, u32), first_us: u64, last_us: u64) {
    let (first_ns, last_ns) = (first_us * US, last_us * US);
    let yields = Sched::Yields { first_ns, last_ns, count: 9, goes_on: false };
    world.tell_of(thread, last_ns + US, What::Sched(yields));
}

/// A streak that has not ended.
fn polls_on(world: &mut World, thread: (u32, u32), first_us: u64) {
    let (first_ns, last_ns) = (first_us * US, (first_us + 5_000) * US);
    let yields = Sched::Yields { first_ns, last_ns, count: 9, goes_on: true };
    world.tell_of(thread, last_ns, What::Sched(yields));
}

fn maps(world: &mut World, pid: u32, inode: u64) {
    let (from, to, device, offset) = (0x1000 * inode, 0x1000 * (inode + 1), 1, 0);
    world.tell_of(
        (pid, pid),
        1,
        What::Proc(ProcFact::Shared { pid, from, to, device, inode, offset }),
    );
}

/// The loop waits for requests until 99.
fn idle(world: &mut World) {
    let sleep = slept(60 * MS, 99 * MS, 99 * MS, by(0, SchedCall::None, 0));
    world.waited(LOOP, wait(SchedCall::EpollWait, EPOLL, sleep));
}

/// Both processes map one file.
fn sharing() -> World {
    let mut world = World::default();
    idle(&mut world);
    maps(&mut world, PID, 7);
    maps(&mut world, PEER, 7);
    world
}

/// The story above; the loop polls until `until_us`.
fn story(world: &mut World, until_us: u64) -> Exchange {
    let exchange = request(1, 100 * MS);
    world.causes.on_exchange(&exchange);
    polls(world, W, 50_000, 101_000);
    polls(world, L, 101_000, until_us);
    polls_on(world, W, 110_000);
    let exchange = closed(wrote(exchange, LOOP, 111 * MS));
    world.causes.on_exchange(&exchange);
    exchange
}

fn owners(world: &World, exchange: u64) -> Vec<(u32, End, Owner)> {
    let items = world.causes.order.items_of(exchange).iter();
    items
        .map(|id| {
            let item = world.causes.items.get(*id).unwrap();
            (item.tid, item.end, *world.causes.order.owner(*id).unwrap())
        })
        .collect()
}

fn led(world: &World, tid: u32, before_ms: u64) -> Result<(u32, f64), Unled> {
    let streak = world.causes.spins.before(tid, before_ms * MS).unwrap();
    streak.led.map(|edge| (edge.tid, edge.confidence))
}

fn notes(world: &World, exchange: &Exchange) -> String {
    world.path(exchange, None).notes.into_iter().map(|note| note.text + "\n").collect()
}

#[test]
fn a_clean_alternation_is_followed() {
    let mut world = sharing();
    let exchange = story(&mut world, 110_010);
    world.settle();
    let owner = Owner { exchange: 1, evidence: Evidence::Spin, confidence: 0.95 };
    assert_eq!(owners(&world, 1), [(W.1, End::Polled, owner)]);
    let phases = world.phases(&exchange);
    assert!(phases.iter().all(|(phase, ..)| *phase == P::Cpu), "{phases:?}");
    let path = world.path(&exchange, None);
    assert!(
        path.slices
            .iter()
            .any(|(tid, from, to)| { (*tid, *from, *to) == (W.1, 101 * MS, 110 * MS) })
    );
    assert!(notes(&world, &exchange).contains("polled until thread 91 began to poll in turn"));
}

#[test]
fn threads_of_one_process_need_no_mapping() {
    let mut world = World::default();
    idle(&mut world);
    let exchange = request(1, 100 * MS);
    world.causes.on_exchange(&exchange);
    polls(&mut world, (PID, A), 50_000, 101_000);
    polls(&mut world, L, 101_000, 110_010);
    polls_on(&mut world, (PID, A), 110_000);
    world.causes.on_exchange(&closed(wrote(exchange, LOOP, 111 * MS)));
    world.settle();
    assert_eq!(owners(&world, 1)[0].2.evidence, Evidence::Spin);
}

#[test]
fn without_shared_memory_there_is_no_edge() {
    let mut world = World::default();
    maps(&mut world, PID, 7);
    maps(&mut world, PEER, 8);
    let exchange = story(&mut world, 110_010);
    world.settle();
    assert_eq!(owners(&world, 1), []);
    assert_eq!(led(&world, LOOP, 111), Err(Unled::Nobody));
    let sleeping = (P::Unattributed, 110.01, "sleeping".to_owned());
    assert!(world.phases(&exchange).contains(&sleeping), "{:?}", world.phases(&exchange));
    assert!(notes(&world, &exchange).contains("no thread that reaches the same memory"));
}

#[test]
fn of_two_that_fit_none_is_taken() {
    let mut world = sharing();
    maps(&mut world, V.0, 7);
    polls(&mut world, V, 60_000, 102_000);
    polls_on(&mut world, V, 109_950);
    let exchange = story(&mut world, 110_010);
    world.settle();
    assert_eq!(led(&world, LOOP, 111), Err(Unled::Several));
    let ambiguous = (P::Unattributed, 110.01, "ambiguous".to_owned());
    assert!(world.phases(&exchange).contains(&ambiguous), "{:?}", world.phases(&exchange));
    assert!(notes(&world, &exchange).contains("not followed: several threads"));
}

#[test]
fn a_streak_that_ends_by_itself_has_no_edge() {
    // A timeout, or a signal: long after the worker began to poll, or while it works.
    for until_us in [113_000, 105_000] {
        let mut world = sharing();
        story(&mut world, until_us);
        world.settle();
        assert_eq!(led(&world, LOOP, 111), Err(Unled::Nobody), "{until_us}");
    }
}

#[test]
fn who_looks_elsewhere_between_its_polls_hands_nothing_over() {
    let mut world = sharing();
    maps(&mut world, V.0, 7);
    // V looks into its queue every 50 µs.
    for at in (100_000..112_000).step_by(50) {
        polls(&mut world, V, at, at + 45);
    }
    let exchange = story(&mut world, 110_010);
    world.settle();
    assert_eq!(led(&world, LOOP, 111), Ok((W.1, 0.95)));
    assert_eq!(owners(&world, exchange.id).len(), 1);
}

#[test]
fn polling_in_the_gpu_s_driver_is_no_hand_off() {
    let mut world = sharing();
    polls(&mut world, L, 10_000, 20_000);
    polls(&mut world, W, 50_000, 101_000);
    let (api, per_thread, args) = (Api::StreamSynchronize, false, [0; 6]);
    let (out, ret, payload) = (None, 0, bytes::Bytes::new());
    let call = Call { api, per_thread, enter_ns: 100_900 * US, args, out, ret, payload };
    world.tell_of(L, 110_020 * US, What::Cuda(Cuda::Call(call)));
    polls(&mut world, L, 101_000, 110_010);
    polls_on(&mut world, W, 110_000);
    polls(&mut world, L, 112_000, 120_000);
    world.settle();
    assert_eq!(led(&world, LOOP, 111), Err(Unled::Driver));
}

#[test]
fn a_worker_that_was_busy_before_is_not_followed() {
    let mut world = sharing();
    let exchange = request(1, 100 * MS);
    world.causes.on_exchange(&exchange);
    polls(&mut world, W, 50_000, 90_000);
    polls(&mut world, L, 101_000, 110_010);
    polls_on(&mut world, W, 110_000);
    let exchange = closed(wrote(exchange, LOOP, 111 * MS));
    world.causes.on_exchange(&exchange);
    world.settle();
    let (tid, confidence) = led(&world, LOOP, 111).unwrap();
    assert!(tid == W.1 && confidence < FOLLOWED);
    assert_eq!(owners(&world, 1), []);
    assert!(notes(&world, &exchange).contains("may have ended it"));
}

#[test]
fn a_poller_without_a_core_is_handed_it_all_the_same() {
    let mut world = sharing();
    let exchange = request(1, 100 * MS);
    world.causes.on_exchange(&exchange);
    polls(&mut world, W, 50_000, 101_000);
    polls(&mut world, L, 101_000, 107_000);
    let (woken_ns, waker, state) = (None, None, SleepState::Preempted);
    world.off_cpu(LOOP, Sleep { out_ns: 107_002 * US, woken_ns, in_ns: 112 * MS, state, waker });
    polls_on(&mut world, W, 110_000);
    let exchange = closed(wrote(exchange, LOOP, 113 * MS));
    world.causes.on_exchange(&exchange);
    world.settle();
    assert_eq!(owners(&world, 1).len(), 1);
    let run_queue = (P::RunQueue, 112.0, String::new());
    assert!(world.phases(&exchange).contains(&run_queue), "{:?}", world.phases(&exchange));
}

#[test]
fn a_request_of_another_is_not_followed() {
    let mut world = sharing();
    let other = read_by(A, request(2, 99 * MS));
    world.causes.on_exchange(&other);
    // Thread A of the same process hands the worker its request; the loop's streak ends with it.
    polls(&mut world, W, 50_000, 101_000);
    polls(&mut world, (PID, A), 101_000, 120_000);
    let exchange = request(1, 100 * MS);
    world.causes.on_exchange(&exchange);
    polls(&mut world, L, 100_500, 110_010);
    polls_on(&mut world, W, 110_000);
    let exchange = closed(wrote(exchange, LOOP, 111 * MS));
    world.causes.on_exchange(&exchange);
    world.settle();
    assert!(owners(&world, 1).is_empty());
    assert!(notes(&world, &exchange).contains("did not work for this request"));
}

#[test]
fn what_is_held_is_bounded() {
    let mut world = sharing();
    for at in 0..5_000 {
        polls(&mut world, L, at * 1_000, at * 1_000 + 500);
    }
    for tid in 0..1_000 {
        polls(&mut world, (PEER, 1_000 + tid), 10_000, 20_000);
    }
    assert!(world.causes.spins.held() <= 1_024 + 255 + 16_384, "{}", world.causes.spins.held());
    assert!(world.causes.counts().evicted >= 1_000 - 255);
    world.settle();
    world.causes.forget_before(u64::MAX);
    world.exits(u64::MAX / 2, LOOP);
    assert!(world.causes.spins.held() <= 256, "{}", world.causes.spins.held());
}
