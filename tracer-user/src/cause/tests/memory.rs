//! Nothing is kept longer than it is needed, and nothing without a cap.

use super::world::*;
use crate::{
    cause::{MAX_RECORDS, MAX_THREADS},
    intake::event::{Direction, ProcFact, Sched, SchedCall, Sleep, SleepState, WaitCall, What},
};

/// One request of a server that makes a thread for each: born, read, handed on, answered, ended.
fn a_thread_of_its_own(world: &mut World, id: u64, at_ns: u64) {
    let (tid, helper) = (1_000 + 2 * id as u32, 1_001 + 2 * id as u32);
    world.born(at_ns, LOOP, tid);
    world.born(at_ns, tid, helper);
    world.moved(at_ns + US, tid, id, Direction::In);
    world.causes.on_exchange(&read_by(tid, request(id, at_ns + 2 * US)));
    let waker = by(tid, SchedCall::Futex, QUEUE);
    let sleep = slept(at_ns + 3 * US, at_ns + 4 * US, at_ns + 5 * US, waker);
    world.waited(helper, wait(SchedCall::Futex, QUEUE, sleep));
    world.signal(at_ns + 6 * US, helper, PIPE_IN, Direction::Out);
    let waker = by(tid, SchedCall::Futex, QUEUE + 8);
    let sleep = slept(at_ns + 7 * US, at_ns + 8 * US, at_ns + 9 * US, waker);
    world.waited(helper, wait(SchedCall::Futex, QUEUE + 8, sleep));
    world.moved(at_ns + 10 * US, tid, id, Direction::Out);
    let exchange = closed(wrote(read_by(tid, request(id, at_ns + 2 * US)), tid, at_ns + 10 * US));
    world.causes.on_exchange(&exchange);
    world.exits(at_ns + 12 * US, tid);
    world.exits(at_ns + 12 * US, helper);
}

#[test]
fn threads_that_have_ended_are_forgotten() {
    let mut world = World::default();
    for id in 0..500 {
        let at_ns = 1_000 * MS + id * MS;
        a_thread_of_its_own(&mut world, id, at_ns);
        world.causes.advance(at_ns, at_ns);
    }
    world.causes.advance(100_000 * MS, 100_000 * MS);
    (0..500).for_each(|id| world.causes.forget_exchange(id));
    world.causes.advance(200_000 * MS, 200_000 * MS);
    world.causes.forget_before(200_000 * MS);
    let causes = &world.causes;
    assert_eq!(causes.threads.len(), 0);
    assert_eq!(causes.records, 0);
    assert_eq!(causes.items.held(), (0, 0, 0));
    assert_eq!(causes.order.held(), (0, 0, 0, 0));
    assert!(causes.told.is_empty() && causes.outgoing.is_empty());
    assert!(causes.sharing.get(&PID).is_none_or(|sharing| sharing.readers.is_empty()));
}

#[test]
fn a_process_takes_its_threads_along() {
    let mut world = World::default();
    // Their ends were not seen.
    let waker = by(LOOP, SchedCall::Futex, QUEUE);
    world.waited(A, wait(SchedCall::Futex, QUEUE, slept(MS, 2 * MS, 3 * MS, waker)));
    world.tell(10 * MS, 0, What::Proc(ProcFact::Gone { pid: PID }));
    world.settle();
    world.causes.forget_before(20 * MS);
    assert_eq!(world.causes.threads.len(), 0);
    assert_eq!(world.causes.items.held(), (0, 0, 0));
}

#[test]
fn a_living_thread_stays_known() {
    let mut world = World::default();
    let waker = by(LOOP, SchedCall::Futex, QUEUE);
    world.waited(A, wait(SchedCall::Futex, QUEUE, slept(MS, 2 * MS, 3 * MS, waker)));
    world.causes.forget_before(1_000 * MS);
    assert!(world.causes.threads.get(&A).is_some_and(|thread| !thread.is_unknown()));
}

#[test]
fn a_request_that_goes_before_its_time_leaves_nothing() {
    let mut world = World::default();
    world.causes.on_event(&crate::intake::event::Event {
        time_ns: 50 * MS,
        pid: PID,
        tid: LOOP,
        what: What::Sched(Sched::Yields { first_ns: 1, last_ns: 2, count: 1, goes_on: false }),
    });
    let exchange = closed(wrote(request(1, 10 * MS), LOOP, 20 * MS));
    world.causes.on_exchange(&closed(exchange));
    // For want of room its timeline is built although nothing of it has had its time.
    world.causes.forget_exchange(1);
    world.settle();
    assert_eq!(world.causes.order.held().0, 0);
}

#[test]
fn records_are_capped_and_the_newer_half_stays() {
    let mut world = World::default();
    let total = MAX_RECORDS as u64 + 10;
    for at in 0..total {
        let (first_ns, last_ns) = (at * US, at * US + 1);
        world.tell(
            last_ns,
            A,
            What::Sched(Sched::Yields { first_ns, last_ns, count: 9, goes_on: false }),
        );
    }
    let newest_ns = (total - 1) * US + 1;
    // Even where the session ends with it.
    world.causes.advance(u64::MAX, u64::MAX - 1_000 * MS);
    assert!(world.causes.records <= MAX_RECORDS / 2 + 10, "{}", world.causes.records);
    assert!(world.causes.counts().evicted as usize >= MAX_RECORDS / 2 - 10);
    let floor_ns = world.causes.floor_ns();
    assert!(floor_ns > newest_ns / 2 - MS && floor_ns < newest_ns / 2 + MS, "{floor_ns}");
}

#[test]
fn a_time_that_cannot_be_is_no_record() {
    let mut world = World::default();
    let (woken_ns, waker) = (None, None);
    let state = SleepState::Preempted;
    world.off_cpu(A, Sleep { out_ns: 10, woken_ns, in_ns: 9, state, waker });
    assert_eq!(world.causes.records, 0);
}

#[test]
fn threads_are_capped() {
    let mut world = World::default();
    for tid in 0..MAX_THREADS as u32 + 2 {
        let sched = Sched::Yields { first_ns: 1, last_ns: 2, count: 1, goes_on: false };
        world.tell(u64::from(tid), tid, What::Sched(sched));
    }
    assert_eq!((world.causes.threads.len(), world.causes.records), (2, 2));
    assert_eq!(world.causes.floor_ns(), MAX_THREADS as u64);
}

#[test]
fn marks_from_the_future_do_not_stay() {
    let mut world = World::default();
    let sleep = Sleep {
        woken_ns: Some(u64::MAX),
        ..slept(MS, 2 * MS, 3 * MS, by(LOOP, SchedCall::Futex, QUEUE))
    };
    world.waited(A, WaitCall { ..wait(SchedCall::Futex, QUEUE, sleep) });
    world.causes.advance(1_000 * MS, 0);
    assert_eq!(world.causes.items.waiting(), 0);
}
