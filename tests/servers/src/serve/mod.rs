//! The server: a thread per connection, each with its own stream and buffers.
//!
//! This file starts, accepts and ends; `connection` is a connection's life, `request` how a
//! request is received, `infer` how its plan is carried out, `response` how it is answered.

mod connection;
mod infer;
mod request;
mod response;

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{now_ns, thread_id};
use crate::gpu::Process;
use crate::oracle::{Kind, Oracle};
use crate::plan::Plan;
use crate::wire::{Io, SocketCall};

use self::connection::Connection;
pub use self::infer::event;

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
