//! A server with one thread that reads every connection and threads that work.
//!
//! This file starts and ends; `reader` is the thread that reads, `connection` what it knows of a
//! connection, `worker` a thread that works, `staged` threads that each do a part of the work.

mod connection;
mod reader;
mod staged;
mod worker;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use crate::job::Job;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::poll::{Bell, Poller};
use crate::queue::{Queue, Waking};
use crate::ring::Ring;
use crate::signals;
use crate::socket::listen;
use crate::work::Shared;

use self::connection::Slot;
use self::reader::Reader;

/// Requests that wait for a worker; more wait in their sockets.
const CAPACITY: usize = 1024;

/// Who writes the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Style {
    /// The worker that made it.
    Pool,
    /// The thread that reads: workers give answers back to it, a chunk at a time.
    Loop,
    /// The thread that reads, which has another process make the answer and polls until it is there.
    #[value(skip)]
    Spin,
    /// A thread of its own, the last of a line of three. A server of its own: see `staged`.
    #[value(skip)]
    Staged,
}

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Config {
    /// What every server has.
    pub options: Options,
    /// Who writes the answers.
    pub style: Style,
    /// How many threads work.
    pub workers: usize,
    /// How they are woken.
    pub waking: Waking,
    /// How long [`Style::Staged`] prepares a plan that does not say.
    pub prepare_ns: u64,
    /// Where [`Style::Spin`] has answers made.
    pub ring: Option<Ring>,
    /// The name in the header `Server`.
    pub name: &'static str,
}

/// A request and the connection that it came over.
struct Handed {
    slot: Arc<Slot>,
    job: Job,
}

/// Where the reader puts requests.
enum Entrance {
    /// Any worker takes them.
    Queue(Queue<Handed>),
    /// The first stage takes them; `None` ends it.
    Channel(mpsc::Sender<Option<Handed>>),
}

impl Entrance {
    /// Adds a request; it must not be closed.
    fn push(&self, handed: Handed) {
        match self {
            Entrance::Queue(queue) => drop(queue.push(handed)),
            Entrance::Channel(channel) => drop(channel.send(Some(handed))),
        }
    }

    fn pop(&self) -> Option<Handed> {
        match self {
            Entrance::Queue(queue) => queue.pop(),
            Entrance::Channel(_) => None,
        }
    }

    fn close(&self) {
        match self {
            Entrance::Queue(queue) => queue.close(),
            Entrance::Channel(channel) => drop(channel.send(None)),
        }
    }
}

/// What the reader and the workers share.
struct Common {
    config: Config,
    shared: Arc<Shared>,
    queue: Entrance,
    poller: Poller,
    bell: Bell,
    /// What workers are done with and the reader has to see to. At most one per connection.
    returned: Mutex<Vec<Returned>>,
    stopping: AtomicBool,
}

/// What a worker gives back to the reader.
enum Returned {
    /// An answer, or a chunk of one, to be written.
    Job(Handed),
    /// A connection whose request is answered and that does not just wait for bytes.
    Connection(Arc<Slot>),
}

/// Serves until SIGTERM or SIGINT, which [`signals::block`] must have blocked before any thread was
/// started. `bound` is told the port once every worker is ready.
pub fn run(config: Config, bound: impl FnOnce(u16) -> io::Result<()>) -> io::Result<()> {
    let listener = listen(config.options.listen(), config.options.send_buffer)?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let style = format!("{:?}", config.style).to_lowercase();
    let queue = format!("{:?}", config.waking).to_lowercase();
    let staged = config.style == Style::Staged;
    let spins = config.ring.is_some();
    let more = match staged || spins {
        true => format!(r#","style":"{style}","prepare_ns":{}"#, config.prepare_ns),
        false => format!(r#","style":"{style}","queue":"{queue}","workers":{}"#, config.workers),
    };
    let first = config.options.first_line(port, &more);
    let (oracle, writer) = Oracle::open(config.options.oracle.as_deref(), &first)?;
    let mut means = config.options.means();
    if spins {
        means.driver = None;
    }
    let shared = Arc::new(Shared::new(means, oracle).map_err(io::Error::other)?);
    let (entrance, requests) = mpsc::channel();
    let common = Arc::new(Common {
        queue: match staged {
            true => Entrance::Channel(entrance),
            false => Entrance::Queue(Queue::new(config.waking, CAPACITY)?),
        },
        shared,
        poller: Poller::new()?,
        bell: Bell::new()?,
        returned: Mutex::default(),
        stopping: AtomicBool::new(false),
        config,
    });
    common.poller.add(common.bell.as_raw_fd(), reader::BELL)?;
    common.poller.add(listener.as_raw_fd(), reader::LISTENER)?;
    let (ready, all_ready) = mpsc::sync_channel(0);
    let mut workers = Vec::with_capacity(common.config.workers);
    if staged {
        workers.extend(staged::start(&common, requests, ready.clone())?);
    }
    for index in 0..if staged || spins { 0 } else { common.config.workers } {
        let (common, ready) = (Arc::clone(&common), ready.clone());
        let thread = std::thread::Builder::new().name(format!("worker-{index}"));
        workers.push(thread.spawn(move || worker::run(&common, index as u64, ready))?);
    }
    drop(ready);
    // Ends when every worker has dropped its sender: when it is warm, or dead.
    let _ = all_ready.recv();
    let reading = {
        let common = Arc::clone(&common);
        std::thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || Reader::new(&common, listener).run())?
    };
    bound(port)?;
    signals::wait();
    common.stopping.store(true, Ordering::SeqCst);
    common.bell.ring();
    let left = reading.join().map_err(|_| io::Error::other("the reading thread died"))??;
    common.queue.close();
    if left == 0 {
        for worker in workers {
            worker.join().map_err(|_| io::Error::other("a worker died"))?;
        }
    }
    common.shared.oracle.end();
    writer.finish()?;
    match left {
        0 => Ok(()),
        left => Err(io::Error::other(format!("{left} connections did not end; not in the oracle"))),
    }
}
