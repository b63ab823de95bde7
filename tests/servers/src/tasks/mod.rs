//! A server of tasks on tokio's work-stealing threads: a connection is a task and moves between
//! them; plans are carried out on the runtime's blocking threads.
//!
//! This file starts and ends; `connection` is a connection's task, `blocking` what the blocking
//! threads have, `socket` the socket calls between two stamps.

mod blocking;
mod connection;
mod socket;

use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::unix::AsyncFd;

use crate::live::Live;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::signals;
use crate::socket::{accept, listen};
use crate::work::Shared;

use self::connection::Connection;

/// Blocking threads keep their streams and buffers: they end with the server.
const KEEP_BLOCKING: Duration = Duration::from_secs(24 * 60 * 60);

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Config {
    /// What every server has.
    pub options: Options,
    /// Threads that run tasks.
    pub workers: usize,
    /// Threads that carry plans out.
    pub blocking: usize,
}

struct Server {
    options: Options,
    shared: Arc<Shared>,
    live: Live,
    stopping: AtomicBool,
}

/// Serves until SIGTERM or SIGINT, which [`signals::block`] must have blocked before any thread was
/// started. `bound` is told the port once every blocking thread is warm.
pub fn run(config: Config, bound: impl FnOnce(u16) -> io::Result<()>) -> io::Result<()> {
    let Config { options, workers, blocking } = config;
    let listener = listen(options.listen(), options.send_buffer)?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let more = format!(r#","style":"tokio","workers":{workers},"blocking":{blocking}"#);
    let (oracle, writer) =
        Oracle::open(options.oracle.as_deref(), &options.first_line(port, &more))?;
    let shared = Arc::new(Shared::new(options.means(), oracle).map_err(io::Error::other)?);
    let runtime = {
        let shared = Arc::clone(&shared);
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .max_blocking_threads(blocking)
            .thread_keep_alive(KEEP_BLOCKING)
            .on_thread_stop(move || blocking::close(&shared))
            .enable_io()
            .build()?
    };
    let warm = options.warm.clone();
    let server = Arc::new(Server {
        options,
        shared: Arc::clone(&shared),
        live: Live::default(),
        stopping: AtomicBool::new(false),
    });
    if !warm.steps.is_empty() {
        runtime.block_on(blocking::warm(&shared, blocking, warm))?;
    }
    let accepting = runtime.spawn(accept_all(Arc::clone(&server), listener));
    bound(port)?;
    signals::wait();
    server.stopping.store(true, Ordering::SeqCst);
    accepting.abort();
    let accepted = match runtime.block_on(accepting) {
        Ok(accepted) => accepted,
        Err(ended) if ended.is_cancelled() => Ok(()),
        Err(died) => Err(io::Error::other(died)),
    };
    let left = server.live.drain();
    match left {
        // Waits for its threads, which give back what they have.
        0 => drop(runtime),
        _ => runtime.shutdown_background(),
    }
    shared.oracle.end();
    writer.finish()?;
    accepted?;
    match left {
        0 => Ok(()),
        left => Err(io::Error::other(format!("{left} connections did not end; not in the oracle"))),
    }
}

async fn accept_all(server: Arc<Server>, listener: TcpListener) -> io::Result<()> {
    // SAFETY: the listener is owned by what watches it and does not change its descriptor.
    let listener = unsafe { AsyncFd::register(listener)? };
    let mut conn = 0;
    loop {
        let mut ready = listener.readable().await?;
        let accepted = match ready.try_io(|fd| accept(fd.as_raw_fd(), libc::SOCK_NONBLOCK)) {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ECONNABORTED) => continue,
                _ => return Err(error),
            },
            Err(_nobody_there) => continue,
        };
        let fd = accepted.fd.as_raw_fd();
        server.live.begin(conn, fd);
        match Connection::new(Arc::clone(&server), accepted, conn) {
            Ok(connection) => drop(tokio::spawn(connection.serve())),
            Err(error) => {
                eprintln!("connection {conn}: {error}");
                server.live.end(conn);
            }
        }
        conn += 1;
    }
}
