//! The server: a thread per connection, each with its own stream and buffers.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{now_ns, sleep, spin, thread_id};
use crate::gpu::{Gpu, Process};
use crate::hash::{Fnv, fill_pattern};
use crate::http::{Chunks, Framing, Piece, Request, head_length, parse_request, query_value};
use crate::oracle::{Kind, Oracle, Record, json_string};
use crate::plan::{Plan, Step};
use crate::wire::{Io, SocketCall, Wire};

/// How long requests in flight have to end after the signal.
const GRACE: Duration = Duration::from_secs(10);

/// What the command line says.
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Which calls carry the bytes.
    pub io: Io,
    /// The driver's library; `None` leaves every driver call out.
    pub driver: Option<String>,
    /// Load it with the first request that needs it.
    pub lazy_driver: bool,
    /// Calls of a run that keep their own stamps.
    pub run_cap: usize,
    /// A plan that each connection's thread carries out before its first request.
    pub warm: Plan,
    /// Where the oracle goes.
    pub oracle: Option<PathBuf>,
}

struct Server {
    config: Config,
    oracle: Oracle,
    process: OnceLock<Result<Arc<Process>, String>>,
    live: Mutex<HashMap<u64, RawFd>>,
    ended: Condvar,
    stopping: AtomicBool,
}

/// The signals that end the server; blocked, so that no call of any thread is interrupted.
fn ending_signals() -> libc::sigset_t {
    // SAFETY: a set of zeros is valid and is emptied before use; the pointers are to it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        set
    }
}

/// Blocks SIGTERM and SIGINT in this thread and those it starts, so that [`run`] can wait for them.
pub fn block_signals() {
    let set = ending_signals();
    // SAFETY: the set is valid; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

fn wait_for_signal() {
    let set = ending_signals();
    let mut signal = 0;
    // SAFETY: both pointers are valid for the call.
    unsafe { libc::sigwait(&set, &mut signal) };
}

/// Serves until SIGTERM or SIGINT, which [`block_signals`] must have blocked before any thread
/// was started. `bound` is told the port.
pub fn run(config: Config, bound: impl FnOnce(u16) -> io::Result<()>) -> io::Result<()> {
    let listener = TcpListener::bind(config.listen)?;
    let port = listener.local_addr()?.port();
    let first = format!(
        r#"{{"t":"meta","pid":{},"port":{port},"io":"{}","gpu":{},"clock":"CLOCK_MONOTONIC"}}"#,
        std::process::id(),
        config.io.name(),
        config.driver.is_some(),
    );
    let (oracle, writer) = Oracle::open(config.oracle.as_deref(), &first)?;
    let server = Arc::new(Server {
        config,
        oracle,
        process: OnceLock::new(),
        live: Mutex::default(),
        ended: Condvar::new(),
        stopping: AtomicBool::new(false),
    });
    if !server.config.lazy_driver
        && let Some(Err(why)) = server.process()
    {
        return Err(io::Error::other(why));
    }
    bound(port)?;
    let accepting = {
        let (server, fd) = (Arc::clone(&server), listener.as_raw_fd());
        std::thread::Builder::new()
            .name("accept".to_owned())
            .spawn(move || accept_all(&server, fd))?
    };
    wait_for_signal();
    server.stopping.store(true, Ordering::SeqCst);
    shut(listener.as_raw_fd(), libc::SHUT_RDWR);
    let accepted = accepting.join().map_err(|_| io::Error::other("the accepting thread died"))?;
    let left = server.wait_for_connections();
    server.oracle.end();
    writer.finish()?;
    accepted?;
    match left {
        0 => Ok(()),
        left => Err(io::Error::other(format!("{left} connections did not end; not in the oracle"))),
    }
}

fn shut(fd: RawFd, how: i32) {
    // SAFETY: shutdown takes no pointers; the caller holds the descriptor open.
    unsafe { libc::shutdown(fd, how) };
}

fn accept_all(server: &Arc<Server>, listener: RawFd) -> io::Result<()> {
    let accept_tid = thread_id();
    let mut conn = 0;
    loop {
        // SAFETY: an address of zeros is valid.
        let mut peer: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&peer) as libc::socklen_t;
        let before = now_ns();
        // SAFETY: the address and its length are valid for the call.
        let fd = unsafe {
            libc::accept4(listener, (&raw mut peer).cast(), &mut length, libc::SOCK_CLOEXEC)
        };
        let after = now_ns();
        if fd < 0 {
            let error = io::Error::last_os_error();
            if server.stopping.load(Ordering::SeqCst) {
                return Ok(());
            }
            match error.raw_os_error() {
                Some(libc::EINTR | libc::ECONNABORTED) => continue,
                _ => return Err(error),
            }
        }
        // SAFETY: accept4 returned this descriptor; nobody else has it.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        let accept = SocketCall { before, after, result: i64::from(accept_tid) };
        let peer_port = port_of(&peer);
        no_delay(fd);
        lock(&server.live).insert(conn, fd);
        let thread = {
            let server = Arc::clone(server);
            std::thread::Builder::new().name(format!("conn-{conn}")).spawn(move || {
                Connection::new(&server, owned, conn, peer_port, accept).serve();
                lock(&server.live).remove(&conn);
                server.ended.notify_all();
            })
        };
        if let Err(error) = thread {
            eprintln!("connection {conn}: no thread: {error}");
            lock(&server.live).remove(&conn);
        }
        conn += 1;
    }
}

fn port_of(address: &libc::sockaddr_storage) -> u16 {
    let address = (&raw const *address).cast::<libc::sockaddr_in>();
    // SAFETY: sockaddr_storage is large and aligned enough for sockaddr_in; the port has the same
    // place in sockaddr_in and sockaddr_in6.
    u16::from_be(unsafe { (*address).sin_port })
}

/// Sends small writes at once.
pub fn no_delay(fd: RawFd) {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int that lives as long as the call.
    unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// The driver, loaded on first use; `None` without a GPU.
    fn process(&self) -> Option<Result<Arc<Process>, String>> {
        let library = self.config.driver.as_deref()?;
        let process = self.process.get_or_init(|| {
            let mut record = self.oracle.record();
            record.kind = Kind::Init;
            record.tid = thread_id();
            let process = Process::start(library, &mut record.cuda);
            self.oracle.submit(record);
            process.map(Arc::new)
        });
        Some(process.clone())
    }

    /// Ends every connection once its request in flight is answered; returns how many did not end.
    fn wait_for_connections(&self) -> usize {
        let deadline = Instant::now() + GRACE;
        let mut live = lock(&self.live);
        for &fd in live.values() {
            shut(fd, libc::SHUT_RD);
        }
        while !live.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let (guard, _) =
                self.ended.wait_timeout(live, left).unwrap_or_else(PoisonError::into_inner);
            live = guard;
        }
        live.len()
    }
}

struct Connection<'a> {
    server: &'a Server,
    wire: Wire,
    conn: u64,
    peer_port: u16,
    tid: i32,
    accept: SocketCall,
    seq: u64,
    gpu: Option<Gpu>,
    head: String,
    body: Vec<u8>,
    joined: Vec<u8>,
}

/// What became of one request.
enum Next {
    /// The connection goes on.
    GoOn,
    /// It ends, for this reason.
    End(&'static str),
}

/// A body that was not received.
enum Cut {
    Io,
    Bad(&'static str),
}

impl<'a> Connection<'a> {
    fn new(
        server: &'a Server,
        fd: OwnedFd,
        conn: u64,
        peer_port: u16,
        accept: SocketCall,
    ) -> Connection<'a> {
        Connection {
            server,
            wire: Wire::new(fd, server.config.io),
            conn,
            peer_port,
            tid: thread_id(),
            accept,
            seq: 0,
            gpu: None,
            head: String::with_capacity(512),
            body: Vec::with_capacity(4096),
            joined: Vec::with_capacity(8192),
        }
    }

    fn record(&self, kind: Kind) -> Box<Record> {
        let mut record = self.server.oracle.record();
        record.kind = kind;
        record.conn = self.conn;
        record.peer_port = self.peer_port;
        record.fd = self.wire.raw_fd();
        record.seq = self.seq;
        record.tid = self.tid;
        record
    }

    fn serve(mut self) {
        if !self.server.config.warm.steps.is_empty() {
            let mut record = self.record(Kind::Warm);
            let warm = self.server.config.warm.clone();
            if let Err(why) = self.carry_out(&warm, &mut record) {
                eprintln!("connection {}: warm-up: {why}", self.conn);
            }
            self.server.oracle.submit(record);
        }
        let why = loop {
            if let Next::End(why) = self.request() {
                break why;
            }
            if self.server.stopping.load(Ordering::SeqCst) {
                break "stopping";
            }
        };
        self.end(why);
    }

    fn end(mut self, why: &'static str) {
        let mut record = self.record(Kind::Connection);
        record.why = why;
        record.accept.push(self.accept);
        if why == "refused" {
            self.drain();
        }
        self.wire.take_rest(&mut record.read);
        if let Some(gpu) = self.gpu.take() {
            gpu.close(&mut record.cuda);
        }
        // The map holds the descriptor's number: it must not outlive the descriptor.
        lock(&self.server.live).insert(self.conn, -1);
        let fd = self.wire.into_fd().into_raw_fd();
        let before = now_ns();
        // SAFETY: the descriptor was ours alone and is not used again.
        let result = unsafe { libc::close(fd) };
        let after = now_ns();
        record.close.push(SocketCall { before, after, result: i64::from(result) });
        self.server.oracle.submit(record);
    }

    /// After a refusal: lets the client read it before the close, which would reset a connection
    /// with unread bytes.
    fn drain(&mut self) {
        let fd = self.wire.raw_fd();
        shut(fd, libc::SHUT_WR);
        let limit = libc::timeval { tv_sec: 1, tv_usec: 0 };
        // SAFETY: the option's value is a timeval that lives as long as the call.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const limit).cast(),
                size_of_val(&limit) as libc::socklen_t,
            )
        };
        for _ in 0..64 {
            self.wire.consume(usize::MAX);
            match self.wire.fill() {
                Ok(call) if call.result > 0 => {}
                _ => break,
            }
        }
    }

    /// Waits for a whole head. `None`: the connection ended, for the reason given.
    fn receive_head(&mut self) -> Result<usize, &'static str> {
        loop {
            while self.wire.data().starts_with(b"\r\n") {
                self.wire.consume(2);
            }
            if let Some(length) = head_length(self.wire.data()) {
                return Ok(length);
            }
            if self.wire.full() {
                return Err("head too long");
            }
            match self.wire.fill() {
                Ok(call) if call.result > 0 => {}
                Ok(_) if self.wire.data().is_empty() => return Err("eof"),
                Ok(_) => return Err("eof in a head"),
                Err(_) => return Err("error"),
            }
        }
    }

    fn request(&mut self) -> Next {
        let length = match self.receive_head() {
            Ok(length) => length,
            Err("head too long") => {
                let mut record = self.record(Kind::Request);
                let from = self.wire.position();
                self.wire.consume(usize::MAX);
                self.wire.take_reads(from, &mut record.read);
                return self.refuse(431, "the head is too long", record);
            }
            Err(why) => return Next::End(why),
        };
        let from = self.wire.position();
        let parsed = parse_request(self.wire.data().get(..length).unwrap_or_default());
        self.wire.consume(length);
        let mut record = self.record(Kind::Request);
        let request = match parsed {
            Ok(request) => request,
            Err(bad) => {
                self.wire.take_reads(from, &mut record.read);
                return self.refuse(400, bad.0, record);
            }
        };
        record.method.push_str(&request.method);
        record.path.push_str(&request.path);
        if let Some(rid) = query_value(&request.query, "rid").or(request.request_id.clone()) {
            record.rid.push_str(&rid);
        }
        let body = self.receive_body(&request, &mut record);
        self.wire.take_reads(from, &mut record.read);
        let hash = match body {
            Ok(hash) => hash,
            Err(Cut::Io) => {
                self.seq += 1;
                self.server.oracle.submit(record);
                return Next::End("cut in a body");
            }
            Err(Cut::Bad(why)) => return self.refuse(400, why, record),
        };
        let sent = self.answer(&request, hash, &mut record);
        self.seq += 1;
        self.server.oracle.submit(record);
        match sent {
            Err(_) => Next::End("error"),
            Ok(false) => Next::End("close"),
            Ok(true) => Next::GoOn,
        }
    }

    fn refuse(&mut self, status: u16, why: &str, mut record: Box<Record>) -> Next {
        self.body.clear();
        self.body.extend_from_slice(format!("{{\"error\":{}}}\n", json_string(why)).as_bytes());
        // A client that is gone already is no matter here.
        let _ = self.reply(status, "application/json", false, false, &mut record);
        self.seq += 1;
        self.server.oracle.submit(record);
        Next::End("refused")
    }

    /// Receives the body and returns its hash.
    fn receive_body(&mut self, request: &Request, record: &mut Record) -> Result<Fnv, Cut> {
        if request.expect_continue && self.wire.data().is_empty() {
            self.wire
                .send(b"HTTP/1.1 100 Continue\r\n\r\n", b"", &mut self.joined, &mut record.interim)
                .map_err(|_| Cut::Io)?;
        }
        let mut hash = Fnv::default();
        let mut left = match request.framing {
            Framing::Length(length) => length,
            _ => 0,
        };
        let mut chunks = (request.framing == Framing::Chunked).then(Chunks::default);
        loop {
            let data = self.wire.data();
            let used = match &mut chunks {
                Some(chunks) => {
                    let bytes = &mut record.request_bytes;
                    let fed = chunks.feed(data, |piece| {
                        if let Piece::Data(data) = piece {
                            hash.update(data);
                            *bytes += data.len() as u64;
                        }
                    });
                    fed.map_err(|bad| Cut::Bad(bad.0))?
                }
                None => {
                    let take = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
                    hash.update(data.get(..take).unwrap_or_default());
                    left -= take as u64;
                    record.request_bytes += take as u64;
                    take
                }
            };
            self.wire.consume(used);
            if chunks.as_ref().map_or(left == 0, Chunks::done) {
                return Ok(hash);
            }
            match self.wire.fill() {
                Ok(call) if call.result > 0 => {}
                _ => return Err(Cut::Io),
            }
        }
    }

    /// Answers a request; says whether the connection goes on.
    fn answer(&mut self, request: &Request, hash: Fnv, record: &mut Record) -> io::Result<bool> {
        let stopping = self.server.stopping.load(Ordering::SeqCst);
        let keep = request.keep_alive && !stopping;
        let head_only = request.method == "HEAD";
        self.body.clear();
        let json = "application/json";
        let status = match (request.path.as_str(), request.method.as_str()) {
            ("/healthz", "GET" | "HEAD") => {
                self.body.extend_from_slice(b"{\"status\":\"ok\"}\n");
                200
            }
            ("/echo", "POST") => {
                let text = format!(
                    "{{\"bytes\":{},\"hash\":\"{:016x}\"}}\n",
                    record.request_bytes,
                    hash.value()
                );
                self.body.extend_from_slice(text.as_bytes());
                200
            }
            ("/infer", "POST" | "GET" | "HEAD") => return self.infer(request, keep, record),
            ("/healthz" | "/echo" | "/infer", _) => {
                self.body.extend_from_slice(b"{\"error\":\"method not allowed\"}\n");
                405
            }
            _ => {
                self.body.extend_from_slice(b"{\"error\":\"not found\"}\n");
                404
            }
        };
        self.reply(status, json, keep, head_only, record)?;
        Ok(keep)
    }

    fn infer(&mut self, request: &Request, keep: bool, record: &mut Record) -> io::Result<bool> {
        let text = query_value(&request.query, "plan").unwrap_or_default();
        record.plan.push_str(&text);
        let head_only = request.method == "HEAD";
        let plan = match text.parse::<Plan>() {
            Ok(plan) => plan,
            Err(bad) => {
                let text = format!("{{\"error\":{}}}\n", json_string(&bad.to_string()));
                self.body.extend_from_slice(text.as_bytes());
                self.reply(400, "application/json", keep, head_only, record)?;
                return Ok(keep);
            }
        };
        if plan.chunks().is_some() && !head_only {
            return self.stream(&plan, keep, record);
        }
        let done = self.carry_out(&plan, record);
        self.body.clear();
        let (status, kind) = match done {
            Ok(()) => match plan.response_bytes() {
                Some(bytes) => {
                    fill_pattern(&mut self.body, 0, bytes as usize);
                    (200, "application/octet-stream")
                }
                None => {
                    let text = format!("{{\"rid\":{},\"ok\":true}}\n", json_string(&record.rid));
                    self.body.extend_from_slice(text.as_bytes());
                    (200, "application/json")
                }
            },
            Err(why) => {
                let text = format!("{{\"error\":{}}}\n", json_string(&why));
                self.body.extend_from_slice(text.as_bytes());
                (500, "application/json")
            }
        };
        self.reply(status, kind, keep, head_only, record)?;
        Ok(keep)
    }

    /// The thread's GPU, ready for a plan; `None` when there is none or none is needed.
    fn gpu(&mut self, plan: &Plan, record: &mut Record) -> Result<Option<&mut Gpu>, String> {
        if !plan.needs_gpu() {
            return Ok(None);
        }
        let process = match self.server.process() {
            None => return Ok(None),
            Some(process) => process?,
        };
        let cap = self.server.config.run_cap;
        let gpu = self.gpu.get_or_insert_with(|| Gpu::new(process, cap));
        gpu.begin(plan, &mut record.cuda).map_err(|failure| failure.to_string())?;
        Ok(Some(gpu))
    }

    fn carry_out(&mut self, plan: &Plan, record: &mut Record) -> Result<(), String> {
        let mut gpu = self.gpu(plan, record)?;
        let mut done = Ok(());
        for &step in &plan.steps {
            if !host_step(step, record)
                && let Some(gpu) = &mut gpu
                && let Err(failure) = gpu.step(step, &mut record.cuda)
            {
                done = Err(failure.to_string());
                break;
            }
        }
        if let Some(gpu) = gpu {
            let ended = gpu.end(&mut record.cuda).map_err(|failure| failure.to_string());
            done = done.and(ended);
        }
        done
    }

    /// A plan with `chunks`: what comes before runs before the head is sent.
    fn stream(&mut self, plan: &Plan, keep: bool, record: &mut Record) -> io::Result<bool> {
        if let Err(why) = self.gpu(plan, record).map(|_| ()) {
            let text = format!("{{\"error\":{}}}\n", json_string(&why));
            self.body.extend_from_slice(text.as_bytes());
            self.reply(500, "application/json", keep, false, record)?;
            return Ok(keep);
        }
        let mut started = false;
        let mut index = 0;
        let mut failure = None;
        'plan: for &step in &plan.steps {
            let Step::Chunks { count, ns } = step else {
                if !host_step(step, record)
                    && let Some(gpu) = &mut self.gpu
                    && let Err(why) = gpu.step(step, &mut record.cuda)
                {
                    failure = Some(why);
                    break;
                }
                continue;
            };
            if !started {
                started = true;
                record.status = 200;
                self.start_head(200, "text/event-stream", keep, &record.rid);
                self.head.push_str("Cache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n");
                self.wire.send(self.head.as_bytes(), b"", &mut self.joined, &mut record.write)?;
            }
            for _ in 0..count {
                match &mut self.gpu {
                    Some(gpu) => {
                        if let Err(why) = gpu.chunk(ns, &mut record.cuda) {
                            failure = Some(why);
                            break 'plan;
                        }
                    }
                    None => timed("sleep", record, || sleep(ns)),
                }
                self.body.clear();
                self.body.extend_from_slice(event(index).as_bytes());
                record.response_bytes += self.body.len() as u64;
                self.head.clear();
                let _ = write!(self.head, "{:x}\r\n", self.body.len());
                self.body.extend_from_slice(b"\r\n");
                self.wire.send(
                    self.head.as_bytes(),
                    &self.body,
                    &mut self.joined,
                    &mut record.write,
                )?;
                index += 1;
            }
        }
        if let Some(gpu) = &mut self.gpu
            && let Err(why) = gpu.end(&mut record.cuda)
        {
            failure = failure.or(Some(why));
        }
        match failure {
            Some(why) if !started => {
                self.body.clear();
                let text = format!("{{\"error\":{}}}\n", json_string(&why.to_string()));
                self.body.extend_from_slice(text.as_bytes());
                self.reply(500, "application/json", keep, false, record)?;
                Ok(keep)
            }
            // The status is out already: an unfinished body is the only way to say it.
            Some(_) => Ok(false),
            None => {
                self.wire.send(b"0\r\n\r\n", b"", &mut self.joined, &mut record.write)?;
                Ok(keep)
            }
        }
    }

    fn start_head(&mut self, status: u16, kind: &str, keep: bool, rid: &str) {
        let reason = match status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            431 => "Request Header Fields Too Large",
            _ => "Internal Server Error",
        };
        self.head.clear();
        let _ = write!(
            self.head,
            "HTTP/1.1 {status} {reason}\r\nServer: fixture-threaded\r\nContent-Type: {kind}\r\n"
        );
        if !rid.is_empty() && rid.bytes().all(|b| b.is_ascii_graphic()) {
            let _ = write!(self.head, "X-Request-Id: {rid}\r\n");
        }
        if !keep {
            self.head.push_str("Connection: close\r\n");
        }
    }

    /// Sends the body that lies ready.
    fn reply(
        &mut self,
        status: u16,
        kind: &str,
        keep: bool,
        head_only: bool,
        record: &mut Record,
    ) -> io::Result<()> {
        record.status = status;
        self.start_head(status, kind, keep, &record.rid);
        let _ = write!(self.head, "Content-Length: {}\r\n\r\n", self.body.len());
        let body = if head_only { &[][..] } else { self.body.as_slice() };
        record.response_bytes = body.len() as u64;
        self.wire.send(self.head.as_bytes(), body, &mut self.joined, &mut record.write)
    }
}

/// The event that the server streams as number `index`.
pub fn event(index: u64) -> String {
    format!("data: {{\"chunk\":{index}}}\n\n")
}

/// Does `work` between two stamps.
fn timed(name: &'static str, record: &mut Record, work: impl FnOnce()) {
    let before = now_ns();
    work();
    let after = now_ns();
    record.host.push((name, before, after));
}

/// Carries out a step that needs no driver; says whether it was one.
fn host_step(step: Step, record: &mut Record) -> bool {
    match step {
        Step::Sleep { ns } => timed("sleep", record, || sleep(ns)),
        Step::Spin { ns } => timed("spin", record, || spin(ns)),
        Step::Response { .. } => {}
        _ => return false,
    }
    true
}
