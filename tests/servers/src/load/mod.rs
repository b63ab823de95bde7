//! The load client: a thread per connection, blocking sockets, a stamp beside every call.

mod outcome;

use std::fmt::Write as _;
use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::{now_ns, sleep, sleep_until, thread_id};
use crate::hash::Fnv;
use crate::http::{Chunks, Framing, Piece, head_length, parse_response};
use crate::socket::{no_delay, set_option};
use crate::target::{Target, choose};
use crate::wire::{Io, Wire};

pub use self::outcome::Summary;
use self::outcome::{Outcome, line, summarise};

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Load {
    /// The server.
    pub addr: SocketAddr,
    /// Connections, and threads.
    pub connections: u64,
    /// Requests of all connections together.
    pub requests: u64,
    /// Stop sending after this long.
    pub duration: Option<Duration>,
    /// Requests per second of all connections together; `None`: each follows the last at once.
    pub rate: Option<f64>,
    /// What is asked for.
    pub targets: Vec<Target>,
    /// Decides the order of targets.
    pub seed: u64,
    /// A connection for every request.
    pub new_connections: bool,
    /// Requests sent before the first answer is read.
    pub pipeline: u64,
    /// Send them in one call.
    pub coalesce: bool,
    /// Upload bodies in chunks of this many bytes.
    pub chunked_upload: Option<usize>,
    /// Wait this long between the pieces of an upload.
    pub upload_gap_ns: u64,
    /// Ask for `100 Continue` before sending bodies.
    pub expect_continue: bool,
    /// Open every connection, say so, and wait for a line on standard input.
    pub open_first: bool,
    /// Request ids are this and the request's number.
    pub rid_prefix: String,
    /// Requests that differ from the others, each kind at its own distance; the first that fits.
    pub stalls: Vec<Stall>,
    /// Room for received bytes in the kernel.
    pub receive_buffer: Option<u32>,
    /// Give up on a connection that is silent this long.
    pub timeout: Duration,
    /// Arrival times kept per streamed response.
    pub chunk_cap: usize,
    /// Where the oracle goes.
    pub oracle: Option<PathBuf>,
}

/// A kind of request that is slow on purpose.
#[derive(Debug, Clone)]
pub struct Stall {
    /// Which: the requests whose number, counted from 1, is a multiple.
    pub every: u64,
    /// What they ask for instead; `None`: what they would have asked for.
    pub target: Option<Target>,
    /// The body is sent in two parts with this time between.
    pub upload_gap_ns: u64,
    /// The answer is left alone for this time.
    pub read_gap_ns: u64,
}

impl Stall {
    fn takes(&self, index: u64) -> bool {
        self.every > 0 && (index + 1).is_multiple_of(self.every)
    }
}

struct Connection {
    wire: Wire,
    local_port: u16,
    seq: u64,
    connect: Option<(u64, u64)>,
    last_read: u64,
}

impl Connection {
    fn open(load: &Load) -> io::Result<Connection> {
        let before = now_ns();
        let stream = TcpStream::connect_timeout(&load.addr, load.timeout)?;
        let after = now_ns();
        stream.set_read_timeout(Some(load.timeout))?;
        stream.set_write_timeout(Some(load.timeout))?;
        let local_port = stream.local_addr()?.port();
        let wire = Wire::new(OwnedFd::from(stream), Io::Recv);
        no_delay(wire.raw_fd());
        if let Some(bytes) = load.receive_buffer {
            set_option(wire.raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, bytes as libc::c_int)?;
        }
        Ok(Connection { wire, local_port, seq: 0, connect: Some((before, after)), last_read: 0 })
    }

    fn fill(&mut self) -> Result<(), String> {
        match self.wire.fill() {
            Ok(call) if call.result > 0 => {
                self.last_read = call.after;
                Ok(())
            }
            Ok(_) => Err("the server closed the connection".to_owned()),
            Err(error) => Err(format!("receiving: {error}")),
        }
    }
}

/// A request made ready before its time comes.
struct Prepared<'a> {
    target: &'a Target,
    stall: Option<&'a Stall>,
    outcome: Outcome,
    /// What each sending call sends.
    pieces: Vec<Vec<u8>>,
}

fn prepare<'a>(load: &'a Load, index: u64) -> Result<Prepared<'a>, String> {
    let stall = load.stalls.iter().enumerate().find(|(_, stall)| stall.takes(index));
    let (number, stall) = stall.map_or((0, None), |(at, stall)| (at + 1, Some(stall)));
    let target = stall
        .and_then(|stall| stall.target.as_ref())
        .or_else(|| choose(&load.targets, load.seed, index))
        .ok_or("nothing to ask for")?;
    let rid = format!("{}{index}", load.rid_prefix);
    let mut head = target.head(&load.addr.to_string(), &rid);
    if load.new_connections {
        head.push_str("Connection: close\r\n");
    }
    let body = &target.body;
    if load.expect_continue && !body.is_empty() {
        head.push_str("Expect: 100-continue\r\n");
    }
    let mut pieces = Vec::new();
    match load.chunked_upload {
        Some(size) if !body.is_empty() => {
            head.push_str("Transfer-Encoding: chunked\r\n\r\n");
            pieces.push(head.into_bytes());
            for part in body.chunks(size.max(1)) {
                let mut piece = format!("{:x}\r\n", part.len()).into_bytes();
                piece.extend_from_slice(part);
                piece.extend_from_slice(b"\r\n");
                pieces.push(piece);
            }
            pieces.push(b"0\r\n\r\n".to_vec());
        }
        _ => {
            if target.method == "POST" {
                let _ = write!(head, "Content-Length: {}\r\n", body.len());
            }
            head.push_str("\r\n");
            let mut bytes = head.into_bytes();
            if load.expect_continue && !body.is_empty() {
                pieces.push(bytes);
                pieces.push(body.clone());
            } else if body.len() > 1 && stall.is_some_and(|stall| stall.upload_gap_ns > 0) {
                let (first, second) = body.split_at(body.len() / 2);
                bytes.extend_from_slice(first);
                pieces.push(bytes);
                pieces.push(second.to_owned());
            } else {
                bytes.extend_from_slice(body);
                pieces.push(bytes);
            }
        }
    }
    let outcome = Outcome { rid, stall: number, ..Outcome::default() };
    Ok(Prepared { target, stall, outcome, pieces })
}

fn send(
    load: &Load,
    connection: &mut Connection,
    request: &mut Prepared<'_>,
) -> Result<(), String> {
    let mut calls = Vec::with_capacity(request.pieces.len() + 8);
    let mut joined = Vec::new();
    let mut sent = Ok(());
    for (i, piece) in request.pieces.iter().enumerate() {
        if i == 1 && load.expect_continue && !request.target.body.is_empty() {
            sent = wait_for_continue(connection);
        } else if i > 0 && load.upload_gap_ns > 0 {
            sleep(load.upload_gap_ns);
        }
        if let Some(stall) = request.stall.filter(|stall| stall.upload_gap_ns > 0)
            && i > 0
            && i + 1 == request.pieces.len()
        {
            request.outcome.upload_gap = Some(wait(stall.upload_gap_ns));
        }
        if sent.is_err() {
            break;
        }
        sent = connection
            .wire
            .send(piece, b"", &mut joined, &mut calls)
            .map_err(|error| format!("sending: {error}"));
    }
    request.outcome.note_sends(&calls);
    sent
}

/// Lets time pass; when it began and ended.
fn wait(ns: u64) -> (u64, u64) {
    let before = now_ns();
    sleep(ns);
    (before, now_ns())
}

fn wait_for_continue(connection: &mut Connection) -> Result<(), String> {
    let (length, response) = receive_head(connection)?;
    match response.status {
        100 => {
            connection.wire.consume(length);
            Ok(())
        }
        // A final answer: it stays in the buffer, and is what the request gets.
        status => Err(format!("status {status} instead of 100")),
    }
}

fn receive_head(connection: &mut Connection) -> Result<(usize, crate::http::Response), String> {
    let length = loop {
        if let Some(length) = head_length(connection.wire.data()) {
            break length;
        }
        if connection.wire.full() {
            return Err("the head is too long".to_owned());
        }
        connection.fill()?;
    };
    let response = parse_response(connection.wire.data().get(..length).unwrap_or_default())
        .map_err(|bad| bad.to_string())?;
    Ok((length, response))
}

/// Reads one response; says whether the connection goes on.
fn receive(
    load: &Load,
    connection: &mut Connection,
    request: &mut Prepared<'_>,
) -> Result<bool, String> {
    let outcome = &mut request.outcome;
    if let Some(stall) = request.stall.filter(|stall| stall.read_gap_ns > 0) {
        outcome.read_gap = Some(wait(stall.read_gap_ns));
    }
    if connection.wire.data().is_empty() {
        connection.fill()?;
    }
    outcome.first_byte = connection.last_read;
    let mut raw = Fnv::default();
    let response = loop {
        let (length, response) = receive_head(connection)?;
        raw.update(connection.wire.data().get(..length).unwrap_or_default());
        connection.wire.consume(length);
        if response.status >= 200 {
            break response;
        }
    };
    outcome.status = response.status;
    let framing = if request.target.method == "HEAD" { Framing::Empty } else { response.framing };
    let mut hash = Fnv::default();
    let mut chunks = Chunks::default();
    let mut left = match framing {
        Framing::Length(length) => length,
        _ => 0,
    };
    loop {
        let data = connection.wire.data();
        let arrived = connection.last_read;
        let (used, done) = match framing {
            Framing::Empty => (0, true),
            Framing::Length(_) | Framing::UntilClose => {
                let until_close = framing == Framing::UntilClose;
                let take = match until_close {
                    true => data.len(),
                    false => usize::try_from(left).unwrap_or(usize::MAX).min(data.len()),
                };
                hash.update(data.get(..take).unwrap_or_default());
                outcome.bytes_in += take as u64;
                left = left.saturating_sub(take as u64);
                (take, !until_close && left == 0)
            }
            Framing::Chunked => {
                let used = chunks.feed(data, |piece| match piece {
                    Piece::Data(data) => {
                        hash.update(data);
                        outcome.bytes_in += data.len() as u64;
                    }
                    Piece::ChunkEnd => {
                        outcome.chunk_count += 1;
                        if outcome.chunks.len() < load.chunk_cap {
                            outcome.chunks.push(arrived);
                        }
                    }
                });
                (used.map_err(|bad| bad.to_string())?, chunks.done())
            }
        };
        raw.update(connection.wire.data().get(..used).unwrap_or_default());
        connection.wire.consume(used);
        if done {
            break;
        }
        if framing == Framing::UntilClose {
            match connection.wire.fill() {
                Ok(call) if call.result > 0 => connection.last_read = call.after,
                Ok(_) => break,
                Err(error) => return Err(format!("receiving: {error}")),
            }
        } else {
            connection.fill()?;
        }
    }
    outcome.last_byte = connection.last_read;
    outcome.body_hash = hash.value();
    outcome.raw_hash = raw.value();
    let mut forgotten = Vec::new();
    connection.wire.take_reads(0, &mut forgotten);
    if response.status != 200 {
        outcome.error = Some(format!("status {}", response.status));
    } else if request.target.echoes_id && response.request_id.as_deref() != Some(&outcome.rid) {
        outcome.error = Some(format!("answer to {:?}", response.request_id));
    } else {
        let (bytes, hash) = (outcome.bytes_in, outcome.body_hash);
        outcome.error = request.target.refute(&outcome.rid, bytes, hash);
    }
    Ok(response.keep_alive)
}

/// Sends a batch and reads its answers; says whether the connection goes on.
fn exchange(load: &Load, connection: &mut Connection, batch: &mut [Prepared<'_>]) -> bool {
    for request in batch.iter_mut() {
        request.outcome.local_port = connection.local_port;
        request.outcome.seq = connection.seq;
        request.outcome.connect = connection.connect.take();
        connection.seq += 1;
    }
    let mut failure = None;
    if load.coalesce {
        let all: Vec<u8> = batch.iter().flat_map(|request| request.pieces.concat()).collect();
        let (mut calls, mut joined) = (Vec::with_capacity(8), Vec::new());
        let sent = connection.wire.send(&all, b"", &mut joined, &mut calls);
        for request in batch.iter_mut() {
            request.outcome.note_sends(&calls);
        }
        failure = sent.err().map(|error| format!("sending: {error}"));
    } else {
        for request in batch.iter_mut() {
            if let Err(error) = send(load, connection, request) {
                failure = Some(error);
                break;
            }
        }
    }
    let mut open = failure.is_none();
    for request in batch.iter_mut() {
        if failure.is_none() && !open {
            failure = Some("the server closed between pipelined requests".to_owned());
        }
        if let Some(error) = &failure {
            request.outcome.error = Some(error.clone());
            continue;
        }
        match receive(load, connection, request) {
            Ok(keep) => open = keep,
            Err(error) => {
                request.outcome.error = Some(error.clone());
                failure = Some(error);
            }
        }
    }
    open && failure.is_none()
}

/// One thread: the requests with the numbers `first`, `first` + connections, …
fn carry_out(
    load: &Load,
    first: u64,
    start: u64,
    mut connection: Option<Connection>,
) -> Result<Vec<Outcome>, String> {
    let tid = thread_id();
    let stop = load.duration.map(|duration| start.saturating_add(duration.as_nanos() as u64));
    let mine = load.requests.saturating_sub(first).div_ceil(load.connections);
    let mut outcomes = Vec::with_capacity(mine.min(1 << 14) as usize);
    let mut next = first;
    while next < load.requests {
        let due = load.rate.map(|rate| start.saturating_add((next as f64 / rate * 1e9) as u64));
        if stop.is_some_and(|stop| due.unwrap_or_else(now_ns) >= stop) {
            break;
        }
        let mut batch = Vec::new();
        while next < load.requests && (batch.len() as u64) < load.pipeline {
            let mut request = prepare(load, next)?;
            request.outcome.tid = tid;
            request.outcome.due = due;
            batch.push(request);
            next = next.saturating_add(load.connections);
        }
        if let Some(due) = due {
            sleep_until(due);
        }
        let opened = match connection.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(load),
        };
        match opened {
            Ok(mut opened) => {
                if exchange(load, &mut opened, &mut batch) && !load.new_connections {
                    connection = Some(opened);
                }
            }
            Err(error) => {
                for request in &mut batch {
                    request.outcome.error = Some(format!("connecting: {error}"));
                }
                // The server is gone: the rest stays unsent.
                next = load.requests;
            }
        }
        outcomes.extend(batch.into_iter().map(|request| request.outcome));
    }
    Ok(outcomes)
}

/// Runs the load and writes the oracle.
pub fn run(load: &Load) -> Result<Summary, String> {
    let mut open = Vec::new();
    if load.open_first {
        for _ in 0..load.connections {
            open.push(Connection::open(load).map_err(|error| format!("connecting: {error}"))?);
        }
        let mut out = io::stdout().lock();
        writeln!(out, "connected").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line).map_err(|error| error.to_string())?;
    }
    let mut open = open.into_iter();
    let start = now_ns();
    let outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.connections)
            .map(|first| {
                let connection = open.next();
                scope.spawn(move || carry_out(load, first, start, connection))
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            let part = thread.join().map_err(|_| "a client thread died".to_owned())??;
            all.extend(part);
        }
        Ok::<_, String>(all)
    })?;
    let seconds = (now_ns() - start) as f64 / 1e9;
    if let Some(path) = &load.oracle {
        let write = || -> io::Result<()> {
            let mut file = io::BufWriter::new(std::fs::File::create(path)?);
            let mut text = String::new();
            for outcome in &outcomes {
                line(outcome, &mut text);
                file.write_all(text.as_bytes())?;
            }
            file.flush()
        };
        write().map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(summarise(&outcomes, seconds))
}
