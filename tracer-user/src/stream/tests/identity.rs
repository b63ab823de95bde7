//! Descriptors, forks and connections that nobody introduced.

use super::*;

fn is_live(world: &World) -> bool {
    world.streams.connections() == 1
}

#[test]
fn a_duplicate_keeps_the_connection_open() {
    let mut world = World::serving();
    world.event(What::Socket(Socket::Dup { conn: 5, old_fd: 5, new_fd: 17 }));
    world.read(5, GET);
    world.close(5);
    assert!(is_live(&world) && world.exchanges().is_empty());
    world.event(What::Socket(Socket::CloseRange { first: 10, last: u32::MAX }));
    assert!(!is_live(&world));
    assert_eq!(world.only().outcome, Some(Outcome::Reset));
}

#[test]
fn a_child_serves_what_its_parent_accepted() {
    let mut world = World::serving();
    world.event(What::Process(Process::Fork { child: 300 }));
    world.close(5);
    assert!(is_live(&world));
    world.pid = 300;
    world.read(5, GET);
    world.write(5, OK);
    let exchange = world.only();
    assert_eq!((exchange.pid, exchange.accepted_ns.is_some()), (300, true));
    world.event(What::Process(Process::Exit { last: true }));
    assert!(!is_live(&world));
}

#[test]
fn a_child_that_names_it_by_another_number_takes_it_over() {
    let mut world = World::serving();
    world.event(What::Process(Process::Fork { child: 300 }));
    world.close(5);
    world.pid = 300;
    world.fact(5, 77, Descriptor::Tcp { local: local(), peer: peer(), server: true });
    let arrived = world.arrive(GET.len());
    world.io(Direction::In, 77, GET, GET.len() as i64);
    world.io(Direction::Out, 77, OK, OK.len() as i64);
    let exchange = world.only();
    assert_eq!((exchange.conn, exchange.arrived_ns), (77, Some(arrived)));
    assert!(exchange.accepted_ns.is_some());
}

#[test]
fn what_an_exec_inherits_is_closed() {
    let mut world = World::serving();
    world.event(What::Process(Process::Fork { child: 300 }));
    world.close(5);
    assert!(is_live(&world));
    world.pid = 300;
    world.event(What::Process(Process::Exec));
    assert!(!is_live(&world));
}

#[test]
fn the_stack_closes_what_a_silent_child_holds() {
    let mut world = World::serving();
    world.event(What::Process(Process::Fork { child: 300 }));
    world.read(5, GET);
    world.close(5);
    world.event(What::Tcp(Tcp::Closed { local: local(), peer: peer() }));
    assert!(!is_live(&world));
    assert_eq!(world.only().outcome, Some(Outcome::Reset));
}

#[test]
fn a_reused_descriptor_shows_an_unseen_close() {
    let mut world = World::serving();
    world.read(5, GET);
    world.accept(6, 5);
    let exchange = world.only();
    assert_eq!((exchange.outcome, &exchange.incomplete[..]), (None, &[reason::END_NOT_SEEN][..]));
    assert_eq!((world.streams.counters().closes_unseen, is_live(&world)), (1, true));
}

#[test]
fn an_unintroduced_connection_is_served() {
    let mut world = World::new();
    world.read(5, b"rest of something");
    world.read(5, GET);
    world.fact(5, 5, Descriptor::Tcp { local: local(), peer: peer(), server: true });
    world.write(5, OK);
    let exchange = world.only();
    assert_eq!((exchange.role, exchange.route.as_str()), (Role::Server, "/a"));
    let mut world = World::new();
    world.write(5, GET);
    world.read(5, OK);
    assert_eq!(world.only().role, Role::Client);
}

#[test]
fn a_late_call_does_not_bring_a_closed_connection_back() {
    let mut world = World::serving();
    world.close(5);
    world.io(Direction::In, 5, b"", -104);
    world.io(Direction::In, 5, b"", 0);
    assert_eq!(world.streams.connections(), 0);
}

#[test]
fn a_stale_call_does_not_take_a_reused_descriptor_away() {
    let mut world = World::serving();
    let enter = world.now;
    world.close(5);
    world.accept(6, 5);
    world.io_from(enter, Direction::In, 5, GET, GET.len() as i64);
    assert_eq!((world.streams.counters().closes_unseen, is_live(&world)), (0, true));
}

#[test]
fn accepted_from_a_unix_listener_is_unix() {
    let mut world = World::new();
    world.fact(LISTEN, 44, Descriptor::Unix { inode: 1, peer: 2 });
    let enter_ns = world.now;
    world.event(What::Socket(Socket::Accept {
        conn: 5,
        fd: 5,
        listen_fd: LISTEN,
        peer: None,
        enter_ns,
    }));
    world.read(5, GET);
    world.close(5);
    assert_eq!((world.exchanges().len(), world.flows()[0].kind), (0, FlowKind::Unix));
}

#[test]
fn names_are_capped() {
    let mut world = World::with(Limits { names: 4, ..Limits::default() });
    for conn in 1..10 {
        world.accept(conn, conn as i32);
    }
    assert_eq!((world.streams.names.len(), world.streams.counters().names_refused), (4, 5));
    (1..10).for_each(|conn| world.close(conn));
    assert_eq!((world.streams.names.len(), world.streams.connections()), (0, 0));
}
