//! The server: a thread per connection, each with its own stream and buffers.
//!
//! This file starts, accepts and ends; `connection` is a connection's life, `request` how a
//! request is received, `response` how it is answered.

mod connection;
mod request;
mod response;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::live::Live;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::signals;
use crate::socket::{accept, listen, shut};
use crate::work::Shared;

use self::connection::Connection;

/// The name in the header `Server`.
const NAME: &str = "fixture-threaded";

struct Server {
    options: Options,
    shared: Arc<Shared>,
    live: Live,
    stopping: AtomicBool,
}

/// Serves until SIGTERM or SIGINT, which [`signals::block`] must have blocked before any thread
/// was started. `bound` is told the port.
pub fn run(options: Options, bound: impl FnOnce(u16) -> io::Result<()>) -> io::Result<()> {
    let listener = listen(options.listen(), options.send_buffer)?;
    let port = listener.local_addr()?.port();
    let first = options.first_line(port, "");
    let (oracle, writer) = Oracle::open(options.oracle.as_deref(), &first)?;
    let shared = Shared::new(options.means(), oracle).map_err(io::Error::other)?;
    let server = Arc::new(Server {
        options,
        shared: Arc::new(shared),
        live: Live::default(),
        stopping: AtomicBool::new(false),
    });
    bound(port)?;
    let accepting = {
        let (server, fd) = (Arc::clone(&server), listener.as_raw_fd());
        std::thread::Builder::new()
            .name("accept".to_owned())
            .spawn(move || accept_all(&server, fd))?
    };
    signals::wait();
    server.stopping.store(true, Ordering::SeqCst);
    shut(listener.as_raw_fd(), libc::SHUT_RDWR);
    let accepted = accepting.join().map_err(|_| io::Error::other("the accepting thread died"))?;
    let left = server.live.drain();
    server.shared.oracle.end();
    writer.finish()?;
    accepted?;
    match left {
        0 => Ok(()),
        left => Err(io::Error::other(format!("{left} connections did not end; not in the oracle"))),
    }
}

fn accept_all(server: &Arc<Server>, listener: RawFd) -> io::Result<()> {
    let mut conn = 0;
    loop {
        let accepted = match accept(listener, 0) {
            Ok(accepted) => accepted,
            Err(_) if server.stopping.load(Ordering::SeqCst) => return Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ECONNABORTED) => continue,
                _ => return Err(error),
            },
        };
        server.live.begin(conn, accepted.fd.as_raw_fd());
        let thread = {
            let server = Arc::clone(server);
            std::thread::Builder::new().name(format!("conn-{conn}")).spawn(move || {
                Connection::new(&server, accepted, conn).serve();
                server.live.end(conn);
            })
        };
        if let Err(error) = thread {
            eprintln!("connection {conn}: no thread: {error}");
            server.live.end(conn);
        }
        conn += 1;
    }
}
