//! Servers and clients as their events show them.
mod arrivals;
mod doubts;
mod ends;
mod identity;
mod losses;
mod serving;
mod soup;

use std::net::SocketAddr;

use bytes::Bytes;

use super::exchange::reason;
use super::*;
use crate::intake::event::{
    Descriptor, Direction, Event, Io, IoCall, Losses, Naming, ProcFact, Process, Socket, Tcp, What,
};
use crate::stream::Outcome;

const PID: u32 = 100;
const TID: u32 = 101;
const LISTEN: i32 = 3;
const GET: &[u8] = b"GET /a?x HTTP/1.1\r\nHost: localhost\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn local() -> SocketAddr {
    addr("10.0.0.1:8000")
}

fn peer() -> SocketAddr {
    addr("10.0.0.2:40000")
}

/// A machine whose clock runs 10 µs per step, and what was said about it.
struct World {
    streams: Streams,
    out: Vec<Out>,
    now: u64,
    pid: u32,
    tid: u32,
}

impl World {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        Self { streams: Streams::new(limits), out: Vec::new(), now: 1_000_000, pid: PID, tid: TID }
    }

    fn event(&mut self, what: What) {
        self.now += 10_000;
        let event = Event { time_ns: self.now, pid: self.pid, tid: self.tid, what };
        self.streams.on_event(&event, &mut self.out);
    }

    fn wait(&mut self, ns: u64) -> u64 {
        self.now += ns;
        self.now
    }

    fn fact(&mut self, fd: i32, conn: u64, kind: Descriptor) {
        let pid = self.pid;
        self.event(What::Proc(ProcFact::Descriptor { pid, fd, conn, kind }));
    }

    fn listen(&mut self, at: &str) {
        self.fact(LISTEN, 9_999, Descriptor::Listener { local: addr(at) });
    }

    fn accept(&mut self, conn: u64, fd: i32) {
        let enter_ns = self.now;
        let what = Socket::Accept { conn, fd, listen_fd: LISTEN, peer: Some(peer()), enter_ns };
        self.event(What::Socket(what));
    }

    /// A call of 5 µs.
    fn io(&mut self, direction: Direction, conn: u64, data: &[u8], ret: i64) {
        let enter_ns = self.now + 5_000;
        self.io_from(enter_ns, direction, conn, data, ret);
    }

    fn io_from(&mut self, enter_ns: u64, direction: Direction, conn: u64, data: &[u8], ret: i64) {
        self.event(What::Socket(Socket::Io(Io {
            conn,
            fd: conn as i32,
            call: if direction == Direction::In { IoCall::Recvfrom } else { IoCall::Sendto },
            direction,
            enter_ns,
            ret,
            requested: 65_536,
            peek: false,
            data: Bytes::copy_from_slice(data),
        })));
    }

    fn read(&mut self, conn: u64, data: &[u8]) {
        self.io(Direction::In, conn, data, data.len() as i64);
    }

    fn write(&mut self, conn: u64, data: &[u8]) {
        self.io(Direction::Out, conn, data, data.len() as i64);
    }

    fn close(&mut self, conn: u64) {
        self.event(What::Socket(Socket::Close { conn, fd: conn as i32 }));
    }

    fn arrive(&mut self, bytes: usize) -> u64 {
        let arrival =
            Tcp::Arrival { local: local(), peer: peer(), bytes: bytes as u32, srtt_us: 120 };
        self.event(What::Tcp(arrival));
        self.now
    }

    fn establish(&mut self) -> u64 {
        self.event(What::Tcp(Tcp::Established { local: local(), peer: peer() }));
        self.now
    }

    fn lose(&mut self) {
        self.event(What::Loss(Losses { socket: 1, ..Losses::default() }));
    }

    /// A server with one accepted connection, number and descriptor 5.
    fn serving() -> Self {
        let mut world = Self::new();
        world.listen("0.0.0.0:8000");
        world.establish();
        world.accept(5, 5);
        world
    }

    fn exchanges(&self) -> Vec<Exchange> {
        let exchange = |out: &Out| match out {
            Out::Exchange(exchange) => Some((**exchange).clone()),
            Out::Flow(_) => None,
        };
        self.out.iter().filter_map(exchange).collect()
    }

    fn flows(&self) -> Vec<Flow> {
        let flow = |out: &Out| match out {
            Out::Flow(flow) => Some(flow.clone()),
            Out::Exchange(_) => None,
        };
        self.out.iter().filter_map(flow).collect()
    }

    /// The one exchange.
    fn only(&self) -> Exchange {
        let mut all = self.exchanges();
        assert_eq!(all.len(), 1, "{all:#?}");
        all.remove(0)
    }
}
