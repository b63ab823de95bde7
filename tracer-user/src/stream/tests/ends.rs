//! How exchanges end that do not end well, and connections that are not parsed.

use super::*;

const HALF: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\nabc";

fn started(response: &[u8]) -> World {
    let mut world = World::serving();
    world.read(5, GET);
    if !response.is_empty() {
        world.write(5, response);
    }
    world
}

#[test]
fn the_client_goes_away() {
    for response in [&b""[..], HALF] {
        let mut world = started(response);
        world.io(Direction::In, 5, b"", 0);
        assert_eq!(world.exchanges().len(), 0);
        world.wait(4_000_000);
        world.close(5);
        let exchange = world.only();
        assert_eq!((exchange.outcome, exchange.end_ns), (Some(Outcome::Cancelled), world.now));
        for (direction, errno) in
            [(Direction::In, -104), (Direction::Out, -32), (Direction::Out, -104)]
        {
            let mut world = started(response);
            world.io(direction, 5, b"", errno);
            assert_eq!(world.only().outcome, Some(Outcome::Cancelled));
            world.close(5);
            assert_eq!(world.exchanges().len(), 1);
        }
    }
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let mut world = started(b"");
    world.io(Direction::In, 5, b"", 0);
    world.write(5, OK);
    assert_eq!(world.only().outcome, Some(Outcome::Ok));
}

#[test]
fn the_server_closes_or_dies() {
    for response in [&b""[..], HALF] {
        let mut world = started(response);
        world.close(5);
        assert_eq!(world.only().outcome, Some(Outcome::Reset));
        let mut world = started(response);
        world.event(What::Process(Process::Exit { last: true }));
        assert_eq!(world.only().outcome, Some(Outcome::Reset));
        let mut world = started(response);
        world.event(What::Proc(ProcFact::Gone { pid: PID }));
        assert_eq!(world.only().outcome, Some(Outcome::Reset));
        let mut world = started(response);
        world.event(What::Process(Process::Exit { last: false }));
        assert_eq!(world.exchanges().len(), 0);
    }
    let mut world = started(HALF);
    world.event(What::Socket(Socket::Shutdown { conn: 5, how: 1 }));
    assert_eq!(world.only().outcome, Some(Outcome::Reset));
}

#[test]
fn a_response_until_close_ends_with_it() {
    for how in 0..3 {
        let mut world = started(b"HTTP/1.0 200 OK\r\n\r\nabc");
        world.write(5, b"def");
        let written = world.now;
        match how {
            0 => world.close(5),
            1 => world.event(What::Socket(Socket::Shutdown { conn: 5, how: 2 })),
            _ => world.io(Direction::Out, 5, b"", -104),
        }
        let exchange = world.only();
        if how == 2 {
            assert_eq!(exchange.outcome, Some(Outcome::Cancelled));
        } else {
            assert_eq!((exchange.outcome, exchange.end_ns), (Some(Outcome::Ok), written));
            assert!(!exchange.end_inferred);
        }
    }
}

#[test]
fn a_dependency_fails() {
    let connected = || {
        let mut world = World::new();
        let enter_ns = world.now;
        world.event(What::Socket(Socket::Connect {
            conn: 8,
            fd: 8,
            peer: Some(peer()),
            ret: 0,
            enter_ns,
        }));
        world.write(8, GET);
        world
    };
    let mut world = connected();
    world.io(Direction::In, 8, b"", 0);
    assert_eq!(world.only().outcome, Some(Outcome::Reset));
    let mut world = connected();
    world.close(8);
    assert_eq!(world.only().outcome, Some(Outcome::Cancelled));
    let mut world = connected();
    world.read(8, b"HTTP/1.0 200 OK\r\n\r\nabc");
    world.io(Direction::In, 8, b"", 0);
    assert_eq!(world.only().outcome, Some(Outcome::Ok));
}

#[test]
fn tls_is_a_flow() {
    let mut world = World::serving();
    world.read(5, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    world.io(Direction::Out, 5, b"\x16\x03\x03", 4000);
    let open: Vec<Flow> = world.streams.unparsed().collect();
    assert_eq!((open.len(), open[0].kind, open[0].bytes_out), (1, FlowKind::Tls, 4000));
    world.close(5);
    let flow = world.flows().remove(0);
    assert_eq!((flow.kind, flow.bytes_in, flow.peer), (FlowKind::Tls, 11, Some(peer())));
    assert!(!flow.open && world.exchanges().is_empty());
}

#[test]
fn an_upgrade_is_an_exchange_and_then_a_flow() {
    let mut world = World::serving();
    world.read(5, b"GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    world.write(5, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n");
    let exchange = world.only();
    assert_eq!((exchange.status, exchange.outcome), (Some(101), Some(Outcome::Ok)));
    world.read(5, b"\x81\x85....hello");
    world.close(5);
    let flow = world.flows().remove(0);
    assert_eq!((flow.kind, flow.bytes_in, flow.bytes_out), (FlowKind::Tunnel, 11, 0));
}

#[test]
fn unix_sockets_and_unknown_protocols_are_flows() {
    let mut world = World::new();
    world.fact(6, 6, Descriptor::Unix { inode: 1, peer: 2 });
    world.read(6, GET);
    world.fact(7, 7, Descriptor::Tcp { local: local(), peer: peer(), server: true });
    world.read(7, b"\x01\x02\x03");
    world.accept(8, 8);
    world.read(8, b"*1\r\n$4\r\nPING\r\n");
    let mut kinds: Vec<_> = world.streams.unparsed().map(|f| (f.conn, f.kind)).collect();
    kinds.sort_unstable_by_key(|(conn, _)| *conn);
    assert_eq!(kinds, [(6, FlowKind::Unix), (7, FlowKind::Unknown), (8, FlowKind::Unknown)]);
    world.streams.finish_flows(&mut world.out);
    assert_eq!((world.flows().len(), world.exchanges().len()), (3, 0));
}

#[test]
fn files_and_pipes_are_nothing() {
    let mut world = World::new();
    world.read(9, b"GET / HTTP/1.1\r\n\r\n");
    world.read(10, b"some text");
    world.fact(9, 9, Descriptor::Other);
    world.close(10);
    assert!(world.out.is_empty() && world.streams.is_empty() || world.streams.connections() == 0);
    assert_eq!(world.streams.open().count(), 0);
}

#[test]
fn connections_are_capped() {
    let mut world = World::with(Limits { connections: 32, ..Limits::default() });
    for conn in 0..100 {
        world.accept(conn, conn as i32);
        world.read(conn, GET);
    }
    assert!(world.streams.connections() <= 32);
    let evicted = world.exchanges();
    assert_eq!(evicted.len() as u64, world.streams.counters().connections_evicted);
    assert!(evicted.iter().all(|e| e.outcome.is_none() && e.incomplete == [reason::EVICTED]));
    assert_eq!(evicted[0].conn, 0);
}

#[test]
fn open_requests_are_capped() {
    let mut world = World::serving();
    let many = GET.repeat(100);
    world.read(5, &many);
    assert_eq!(world.streams.open().count(), 64);
    assert_eq!(world.streams.counters().exchanges_untracked, 36);
    (0..100).for_each(|_| world.write(5, OK));
    world.read(5, b"GET /last HTTP/1.1\r\n\r\n");
    world.write(5, OK);
    assert_eq!(world.exchanges().len(), 65);
    assert_eq!(world.exchanges()[64].route, "/last");
}

#[test]
fn held_heads_are_capped() {
    let mut world = World::with(Limits { head_bytes: 1000, ..Limits::default() });
    for conn in 20..23 {
        world.accept(conn, conn as i32);
        let head = [&b"GET /x HTTP/1.1\r\nCookie: "[..], &[b'c'; 500]].concat();
        world.read(conn, &head);
    }
    assert_eq!(
        (world.streams.counters().heads_cut, world.streams.shared.head_bytes < 1100),
        (2, true)
    );
    world.write(21, OK);
    assert_eq!(world.only().incomplete, [reason::HEAD_TOO_LONG]);
    (20..23).for_each(|conn| world.close(conn));
    assert_eq!(world.streams.shared.head_bytes, 0);
}
