//! Wakes that are edges, and those that only look like it: one test for each condition.

use tracer_ebpf::wire::sched::OTHER_END;

use super::world::*;
use crate::{
    cause::{
        Edge, Refusal,
        edge::{edge, may_be_handed},
        history::Call,
        item::{End, Item},
        objects::Objects,
    },
    intake::event::{
        Descriptor, Direction, ProcFact, Sched, SchedCall, Sleep, Timeout, WaitCall, Waker, What,
    },
};

/// One thread's wait for `object`, woken as told.
fn judge(objects: &Objects, wait: &WaitCall) -> Result<Edge, Refusal> {
    let sleep = wait.sleep.unwrap();
    let call = Call {
        enter_ns: wait.enter_ns,
        exit_ns: sleep.in_ns,
        call: wait.call,
        object: wait.object,
        ret: wait.ret,
        timeout: wait.timeout,
    };
    edge(objects, (PID, LOOP), Some(&call), &sleep)
}

fn woken(waker: Waker) -> Sleep {
    slept(10 * MS, 20 * MS, 20 * MS + US, waker)
}

fn sure(answer: Result<Edge, Refusal>) -> bool {
    answer.is_ok_and(|edge| edge.tid == A && edge.at_ns == 20 * MS && edge.confidence >= 1.0)
}

fn guessed(answer: Result<Edge, Refusal>) -> bool {
    answer.is_ok_and(|edge| edge.confidence < 0.9)
}

/// The loop's epoll instance watches its pipe.
fn with_pipe() -> Objects {
    let mut objects = Objects::default();
    objects.know(PIPE_IN);
    objects.watch(EPOLL, 4, PIPE_IN, true);
    objects
}

const OTHER_PIPE: u64 = 700;

#[test]
fn a_timer_on_top_of_a_thread_in_write_is_none() {
    let wait = WaitCall {
        ret: 0,
        timeout: Timeout::After(10 * MS),
        ..wait(SchedCall::EpollWait, EPOLL, woken(by(A, SchedCall::Write, PIPE_IN)))
    };
    assert_eq!(judge(&with_pipe(), &wait), Err(Refusal::NothingCame));
}

#[test]
fn a_device_interrupt_on_top_of_a_thread_that_writes_elsewhere_is_none() {
    let mut objects = with_pipe();
    objects.know(OTHER_PIPE);
    let wait = wait(SchedCall::EpollWait, EPOLL, woken(by(A, SchedCall::Write, OTHER_PIPE)));
    assert_eq!(judge(&objects, &wait), Err(Refusal::OtherObject));
}

#[test]
fn an_interrupt_on_top_of_a_thread_that_computes_is_none() {
    let refused =
        |waker| judge(&with_pipe(), &wait(SchedCall::EpollWait, EPOLL, woken(waker))).err();
    assert_eq!(refused(by(A, SchedCall::None, 0)), Some(Refusal::NotWaking));
    assert_eq!(refused(by(A, SchedCall::EpollWait, EPOLL)), Some(Refusal::NotWaking));
    // It wrote there once, and has gone on since.
    let left = Waker { left: true, ..by(A, SchedCall::Write, PIPE_IN) };
    assert_eq!(refused(left), Some(Refusal::NotWaking));
    assert_eq!(refused(Waker { tid: 0, ..left }), Some(Refusal::Idle));
    assert_eq!(refused(by(LOOP, SchedCall::Write, PIPE_IN)), Some(Refusal::Itself));
}

#[test]
fn waits_that_ended_by_themselves_are_none() {
    let ended = |call, object, ret| {
        let act = if call == SchedCall::Futex { SchedCall::Futex } else { SchedCall::Write };
        judge(&with_pipe(), &WaitCall { ret, ..wait(call, object, woken(by(A, act, object))) })
    };
    let (timed_out, interrupted, restart) = (-110, -4, -512);
    assert_eq!(ended(SchedCall::Futex, LOCK, timed_out), Err(Refusal::NothingCame));
    assert_eq!(ended(SchedCall::Futex, LOCK, interrupted), Err(Refusal::NothingCame));
    assert_eq!(ended(SchedCall::EpollWait, EPOLL, interrupted), Err(Refusal::NothingCame));
    assert_eq!(ended(SchedCall::Read, PIPE_IN, interrupted), Err(Refusal::NothingCame));
    assert_eq!(ended(SchedCall::Read, PIPE_IN, restart), Err(Refusal::NothingCame));
    // An end of file, and an error that the other end made, are something that came.
    assert!(sure(ended(SchedCall::Read, PIPE_IN, 0)));
    assert!(sure(ended(SchedCall::Read, PIPE_IN, -104)));
}

#[test]
fn a_thread_outside_any_wait_was_not_handed_anything() {
    let sleep = woken(by(A, SchedCall::Futex, LOCK));
    assert_eq!(edge(&Objects::default(), (PID, B), None, &sleep), Err(Refusal::NotWaiting));
    let nap = wait(SchedCall::Sleep, 0, sleep);
    assert!(judge(&Objects::default(), &nap).is_err());
    let preempted = Sleep { woken_ns: None, waker: None, ..sleep };
    assert_eq!(
        judge(&Objects::default(), &wait(SchedCall::Futex, LOCK, preempted)),
        Err(Refusal::NotWoken)
    );
}

#[test]
fn futexes_of_one_process_match_by_address() {
    let waked_at = |address| {
        let sleep = woken(by(A, SchedCall::Futex, address));
        judge(&Objects::default(), &wait(SchedCall::Futex, QUEUE, sleep))
    };
    assert!(sure(waked_at(QUEUE)));
    assert_eq!(waked_at(LOCK), Err(Refusal::OtherObject));
}

#[test]
fn a_shared_futex_matches_at_different_addresses_in_two_processes() {
    let mut objects = Objects::default();
    let shared = |pid, from, offset| {
        let (to, device, inode) = (from + 0x1000, 3, 99);
        ProcFact::Shared { pid, from, to, device, inode, offset }
    };
    let (here, there) = (0x5000, 0x9000);
    let waked_at = |objects: &Objects, address| {
        let waker = Waker { pid: PEER, ..by(A, SchedCall::Futex, address) };
        judge(objects, &wait(SchedCall::Futex, here + 0x10, woken(waker)))
    };
    assert!(guessed(waked_at(&objects, there + 0x10)), "nothing is known of their memory");
    objects.on_fact(&shared(PID, here, 0));
    assert!(guessed(waked_at(&objects, there + 0x10)), "nothing is known of the other's memory");
    objects.on_fact(&shared(PEER, there, 0));
    assert!(sure(waked_at(&objects, there + 0x10)));
    assert_eq!(waked_at(&objects, there + 0x14), Err(Refusal::OtherObject));
    // The stretch is mapped anew from a later place of the file.
    objects.on_fact(&shared(PEER, there, 0x10));
    assert!(sure(waked_at(&objects, there)));
    objects.on_fact(&ProcFact::Gone { pid: PEER });
    assert!(guessed(waked_at(&objects, there)));
}

#[test]
fn closes_and_exits_wake_after_their_return() {
    for call in [SchedCall::Close, SchedCall::Exit] {
        // What a range of descriptors, or an ending thread, lets go is not named.
        for (object, left) in [(0, true), (0, false)] {
            let waker = Waker { left, ..by(A, call, object) };
            assert!(guessed(judge(&with_pipe(), &wait(SchedCall::EpollWait, EPOLL, woken(waker)))));
            assert!(guessed(judge(&with_pipe(), &wait(SchedCall::Read, PIPE_IN, woken(waker)))));
        }
    }
    let waker = Waker { left: true, ..by(A, SchedCall::Close, PIPE_IN) };
    assert!(sure(judge(&with_pipe(), &wait(SchedCall::Read, PIPE_IN, woken(waker)))));
    // Who waits for a thread to end is woken by the kernel, from inside its exit.
    let waker = by(A, SchedCall::Exit, 0);
    assert!(guessed(judge(&with_pipe(), &wait(SchedCall::Futex, LOCK, woken(waker)))));
}

#[test]
fn pipes_and_socketpairs_match_by_their_ends() {
    let objects = with_pipe();
    let other_end = PIPE_IN ^ tracer_ebpf::wire::sched::OTHER_END;
    for (call, act) in [
        (SchedCall::Read, SchedCall::Write),
        // Room is made by who reads.
        (SchedCall::Write, SchedCall::Read),
        (SchedCall::Read, SchedCall::Shutdown),
    ] {
        assert!(sure(judge(&objects, &wait(call, PIPE_IN, woken(by(A, act, other_end))))));
    }
    assert!(sure(judge(
        &objects,
        &wait(SchedCall::EpollWait, EPOLL, woken(by(A, SchedCall::Write, other_end)))
    )));
}

/// A pipe wakes its readers one after the other: each that leaves something wakes the next.
#[test]
fn who_puts_it_there_hands_over_not_who_was_woken_before() {
    let passed = wait(SchedCall::Read, PIPE_IN, woken(by(A, SchedCall::Read, PIPE_IN)));
    assert_eq!(judge(&with_pipe(), &passed), Err(Refusal::PassedOn));

    let mut world = World::default();
    world.signal(MS, A, PIPE_IN ^ OTHER_END, Direction::Out);
    let sleep = slept(US, 2 * MS, 2 * MS + US, by(23, SchedCall::Read, PIPE_IN));
    world.waited(B, wait(SchedCall::Read, PIPE_IN, sleep));
    let item = item_at(&mut world, B, 3 * MS).unwrap();
    assert_eq!((item.from, item.woken), (A, true));
}

#[test]
fn an_eventfd_has_one_end() {
    let objects = with_pipe();
    let read = wait(SchedCall::Read, PIPE_IN, woken(by(A, SchedCall::Write, PIPE_IN)));
    assert!(sure(judge(&objects, &read)));
}

#[test]
fn unix_sockets_match_by_inode() {
    let mut objects = Objects::default();
    let unix = |conn, inode, peer| ProcFact::Descriptor {
        pid: PID,
        fd: 3,
        conn,
        kind: Descriptor::Unix { inode, peer },
    };
    let wrote_to = |objects: &Objects, conn| {
        judge(objects, &wait(SchedCall::Read, 1, woken(by(A, SchedCall::Write, conn))))
    };
    assert!(guessed(wrote_to(&objects, 2)));
    for fact in [unix(1, 100, 200), unix(2, 200, 100), unix(3, 300, 400)] {
        objects.on_fact(&fact);
    }
    assert!(sure(wrote_to(&objects, 2)));
    assert_eq!(wrote_to(&objects, 3), Err(Refusal::OtherObject));
    // The peer's peer may be unknown.
    objects.on_fact(&unix(4, 500, 100));
    assert!(sure(wrote_to(&objects, 4)));
    for fact in [unix(1, 100, 0), unix(2, 200, 0)] {
        objects.on_fact(&fact);
    }
    assert!(guessed(wrote_to(&objects, 2)), "nobody's peer is known");
}

#[test]
fn tcp_on_one_host_matches_by_addresses() {
    let mut objects = Objects::default();
    let tcp = |conn, local: &str, peer: &str| {
        let (local, peer) = (local.parse().unwrap(), peer.parse().unwrap());
        let kind = Descriptor::Tcp { local, peer, server: true };
        ProcFact::Descriptor { pid: PID, fd: 3, conn, kind }
    };
    for fact in [
        tcp(1, "127.0.0.1:80", "127.0.0.1:4000"),
        tcp(2, "127.0.0.1:4000", "127.0.0.1:80"),
        tcp(3, "127.0.0.1:4001", "127.0.0.1:80"),
    ] {
        objects.on_fact(&fact);
    }
    objects.watch(EPOLL, 7, 1, true);
    for awaited in [wait(SchedCall::Read, 1, woken(by(A, SchedCall::Write, 2))), {
        wait(SchedCall::EpollWait, EPOLL, woken(by(A, SchedCall::Write, 2)))
    }] {
        assert!(sure(judge(&objects, &awaited)));
        let waker = by(A, SchedCall::Write, 3);
        let other = WaitCall { sleep: Some(woken(waker)), ..awaited };
        assert_eq!(judge(&objects, &other), Err(Refusal::OtherObject));
    }
}

#[test]
fn epoll_membership_is_told_by_calls_and_by_proc() {
    let mut world = World::default();
    let awaited = wait(SchedCall::EpollWait, EPOLL, woken(by(A, SchedCall::Write, PIPE_IN)));
    let ctl = |object, watched| Sched::EpollCtl { epoll: EPOLL, object, fd: 4, watched };
    assert!(guessed(judge(&world.causes.objects, &awaited)));
    world.tell(1, LOOP, What::Sched(ctl(PIPE_IN, true)));
    assert!(sure(judge(&world.causes.objects, &awaited)));
    // Another descriptor under the same number.
    world.signal(2, LOOP, PIPE_IN, Direction::In);
    world.signal(2, LOOP, OTHER_PIPE, Direction::In);
    world.tell(3, LOOP, What::Sched(ctl(OTHER_PIPE, true)));
    assert_eq!(judge(&world.causes.objects, &awaited), Err(Refusal::OtherObject));
    world.tell(4, LOOP, What::Sched(ctl(OTHER_PIPE, false)));
    assert_eq!(judge(&world.causes.objects, &awaited), Err(Refusal::OtherObject));
    let watched = ProcFact::Watched { pid: PID, epoll: EPOLL, object: PIPE_IN, fd: 9 };
    world.tell(5, 0, What::Proc(watched));
    assert!(sure(judge(&world.causes.objects, &awaited)));
}

#[test]
fn a_descriptor_that_is_not_followed_makes_membership_a_guess() {
    let mut objects = with_pipe();
    objects.know(OTHER_PIPE);
    objects.watch(EPOLL, 5, 0, true);
    let awaited = wait(SchedCall::EpollWait, EPOLL, woken(by(A, SchedCall::Write, OTHER_PIPE)));
    assert!(guessed(judge(&objects, &awaited)));
}

#[test]
fn what_several_descriptors_or_addresses_wait_for_is_a_guess() {
    for call in [SchedCall::Poll, SchedCall::Select, SchedCall::IoUring] {
        let awaited = wait(call, PIPE_IN, woken(by(A, SchedCall::Write, PIPE_IN)));
        assert!(sure(judge(&with_pipe(), &awaited)));
        let elsewhere = wait(call, PIPE_IN, woken(by(A, SchedCall::Write, 77)));
        assert!(guessed(judge(&with_pipe(), &elsewhere)));
    }
    let any = wait(SchedCall::FutexWaitv, QUEUE, woken(by(A, SchedCall::Futex, LOCK)));
    assert!(guessed(judge(&Objects::default(), &any)));
}

/// The item in which a worker is at a time, once everything is told.
fn item_at(world: &mut World, tid: u32, time_ns: u64) -> Option<Item> {
    world.settle();
    world.causes.items.at(tid, time_ns).cloned()
}

/// A worker waits for its queue and is woken by the loop.
fn handed() -> WaitCall {
    wait(SchedCall::Futex, QUEUE, woken(by(LOOP, SchedCall::Futex, QUEUE)))
}

#[test]
fn a_hand_off_through_a_queue_begins_an_item() {
    let mut world = World::default();
    world.waited(A, handed());
    assert_eq!(world.causes.counts().edges, 1);
    let item = item_at(&mut world, A, 25 * MS).unwrap();
    assert_eq!((item.from, item.start_ns, item.woken), (LOOP, 20 * MS, true));
    assert_eq!(item.end, End::Open);
}

#[test]
fn a_pool_queue_with_many_waiters_and_wakers_hands_over() {
    let mut world = World::default();
    // Four workers wait on one address; the loop and another reader wake them. Neither waits there.
    for (at, tid) in (30..34).enumerate() {
        let by_loop = at % 2 == 0;
        let waker = by(if by_loop { LOOP } else { 12 }, SchedCall::Futex, QUEUE);
        world.waited(tid, wait(SchedCall::Futex, QUEUE, woken(waker)));
    }
    for (at, tid) in (30..34).enumerate() {
        let item = item_at(&mut world, tid, 25 * MS).unwrap();
        assert_eq!(item.from, if at % 2 == 0 { LOOP } else { 12 });
    }
}

#[test]
fn a_lock_is_an_edge_and_hands_nothing_over() {
    let mut world = World::default();
    // The waker waited for it as well, not long ago.
    world.waited(
        B,
        wait(SchedCall::Futex, LOCK, slept(MS, 2 * MS, 3 * MS, by(A, SchedCall::Futex, LOCK))),
    );
    world.waited(A, wait(SchedCall::Futex, LOCK, woken(by(B, SchedCall::Futex, LOCK))));
    assert_eq!(world.causes.counts().edges, 2);
    assert_eq!(item_at(&mut world, A, 25 * MS), None);
}

#[test]
fn a_wait_of_milliseconds_hands_nothing_over() {
    let mut world = World::default();
    // The interpreter's lock: one asks for it every 5 ms, and is woken when it is let go.
    let timeout = Timeout::After(5 * MS);
    world.waited(A, WaitCall { timeout, ..handed() });
    assert_eq!(world.causes.counts().edges, 1);
    assert_eq!(item_at(&mut world, A, 25 * MS), None);
    let call = |timeout| Call {
        enter_ns: 0,
        exit_ns: 0,
        call: SchedCall::Futex,
        object: 0,
        ret: 0,
        timeout,
    };
    // A worker that looks now and then whether it shall end is still handed work.
    for timeout in [Timeout::Never, Timeout::Some, Timeout::After(1_000 * MS)] {
        assert!(may_be_handed(&call(timeout)));
    }
    assert!(!may_be_handed(&call(Timeout::After(5 * MS))));
}

#[test]
fn a_busy_worker_takes_its_next_item_without_sleeping() {
    let mut world = World::default();
    world.signal(MS, LOOP, PIPE_IN, Direction::In);
    world.waited(A, handed());
    world.signal(30 * MS, A, PIPE_IN, Direction::Out);
    world.signal(40 * MS, A, PIPE_IN, Direction::Out);
    let first = item_at(&mut world, A, 25 * MS).unwrap();
    assert_eq!((first.start_ns, first.end_ns, first.end), (20 * MS, 30 * MS, End::Signal));
    let second = item_at(&mut world, A, 35 * MS).unwrap();
    assert_eq!((second.start_ns, second.end_ns, second.woken), (30 * MS, 40 * MS, false));
    assert_eq!(second.from, LOOP);
}
