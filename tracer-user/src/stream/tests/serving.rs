//! What goes well.

use super::*;

#[test]
fn keep_alive_has_every_instant() {
    let mut world = World::new();
    world.listen("0.0.0.0:8000");
    let established = world.establish();
    let arrived = world.arrive(GET.len());
    world.wait(500_000);
    world.accept(5, 5);
    let accepted = world.now;
    world.wait(300_000);
    world.read(5, GET);
    let read = world.now;
    world.wait(2_000_000);
    assert_eq!(world.streams.open().count(), 1);
    world.write(5, OK);
    let first = world.only();
    assert_eq!((first.method.as_str(), first.route.as_str()), ("GET", "/a"));
    assert_eq!((first.status, first.outcome), (Some(200), Some(Outcome::Ok)));
    assert_eq!((first.established_ns, first.accepted_ns), (Some(established), Some(accepted)));
    assert_eq!(first.arrived_ns, Some(arrived));
    assert_eq!((first.first_read.exit_ns, first.last_read.exit_ns), (read, read));
    assert_eq!((first.end_ns, first.last_write.unwrap().exit_ns), (world.now, world.now));
    assert_eq!((first.request_bytes, first.response_bytes), (GET.len() as u64, OK.len() as u64));
    assert_eq!((first.local, first.peer), (Some(local()), Some(peer())));
    assert_eq!((first.readers.only(), first.tcp_rtt_ns), (Some(TID), Some(120_000)));
    assert_eq!((first.incomplete.len(), first.open), (0, false));

    world.wait(5_000_000);
    let arrived = world.arrive(GET.len());
    world.read(5, GET);
    world.write(5, OK);
    let second = world.exchanges().remove(1);
    assert_eq!((second.seq_on_conn, second.established_ns, second.accepted_ns), (1, None, None));
    assert_eq!((second.arrived_ns, second.id), (Some(arrived), 1));
    world.close(5);
    assert_eq!((world.exchanges().len(), world.flows().len()), (2, 0));
    assert!(world.streams.connections() == 0 && world.streams.open().count() == 0);
}

#[test]
fn a_body_over_several_reads_and_writes() {
    let mut world = World::serving();
    world.read(5, b"POST /p HTTP/1.1\r\nContent-Length: 3000\r\n\r\n");
    let begun = world.now;
    world.tid = 7;
    world.io(Direction::In, 5, b"abc", 2000);
    world.io(Direction::In, 5, b"", 1000);
    let read = world.now;
    world.write(5, b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\n");
    let written = world.now;
    world.write(5, b"oops");
    let exchange = world.only();
    assert_eq!((exchange.first_read.exit_ns, exchange.last_read.exit_ns), (begun, read));
    assert_eq!(exchange.first_write.unwrap().exit_ns, written);
    assert_eq!(exchange.end_ns, written + 10_000);
    assert_eq!(exchange.readers.as_slice(), [TID, 7]);
    assert_eq!((exchange.outcome, exchange.end_inferred), (Some(Outcome::ServerError), false));
    assert_eq!(exchange.request_bytes, 3042);
}

#[test]
fn server_sent_events_have_a_time_each() {
    let mut world = World::serving();
    world.read(5, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
    world.write(
        5,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    let mut times = Vec::new();
    for wait in [0, 40_000, 900_000, 10_000] {
        world.wait(wait);
        world.write(5, b"9\r\ndata: x\n\n\r\n");
        times.push(world.now);
    }
    world.write(5, b"8\r\n: ping\n\n\r\n");
    world.write(5, b"e\r\ndata: [DONE]\n\n\r\n");
    world.write(5, b"0\r\n\r\n");
    let exchange = world.only();
    assert!(exchange.sse);
    assert_eq!((exchange.chunks, &exchange.chunk_times_ns), (4, &times));
    assert_eq!(exchange.longest_gap, Some((times[1], times[2])));
    assert_eq!((exchange.last_chunk_ns, exchange.end_ns), (Some(times[3]), world.now));
    assert!(exchange.incomplete.is_empty());
}

#[test]
fn other_chunked_responses_count_writes() {
    let mut world = World::serving();
    world.read(5, GET);
    world.write(5, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    world.write(5, b"1\r\na\r\n1\r\nb\r\n");
    world.write(5, b"1\r\nc\r\n");
    world.write(5, b"0\r\n\r\n");
    assert_eq!(world.only().chunks, 2);
}

#[test]
fn chunk_times_are_capped() {
    let mut world = World::with(Limits { chunk_times: 3, ..Limits::default() });
    world.accept(5, 5);
    world.read(5, GET);
    world.write(5, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    (0..5).for_each(|_| world.write(5, b"1\r\na\r\n"));
    world.write(5, b"0\r\n\r\n");
    let exchange = world.only();
    assert_eq!((exchange.chunks, exchange.chunk_times_ns.len()), (5, 3));
    assert_eq!(exchange.incomplete, [reason::CHUNK_TIMES_CAPPED]);
    assert!(exchange.last_chunk_ns > exchange.chunk_times_ns.last().copied());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut world = World::serving();
    let arrived = world.arrive(GET.len());
    let both = [GET, b"GET /b HTTP/1.1\r\n\r\n"].concat();
    let later = world.arrive(both.len() - GET.len());
    world.read(5, &both);
    assert_eq!(world.streams.open().count(), 2);
    world.write(5, OK);
    world.write(5, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    let all = world.exchanges();
    assert_eq!(
        (all[0].route.as_str(), all[0].status, all[0].arrived_ns),
        ("/a", Some(200), Some(arrived))
    );
    assert_eq!(
        (all[1].route.as_str(), all[1].status, all[1].arrived_ns),
        ("/b", Some(404), Some(later))
    );
    assert_eq!(all[1].outcome, Some(Outcome::ClientError));
}

#[test]
fn continue_is_not_the_answer() {
    let mut world = World::serving();
    world.read(5, b"POST /p HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    world.write(5, b"HTTP/1.1 100 Continue\r\n\r\n");
    world.read(5, b"abc");
    world.write(5, OK);
    let exchange = world.only();
    assert_eq!(exchange.first_write.unwrap().exit_ns, world.now);
    assert_eq!((exchange.status, exchange.early_response), (Some(200), false));
}

#[test]
fn an_early_response_is_said() {
    let mut world = World::serving();
    world.read(5, b"POST /p HTTP/1.1\r\nContent-Length: 900\r\n\r\nabc");
    world.write(5, b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
    assert!(world.only().early_response);
    // The rest of the body is read and dropped; the next request is found behind it.
    world.io(Direction::In, 5, b"", 897);
    world.read(5, GET);
    world.write(5, OK);
    assert_eq!(world.exchanges()[1].route, "/a");
}

#[test]
fn outgoing_requests_are_clients() {
    let mut world = World::new();
    let enter_ns = world.now;
    world.event(What::Socket(Socket::Connect {
        conn: 8,
        fd: 8,
        peer: Some(peer()),
        ret: -115,
        enter_ns,
    }));
    world.write(8, GET);
    let written = world.now;
    world.read(8, &OK[..30]);
    world.read(8, &OK[30..]);
    let exchange = world.only();
    assert_eq!((exchange.role, exchange.route.as_str()), (Role::Client, "/a"));
    assert_eq!((exchange.first_read.exit_ns, exchange.end_ns), (written, world.now));
    assert_eq!((exchange.arrived_ns, exchange.accepted_ns), (None, None));
}

#[test]
fn overlapping_writers_are_flagged() {
    let mut world = World::serving();
    world.read(5, GET);
    world.write(5, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
    let enter = world.now + 1;
    world.tid = 7;
    world.io_from(enter, Direction::Out, 5, b"ab", 2);
    world.tid = 8;
    world.io_from(enter, Direction::Out, 5, b"cd", 2);
    assert_eq!(world.only().incomplete, [reason::CONCURRENT_IO]);
    assert_eq!(world.streams.counters().overlapping_calls, 1);
    // One thread after the other is no overlap, nor is a reader blocked beside a writer.
    let mut world = World::serving();
    world.read(5, GET);
    world.tid = 9;
    world.write(5, OK);
    assert!(world.only().incomplete.is_empty());
}

#[test]
fn peeked_bytes_are_not_read() {
    let mut world = World::serving();
    let enter_ns = world.now;
    world.event(What::Socket(Socket::Io(Io {
        conn: 5,
        fd: 5,
        call: IoCall::Recvfrom,
        direction: Direction::In,
        enter_ns,
        ret: GET.len() as i64,
        requested: 100,
        peek: true,
        data: Bytes::from_static(GET),
    })));
    world.read(5, GET);
    world.write(5, OK);
    assert_eq!(world.only().request_bytes, GET.len() as u64);
}

#[test]
fn retransmits_count_while_open() {
    let mut world = World::serving();
    let again = || What::Tcp(Tcp::Retransmit { local: local(), peer: peer() });
    world.event(again());
    world.read(5, GET);
    world.event(again());
    world.event(again());
    world.write(5, OK);
    assert_eq!(world.only().retransmits, 2);
}
