//! When requests reached the socket.

use super::*;

fn answer(world: &mut World) -> Exchange {
    world.read(5, GET);
    world.write(5, OK);
    world.exchanges().pop().unwrap()
}

#[test]
fn mapped_addresses_are_the_same() {
    let mut world = World::new();
    world.listen("[::]:8000");
    world.establish();
    let enter_ns = world.now;
    let mapped = Some(addr("[::ffff:10.0.0.2]:40000"));
    world.event(What::Socket(Socket::Accept {
        conn: 5,
        fd: 5,
        listen_fd: LISTEN,
        peer: mapped,
        enter_ns,
    }));
    let arrived = world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
}

#[test]
fn the_descriptor_fact_joins_what_accept_did_not_say() {
    let mut world = World::new();
    let established = world.establish();
    let arrived = world.arrive(GET.len());
    let enter_ns = world.now;
    world.event(What::Socket(Socket::Accept {
        conn: 5,
        fd: 5,
        listen_fd: LISTEN,
        peer: None,
        enter_ns,
    }));
    world.fact(5, 5, Descriptor::Tcp { local: local(), peer: peer(), server: true });
    let exchange = answer(&mut world);
    assert_eq!((exchange.arrived_ns, exchange.established_ns), (Some(arrived), Some(established)));
}

#[test]
fn a_server_that_asks_for_the_peer_after_accept_says_who_it_is() {
    let mut world = World::new();
    let established = world.establish();
    let arrived = world.arrive(GET.len());
    let enter_ns = world.now;
    let accept = Socket::Accept { conn: 5, fd: 5, listen_fd: LISTEN, peer: None, enter_ns };
    world.event(What::Socket(accept));
    world.event(What::Socket(Socket::Named { conn: 5, peer: Some(peer()), local: None }));
    world.event(What::Socket(Socket::Named { conn: 5, peer: None, local: Some(local()) }));
    let exchange = answer(&mut world);
    assert_eq!(exchange.peer, Some(peer()));
    assert_eq!((exchange.arrived_ns, exchange.established_ns), (Some(arrived), Some(established)));
}

#[test]
fn a_listener_that_is_looked_up_late_joins_too() {
    let mut world = World::new();
    world.establish();
    world.accept(5, 5);
    world.listen("0.0.0.0:8000");
    let arrived = world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
}

#[test]
fn attached_while_idle_is_believed_at_once() {
    let mut world = World::new();
    world.fact(5, 5, Descriptor::Tcp { local: local(), peer: peer(), server: true });
    let arrived = world.arrive(GET.len());
    let exchange = answer(&mut world);
    assert_eq!((exchange.arrived_ns, exchange.accepted_ns), (Some(arrived), None));
}

#[test]
fn attached_with_bytes_in_the_socket_is_not() {
    let mut world = World::new();
    world.fact(5, 5, Descriptor::Tcp { local: local(), peer: peer(), server: true });
    world.arrive(7);
    assert_eq!(answer(&mut world).arrived_ns, None);
    assert_eq!(world.streams.counters().arrivals_unknown, 1);
    // The short read showed the socket empty.
    let arrived = world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
}

#[test]
fn without_arrivals_nothing_is_said() {
    let mut world = World::serving();
    assert_eq!(answer(&mut world).arrived_ns, None);
}

#[test]
fn duplicates_do_not_shift_the_queue_for_ever() {
    let mut world = World::serving();
    let arrived = world.arrive(GET.len());
    // A spurious retransmission close behind: both places are near enough.
    world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
    world.wait(3_000_000);
    let arrived = world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
    // One that comes while the connection is idle, long before the next request.
    world.arrive(GET.len());
    world.wait(3_000_000);
    world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, None);
    assert_eq!(world.streams.counters().arrivals_ambiguous, 1);
    let arrived = world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
}

#[test]
fn an_empty_read_shows_the_socket_empty() {
    let mut world = World::serving();
    world.arrive(500);
    world.io(Direction::In, 5, b"", -11);
    world.wait(3_000_000);
    let arrived = world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
}

#[test]
fn a_reused_pair_of_addresses_begins_anew() {
    let mut world = World::serving();
    world.arrive(10);
    world.close(5);
    world.event(What::Tcp(Tcp::Closed { local: local(), peer: peer() }));
    world.arrive(77);
    world.establish();
    let arrived = world.arrive(GET.len());
    world.accept(5, 5);
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
}

#[test]
fn two_claims_on_one_pair_say_nothing() {
    let mut world = World::serving();
    world.pid = 200;
    world.fact(6, 6, Descriptor::Tcp { local: local(), peer: peer(), server: true });
    world.pid = PID;
    world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, None);
}

#[test]
fn lost_arrivals_are_not_trusted() {
    let mut world = World::serving();
    world.event(What::Loss(Losses { tcp: 1, ..Losses::default() }));
    world.arrive(GET.len() - 1);
    assert_eq!(answer(&mut world).arrived_ns, None);
    let arrived = world.arrive(GET.len());
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
}

#[test]
fn handshakes_and_segments_are_capped() {
    let limits = Limits { unaccepted: 10, arrivals_per_connection: 4, ..Limits::default() };
    let mut world = World::with(limits);
    for port in 1..100 {
        let peer = SocketAddr::new(peer().ip(), port);
        world.event(What::Tcp(Tcp::Established { local: local(), peer }));
    }
    assert_eq!(world.streams.tuples.sizes(), (10, 0));
    assert_eq!(world.streams.counters().unaccepted_evicted, 89);
    world.listen("0.0.0.0:8000");
    world.establish();
    world.accept(5, 5);
    let arrived = world.arrive(1);
    (1..GET.len()).for_each(|_| _ = world.arrive(1));
    assert_eq!(world.streams.tuples.sizes().1, 4);
    assert_eq!(answer(&mut world).arrived_ns, Some(arrived));
    assert_eq!(world.streams.tuples.sizes().1, 0);
}
