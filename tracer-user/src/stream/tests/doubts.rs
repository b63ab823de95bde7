//! Closes that were lost, and descriptors that are looked at because of that.

use super::*;

/// What the scout says of a descriptor that it looked at.
fn found_closed(world: &mut World, conn: u64, fd: i32) {
    let pid = world.pid;
    world.event(What::Proc(ProcFact::Closed(Naming { conn, pid, fd })));
}

fn doubts(world: &World) -> Vec<(u64, i32)> {
    let all = world.streams.doubtful(None, 100);
    all.into_iter().map(|naming| (naming.conn, naming.fd)).collect()
}

/// A request is under way when events are lost.
fn doubted() -> World {
    let mut world = World::serving();
    world.read(5, GET);
    world.lose();
    world
}

#[test]
fn what_is_found_closed_ends_where_it_was_seen_last() {
    let mut world = doubted();
    let read = world.streams.open().next().unwrap().last_read.exit_ns;
    world.wait(60_000_000_000);
    found_closed(&mut world, 5, 5);
    let exchange = world.only();
    assert_eq!(exchange.incomplete, [reason::LOST_EVENTS, reason::END_NOT_SEEN]);
    assert_eq!((exchange.outcome, exchange.end_inferred), (None, true));
    assert_eq!((exchange.end_ns, exchange.open), (read, false));
    assert_eq!(world.streams.counters().closes_unseen, 1);
    assert!(world.streams.connections() == 0 && world.streams.open().next().is_none());
    // The word of the close comes after all.
    world.close(5);
    assert_eq!(world.exchanges().len(), 1);
}

#[test]
fn half_a_response_has_no_outcome() {
    let mut world = World::serving();
    world.read(5, GET);
    world.write(5, b"HTTP/1.0 200 OK\r\n\r\nabc");
    let written = world.now;
    world.lose();
    found_closed(&mut world, 5, 5);
    let exchange = world.only();
    assert_eq!((exchange.status, exchange.outcome, exchange.end_ns), (Some(200), None, written));
}

#[test]
fn only_what_was_open_and_not_used_since_is_doubted() {
    let mut world = World::serving();
    world.read(5, GET);
    assert_eq!(doubts(&world), [], "nothing was lost");
    world.event(What::Loss(Losses { cuda: 1, sched: 1, ..Losses::default() }));
    assert_eq!(doubts(&world), [], "no close was lost");
    world.lose();
    assert_eq!(doubts(&world), [(5, 5)]);
    let before = world.now - 1;
    world.io_from(before, Direction::Out, 5, &OK[..20], 20);
    assert_eq!(doubts(&world), [(5, 5)], "the call was under way when the events were lost");
    world.io(Direction::In, 5, b"", -11);
    assert_eq!(doubts(&world), [], "it was used after that");
    world.lose();
    assert_eq!(doubts(&world), [(5, 5)]);
    world.write(5, &OK[20..]);
    world.lose();
    assert_eq!(doubts(&world), [], "nothing is under way");
}

#[test]
fn what_is_still_there_stays_open() {
    let mut world = doubted();
    assert_eq!((doubts(&world).len(), world.streams.open().count()), (1, 1));
    world.write(5, OK);
    let exchange = world.only();
    assert_eq!((exchange.status, exchange.outcome), (Some(200), Some(Outcome::Ok)));
}

#[test]
fn a_newer_connection_of_the_same_number_is_not_touched() {
    let mut world = doubted();
    world.accept(6, 5);
    world.event(What::Socket(Socket::Io(Io {
        conn: 6,
        fd: 5,
        call: IoCall::Recvfrom,
        direction: Direction::In,
        enter_ns: world.now + 1,
        ret: GET.len() as i64,
        requested: 65_536,
        peek: false,
        data: Bytes::from_static(GET),
    })));
    // The answer about the older one, looked at before the newer was known here.
    found_closed(&mut world, 5, 5);
    assert_eq!(world.only().conn, 5);
    let open: Vec<u64> = world.streams.open().map(|exchange| exchange.conn).collect();
    assert_eq!((open, world.streams.counters().closes_unseen), (vec![6], 1));
    world.lose();
    assert_eq!(doubts(&world), [(6, 5)]);
    found_closed(&mut world, 5, 5);
    assert_eq!(world.streams.open().count(), 1);
}

#[test]
fn it_ends_with_its_last_name() {
    let mut world = World::serving();
    world.event(What::Socket(Socket::Dup { conn: 5, old_fd: 5, new_fd: 17 }));
    world.event(What::Process(Process::Fork { child: 300 }));
    world.read(5, GET);
    world.lose();
    // The use of one name says nothing of the others.
    world.read(5, b"");
    assert_eq!(doubts(&world), [(5, 5), (5, 17), (5, 5), (5, 17)]);
    found_closed(&mut world, 5, 17);
    world.close(5);
    world.pid = 300;
    found_closed(&mut world, 5, 5);
    assert!(world.exchanges().is_empty());
    found_closed(&mut world, 5, 17);
    assert_eq!(world.only().incomplete, [reason::LOST_EVENTS, reason::END_NOT_SEEN]);
}

#[test]
fn an_end_of_a_process_that_was_lost_takes_closes_along() {
    let mut world = World::serving();
    world.read(5, GET);
    world.event(What::Loss(Losses { process: 1, ..Losses::default() }));
    assert_eq!(doubts(&world), [(5, 5)]);
    found_closed(&mut world, 5, 5);
    assert_eq!(world.only().incomplete, [reason::END_NOT_SEEN]);
}

#[test]
fn all_come_to_be_asked_about_some_at_a_time() {
    let mut world = World::new();
    for conn in 1..=10 {
        world.accept(conn, conn as i32);
        world.read(conn, GET);
    }
    world.lose();
    let mut asked = Vec::new();
    let mut last = None;
    for _ in 0..4 {
        let some = world.streams.doubtful(last, 4);
        assert_eq!(some.len(), 4);
        last = some.last().copied();
        asked.extend(some.iter().map(|naming| naming.conn));
    }
    assert_eq!(asked, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6]);
    // The one that was asked about last is gone meanwhile, and others.
    (6..=9).for_each(|conn| found_closed(&mut world, conn, conn as i32));
    let some: Vec<u64> = world.streams.doubtful(last, 4).iter().map(|n| n.conn).collect();
    assert_eq!(some, [10, 1, 2, 3]);
    assert_eq!(world.streams.doubtful(None, 0), []);
}
