//! Properties over generated events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Any event over few connections, descriptors, processes and texts.
fn any_event() -> impl Strategy<Value = What> {
    const TEXTS: [&[u8]; 9] = [
        GET,
        OK,
        b"",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"\x16\x03\x01\x02",
        b"POST /p HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
        b"GET /b HTTP/1.1\r\nUpgrade: x\r\n\r\nHTTP/1.1 101 x\r\n\r\n",
    ];
    let pair = (0u16..3).prop_map(|n| (local(), SocketAddr::new(peer().ip(), 40_000 + n)));
    let io = (
        0u64..6,
        any::<bool>(),
        0usize..9,
        prop_oneof![Just(0i64), Just(-11), Just(-104), Just(-32), 1i64..90],
        any::<bool>(),
        0u64..20_000,
    )
        .prop_map(|(conn, read, text, ret, all, back)| {
            let data = TEXTS[text];
            let ret = if all { data.len() as i64 } else { ret };
            let shown = usize::try_from(ret).unwrap_or(0).min(data.len());
            What::Socket(Socket::Io(Io {
                conn,
                fd: (conn % 4) as i32,
                call: IoCall::Read,
                direction: if read { Direction::In } else { Direction::Out },
                enter_ns: back,
                ret,
                requested: 64,
                peek: back % 17 == 0,
                data: Bytes::copy_from_slice(&data[..shown]),
            }))
        });
    let socket =
        (0u64..6, 0i32..4, 0u8..6, pair.clone()).prop_map(|(conn, fd, kind, (_, peer))| {
            What::Socket(match kind {
                0 => Socket::Accept { conn, fd, listen_fd: LISTEN, peer: Some(peer), enter_ns: 0 },
                1 => Socket::Connect { conn, fd, peer: Some(peer), ret: 0, enter_ns: 0 },
                2 => Socket::Close { conn, fd },
                3 => Socket::Dup { conn, old_fd: fd, new_fd: (fd + 1) % 4 },
                4 => Socket::CloseRange { first: fd as u32, last: 9 },
                _ => Socket::Shutdown { conn, how: fd as u32 % 3 },
            })
        });
    let tcp = (pair.clone(), 0u8..4, 0u32..90).prop_map(|((local, peer), kind, bytes)| {
        What::Tcp(match kind {
            0 => Tcp::Established { local, peer },
            1 => Tcp::Closed { local, peer },
            2 => Tcp::Retransmit { local, peer },
            _ => Tcp::Arrival { local, peer, bytes, srtt_us: 1 },
        })
    });
    let rest = (0u8..9, 0u64..6, 0i32..4, pair).prop_map(|(kind, conn, fd, (local, peer))| {
        let fact = |kind| What::Proc(ProcFact::Descriptor { pid: PID, fd, conn, kind });
        match kind {
            0 => What::Process(Process::Fork { child: PID + 1 }),
            1 => What::Process(Process::Exit { last: true }),
            2 => What::Process(Process::Exec),
            3 => What::Loss(Losses { socket: 1, tcp: 1, ..Losses::default() }),
            4 => fact(Descriptor::Listener { local }),
            5 => fact(Descriptor::Unix { inode: 1, peer: 2 }),
            6 => fact(Descriptor::Other),
            7 => What::Proc(ProcFact::Closed(Naming { conn, pid: PID, fd })),
            _ => fact(Descriptor::Tcp { local, peer, server: fd % 2 == 0 }),
        }
    });
    prop_oneof![6 => io, 3 => socket, 2 => tcp, 1 => rest]
}

/// One exchange on one connection of the machine below: calls in order, from two threads.
#[derive(Clone, Debug)]
struct Job {
    conn: u64,
    body: usize,
    cuts: Vec<prop::sample::Index>,
    capture: usize,
}

fn job() -> impl Strategy<Value = Job> {
    (1u64..4, 0usize..300, prop::collection::vec(any::<prop::sample::Index>(), 0..4), 60usize..200)
        .prop_map(|(conn, body, cuts, capture)| Job { conn, body, cuts, capture })
}

fn pieces(bytes: &[u8], cuts: &[prop::sample::Index], from: usize) -> Vec<Vec<u8>> {
    let mut at: Vec<usize> = cuts.iter().map(|i| from + i.index(bytes.len() + 1 - from)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|w| bytes[w[0]..w[1]].to_vec()).collect()
}

/// Calls of the jobs, those of one connection in order.
fn calls(jobs: &[Job]) -> Vec<(u64, Direction, Vec<u8>, usize)> {
    let mut all = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        let request = format!("POST /r{number} HTTP/1.1\r\nContent-Length: {}\r\n\r\n", job.body);
        let head = request.len();
        let request = [request.into_bytes(), vec![b'x'; job.body]].concat();
        let body = "y".repeat(number);
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {number}\r\n\r\n{body}");
        let pieces = pieces(&request, &job.cuts, head).into_iter();
        all.extend(pieces.map(|p| (job.conn, Direction::In, p, job.capture)));
        all.push((job.conn, Direction::Out, response.into_bytes(), job.capture));
    }
    all
}

/// Bytes of the response to request `number`.
fn answer_length(number: u64) -> u64 {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {number}\r\n\r\n").len() as u64 + number
}

fn route_number(exchange: &Exchange) -> Option<u64> {
    exchange.route.strip_prefix("/r")?.parse().ok()
}

proptest! {
    #[test]
    fn any_events_keep_the_books(events in prop::collection::vec(any_event(), 0..200)) {
        let limits = Limits { connections: 4, exchanges_per_connection: 3, unaccepted: 2, names: 5,
            arrivals_per_connection: 3, exchanges: 8, arrivals: 8, ..Limits::default() };
        let mut world = World::with(limits);
        for what in events {
            let what = match what {
                What::Socket(Socket::Io(io)) => {
                    let enter_ns = world.now.saturating_sub(io.enter_ns);
                    What::Socket(Socket::Io(Io { enter_ns, ..io }))
                }
                what => what,
            };
            world.event(what);
            prop_assert!(world.streams.connections() <= 4);
            prop_assert!(world.streams.names.len() <= 5);
            let doubts = world.streams.doubtful(None, 4);
            prop_assert!(doubts.len() <= 4 && doubts.is_sorted());
            prop_assert_eq!(world.streams.open().count(), world.streams.shared.open);
            prop_assert!(world.streams.shared.open <= 8);
            prop_assert!(world.streams.tuples.sizes().0 <= 4 + 2 + 3);
        }
        let open: Vec<u64> = world.streams.open().map(|e| e.id).collect();
        let ids: Vec<u64> = world.exchanges().iter().map(|e| e.id).chain(open).collect();
        prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        for exchange in world.exchanges() {
            prop_assert!(exchange.first_read.exit_ns <= exchange.end_ns);
            prop_assert!(exchange.arrived_ns.is_none_or(|at| at <= exchange.first_read.exit_ns));
        }
        for pid in [PID, PID + 1] {
            world.pid = pid;
            world.event(What::Process(Process::Exit { last: true }));
        }
        prop_assert!(world.streams.names.is_empty());
    }

    /// Whatever the splits and the captures: every request once, with its own response.
    #[test]
    fn every_request_once(jobs in prop::collection::vec(job(), 1..20)) {
        let mut world = World::new();
        (1..4).for_each(|conn| world.accept(conn, conn as i32));
        for (conn, direction, data, capture) in calls(&jobs) {
            let shown = data.len().min(capture);
            world.io(direction, conn, &data[..shown], data.len() as i64);
        }
        let all = world.exchanges();
        prop_assert_eq!(all.len(), jobs.len());
        for (number, exchange) in all.iter().enumerate() {
            prop_assert_eq!(route_number(exchange), Some(number as u64));
            prop_assert_eq!(exchange.response_bytes, answer_length(number as u64));
            prop_assert_eq!((exchange.outcome, exchange.incomplete.len()), (Some(Outcome::Ok), 0));
        }
    }

    /// Attached before any call, and with calls lost that are reported at once: no request twice,
    /// none silently with another's response, and all that were not touched are there.
    #[test]
    fn attached_anywhere_with_losses(
        jobs in prop::collection::vec(job(), 1..20),
        from in any::<prop::sample::Index>(),
        lost in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let all = calls(&jobs);
        let from = from.index(all.len());
        let lost: BTreeSet<usize> = lost.iter().map(|i| i.index(all.len())).collect();
        let mut world = World::new();
        for conn in 1..4u64 {
            let peer = SocketAddr::new(peer().ip(), conn as u16);
            world.fact(conn as i32, conn, Descriptor::Tcp { local: local(), peer, server: true });
        }
        let mut touched = BTreeSet::new();
        let mut number = 0;
        for (at, (conn, direction, data, capture)) in all.iter().enumerate() {
            if at < from || lost.contains(&at) {
                touched.insert(number);
            }
            if lost.contains(&at) {
                world.lose();
            } else if at >= from {
                let shown = data.len().min(*capture);
                world.io(*direction, *conn, &data[..shown], data.len() as i64);
            }
            number += u64::from(*direction == Direction::Out);
        }
        let mut seen = BTreeMap::new();
        for exchange in world.exchanges().iter().chain(world.streams.open()) {
            let Some(number) = route_number(exchange) else { continue };
            prop_assert!(seen.insert(number, exchange.clone()).is_none(), "twice: {}", number);
            let own = answer_length(number);
            let whole = exchange.response_bytes == own;
            // The answer and the next request both lost: the next answer is taken for it, and the
            // exchange says that it may be.
            let said = exchange.response_bytes == 0 || exchange.incomplete.contains(&reason::LOST_EVENTS);
            prop_assert!(whole || (said && touched.contains(&number)));
        }
        for number in (0..jobs.len() as u64).filter(|number| !touched.contains(number)) {
            prop_assert!(seen.get(&number).is_some_and(|e| e.outcome == Some(Outcome::Ok)), "{}", number);
        }
    }
}
