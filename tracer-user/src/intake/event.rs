//! What the agent knows to have happened: the typed form of everything that enters it.

use std::net::SocketAddr;

use bytes::Bytes;
pub use tracer_ebpf::wire::cuda_api::Api;
pub use tracer_ebpf::wire::socket::IoCall;

/// One fact with its place in time. Events reach the later rooms in the order of `time_ns`.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Position in time, ns of `CLOCK_MONOTONIC`: a call's exit, a run of launches' first entry, a
    /// close's entry, a segment's arrival.
    pub time_ns: u64,
    /// Process, 0 where none is meant.
    pub pid: u32,
    /// Thread, 0 where none is meant.
    pub tid: u32,
    /// The fact.
    pub what: What,
}

/// The families of facts.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A socket system call.
    Socket(Socket),
    /// The TCP stack's own word.
    Tcp(Tcp),
    /// A call of the CUDA driver.
    Cuda(Cuda),
    /// Birth and death.
    Process(Process),
    /// The scheduler's word, and calls in which threads wait.
    Sched(Sched),
    /// An answer that `/proc` gave.
    Proc(ProcFact),
    /// Events were lost since the last such fact.
    Loss(Losses),
}

/// Which way bytes went, seen from the traced process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Read by the process.
    In,
    /// Written by the process.
    Out,
}

/// Socket system calls. `conn` names an open description, unique since boot.
#[derive(Clone, Debug, PartialEq)]
pub enum Socket {
    /// Bytes moved, an end of file, or an error.
    Io(Io),
    /// A connection was accepted.
    Accept {
        /// The new connection.
        conn: u64,
        /// Its descriptor.
        fd: i32,
        /// The listener's descriptor.
        listen_fd: i32,
        /// Peer, where the server asked for it.
        peer: Option<SocketAddr>,
        /// Entry of the call, ns; 0 where that was before tracing began.
        enter_ns: u64,
    },
    /// A connection was opened, or its opening begun.
    Connect {
        /// The connection.
        conn: u64,
        /// Its descriptor.
        fd: i32,
        /// Peer, where it is an Internet address.
        peer: Option<SocketAddr>,
        /// 0 or a negative errno (`-EINPROGRESS` where it goes on).
        ret: i32,
        /// Entry of the call, ns; 0 where that was before tracing began.
        enter_ns: u64,
    },
    /// A descriptor of the connection was closed.
    Close {
        /// The connection.
        conn: u64,
        /// Descriptor.
        fd: i32,
    },
    /// A second descriptor for the connection.
    Dup {
        /// The connection.
        conn: u64,
        /// Old descriptor.
        old_fd: i32,
        /// New descriptor.
        new_fd: i32,
    },
    /// All descriptors of the range were closed.
    CloseRange {
        /// First.
        first: u32,
        /// Last, inclusive.
        last: u32,
    },
    /// One or both directions were shut.
    Shutdown {
        /// The connection.
        conn: u64,
        /// `SHUT_RD` 0, `SHUT_WR` 1, `SHUT_RDWR` 2.
        how: u32,
    },
    /// The process asked for the address of one of a connection's ends.
    Named {
        /// The connection.
        conn: u64,
        /// The peer's address, where it asked for that.
        peer: Option<SocketAddr>,
        /// This end's, where it asked for that.
        local: Option<SocketAddr>,
    },
    /// A socket began to listen.
    Listen {
        /// Descriptor.
        fd: i32,
    },
}

/// Bytes moved by one system call.
#[derive(Clone, Debug, PartialEq)]
pub struct Io {
    /// The connection.
    pub conn: u64,
    /// Descriptor.
    pub fd: i32,
    /// System call.
    pub call: IoCall,
    /// Direction.
    pub direction: Direction,
    /// Entry, ns of `CLOCK_MONOTONIC`; 0 where that was before tracing began. The event's time is
    /// the exit.
    pub enter_ns: u64,
    /// Bytes moved, 0 for end of file, or a negative errno.
    pub ret: i64,
    /// Bytes that the caller had room for or offered; 0 where unknown.
    pub requested: u64,
    /// The bytes stay in the socket (`MSG_PEEK`).
    pub peek: bool,
    /// The first `data.len()` of the bytes moved; the rest was not captured.
    pub data: Bytes,
}

impl Io {
    /// Bytes moved but not captured.
    pub fn missing(&self) -> u64 {
        u64::try_from(self.ret).unwrap_or(0).saturating_sub(self.data.len() as u64)
    }
}

/// The TCP stack's tracepoints.
#[derive(Clone, Debug, PartialEq)]
pub enum Tcp {
    /// A segment with data reached the socket.
    Arrival {
        /// This end.
        local: SocketAddr,
        /// The other end.
        peer: SocketAddr,
        /// Payload bytes.
        bytes: u32,
        /// Smoothed round-trip time, µs.
        srtt_us: u32,
    },
    /// The handshake ended: the connection waits to be accepted.
    Established {
        /// This end.
        local: SocketAddr,
        /// The other end.
        peer: SocketAddr,
    },
    /// The socket is closed on both sides.
    Closed {
        /// This end.
        local: SocketAddr,
        /// The other end.
        peer: SocketAddr,
    },
    /// A segment was sent again.
    Retransmit {
        /// This end.
        local: SocketAddr,
        /// The other end.
        peer: SocketAddr,
    },
}

/// Calls of the CUDA driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Cuda {
    /// A run of launches on one stream by one thread. The same `run` may come again with a higher
    /// count; it then replaces the earlier word.
    Launches(Launches),
    /// A call with entry and return.
    Call(Call),
}

/// A run of launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launches {
    /// Identity of the run (per process and thread).
    pub run: u64,
    /// Entry of the first launch, ns.
    pub first_ns: u64,
    /// Entry of the last launch, ns.
    pub last_ns: u64,
    /// Launches so far.
    pub count: u32,
    /// `CUstream` as passed; `None` where it could not be read.
    pub stream: Option<u64>,
    /// The symbol was a per-thread-default-stream variant.
    pub per_thread: bool,
    /// Function handle of the first launch.
    pub function: u64,
    /// More than one function was launched.
    pub mixed: bool,
    /// Grid of the first launch, blocks.
    pub grid: [u32; 3],
}

/// One call of the driver. The event's time is the return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Function.
    pub api: Api,
    /// The symbol was a per-thread-default-stream variant.
    pub per_thread: bool,
    /// Entry, ns.
    pub enter_ns: u64,
    /// The first six integer arguments as passed.
    pub args: [u64; 6],
    /// What it wrote through its first argument, where that is taken.
    pub out: Option<u64>,
    /// `CUresult`; 0 is success, 600 `CUDA_ERROR_NOT_READY`.
    pub ret: i32,
    /// Name, structure or stack words, by the function's `Take`.
    pub payload: Bytes,
}

pub use tracer_ebpf::wire::sched::Call as SchedCall;

/// The scheduler's word on one thread, and the calls in which it waits. Objects are futex addresses
/// or open descriptions, by the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sched {
    /// The thread is back on a processor. The event's time is the switch in.
    OffCpu(Sleep),
    /// A call that can wait has returned. The event's time is the exit.
    Wait(WaitCall),
    /// The thread yielded again and again.
    Yields {
        /// Entry of the first yield, ns.
        first_ns: u64,
        /// Entry of the last, ns.
        last_ns: u64,
        /// How many.
        count: u64,
        /// It goes on: this is told once of one that lasts, before its end.
        goes_on: bool,
    },
    /// Bytes went through a pipe, an `eventfd` or a `socketpair`. The event's time is the exit.
    Signal {
        /// The open description acted on.
        object: u64,
        /// Entry, ns; 0 where that was before tracing began.
        enter_ns: u64,
        /// Bytes, 0 for end of file, or a negative errno.
        ret: i64,
        /// Which way.
        direction: Direction,
    },
    /// What an epoll instance watches has changed.
    EpollCtl {
        /// The epoll instance.
        epoll: u64,
        /// The open description, 0 where it is not followed.
        object: u64,
        /// Descriptor watched.
        fd: i32,
        /// It is watched from now on (`ADD`, `MOD`), or no longer (`DEL`).
        watched: bool,
    },
}

/// Time off the processor, ns of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// Switched out.
    pub out_ns: u64,
    /// Woken; `None` where it was preempted, or the wake was not seen.
    pub woken_ns: Option<u64>,
    /// Switched in.
    pub in_ns: u64,
    /// How it left.
    pub state: SleepState,
    /// Who was current when it was woken. An interrupt runs on top of whoever that is.
    pub waker: Option<Waker>,
}

/// How a thread left the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepState {
    /// It could have gone on.
    Preempted,
    /// It waits.
    Interruptible,
    /// It waits and cannot be interrupted: mostly for a disk.
    Uninterruptible,
    /// Stopped, traced, or being parked.
    Other,
}

/// Who was current when a thread was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waker {
    /// Process.
    pub pid: u32,
    /// Thread, 0 for the idle task.
    pub tid: u32,
    /// The call that it was in, or had left last.
    pub call: SchedCall,
    /// It had left it.
    pub left: bool,
    /// The call's object.
    pub object: u64,
}

/// A call that can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitCall {
    /// Which.
    pub call: SchedCall,
    /// Entry, ns; 0 where that was before tracing began.
    pub enter_ns: u64,
    /// What it waited for.
    pub object: u64,
    /// Longest wait that the caller allows.
    pub timeout: Timeout,
    /// What it returned.
    pub ret: i64,
    /// Futex: the operation word.
    pub futex_op: u32,
    /// The first time off the processor within it.
    pub sleep: Option<Sleep>,
}

/// Longest wait that a caller allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// None: for ever.
    Never,
    /// So many ns.
    After(u64),
    /// One that is a point in time, or could not be read.
    Some,
}

/// Birth and death of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// A thread of the process was created.
    NewThread {
        /// Its id.
        tid: u32,
    },
    /// The process forked.
    Fork {
        /// The child's process id.
        child: u32,
    },
    /// The process began a new program.
    Exec,
    /// The thread ended; `last` where the process ended with it.
    Exit {
        /// No other thread is left.
        last: bool,
    },
    /// The process mapped code.
    MapExec,
}

/// What `/proc` said, as an event with the time of the asking.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ProcFact {
    /// A process is traced from now on.
    Target {
        /// Process id.
        pid: u32,
        /// Path of its executable as it is named in its own mount namespace.
        exe: String,
        /// Short name (`comm`).
        comm: String,
        /// It maps the CUDA driver.
        cuda: bool,
    },
    /// A descriptor was looked up.
    Descriptor {
        /// Process id.
        pid: u32,
        /// Descriptor.
        fd: i32,
        /// The identity under which its events come.
        conn: u64,
        /// What it is.
        kind: Descriptor,
    },
    /// An epoll instance that was made before tracing began watches a descriptor.
    Watched {
        /// Process.
        pid: u32,
        /// The epoll instance.
        epoll: u64,
        /// The open description watched.
        object: u64,
        /// Its descriptor.
        fd: i32,
    },
    /// A stretch of memory that processes share: futexes in it are the same for all.
    Shared {
        /// Process.
        pid: u32,
        /// First address.
        from: u64,
        /// First address behind.
        to: u64,
        /// Device of the file behind it.
        device: u64,
        /// Its inode.
        inode: u64,
        /// Offset in the file of `from`, bytes.
        offset: u64,
    },
    /// A process is in a container, as its control groups tell.
    Container {
        /// Process id.
        pid: u32,
        /// Id of the container, or its name.
        container: Option<String>,
        /// Uid of its pod.
        pod: Option<String>,
    },
    /// Sites of a library were hooked.
    Coverage {
        /// Process in which the library was found.
        pid: u32,
        /// Path of the library.
        library: String,
        /// Sites hooked.
        hooked: u32,
        /// Sites that exist.
        exist: u32,
    },
    /// The process was started with these GPUs visible.
    Visible {
        /// Process id.
        pid: u32,
        /// Its `CUDA_VISIBLE_DEVICES`.
        devices: String,
    },
    /// The process is gone.
    Gone {
        /// Process id.
        pid: u32,
    },
    /// A descriptor was looked at because its close may have been lost, and does not name the
    /// connection any more.
    Closed(Naming),
    /// What a thread that carries an open request was in when it was looked at.
    Doing(Doing),
    /// The process is not traced from now on, until it is said to be a target again.
    Paused {
        /// Process id.
        pid: u32,
    },
    /// So much is left out from now on, to keep to the cost budget: see [`crate::cost::Level`].
    Shed {
        /// The level's number; 0: nothing is left out.
        level: u8,
    },
}

/// A descriptor, and the connection that it names or named.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Naming {
    /// The identity under which the connection's events come. No other connection ever has it: a
    /// descriptor that is used again names another.
    pub conn: u64,
    /// Process.
    pub pid: u32,
    /// Descriptor.
    pub fd: i32,
}

/// What a thread was in when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Doing {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Whether it ran.
    pub state: Activity,
    /// The system call that it was in: its number.
    pub syscall: Option<u32>,
    /// Since when it was in that call, or off the processor where the entry was not seen, ns; 0
    /// where neither is known.
    pub since_ns: u64,
    /// What the call is about: a futex's address, or an open description; 0 where unknown.
    pub object: u64,
    /// The function of the CUDA driver that it was in ([`Api`] as a number), and since when, ns.
    pub driver: Option<(u16, u64)>,
    /// Thread that the mutex at the futex's address names as its owner.
    pub owner: Option<u32>,
}

/// What a thread does, as the kernel says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Activity {
    /// It is on a processor.
    Running,
    /// It could run and has no core.
    Runnable,
    /// It waits.
    Blocked,
    /// It waits and cannot be interrupted: for a disk, a page, a driver.
    Disk,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It has ended.
    Ended,
}

impl Activity {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Runnable => "runnable",
            Self::Blocked => "blocked",
            Self::Disk => "disk",
            Self::Stopped => "stopped",
            Self::Ended => "ended",
        }
    }
}

/// What a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Descriptor {
    /// A TCP connection.
    Tcp {
        /// This end.
        local: SocketAddr,
        /// The other end.
        peer: SocketAddr,
        /// Whether this end's port is one the process (or a parent) listens on.
        server: bool,
    },
    /// A listening TCP socket.
    Listener {
        /// Address listened on.
        local: SocketAddr,
    },
    /// A Unix socket. Its own inode and its peer's, 0 where unknown.
    Unix {
        /// Inode.
        inode: u64,
        /// Inode of the other end.
        peer: u64,
    },
    /// One end of a pipe.
    Pipe {
        /// Inode, the same for both ends.
        inode: u64,
        /// It is the end that is written.
        write_end: bool,
    },
    /// An `eventfd`.
    EventFd {
        /// The kernel's number for it (`eventfd-id` in `fdinfo`), 0 where unknown.
        id: u64,
    },
    /// An epoll instance.
    Epoll,
    /// Nothing that carries requests or signals.
    Other,
}

/// Events lost since the last such report, by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Losses {
    /// Socket records that found the ring full, and calls of threads that could not be remembered.
    pub socket: u64,
    /// TCP records.
    pub tcp: u64,
    /// CUDA records.
    pub cuda: u64,
    /// Process records.
    pub process: u64,
    /// Records of the scheduler, of waits and of signals.
    #[serde(default)]
    pub sched: u64,
    /// Runs of kernel programs that the kernel skipped because they were nested.
    pub recursion: u64,
}

impl Losses {
    /// Everything that was lost, whatever it was.
    pub fn total(&self) -> u64 {
        let Self { socket, tcp, cuda, process, sched, recursion } = *self;
        [socket, tcp, cuda, process, sched, recursion].into_iter().fold(0, u64::saturating_add)
    }

    /// Adds what another report says.
    pub fn add(&mut self, other: &Self) {
        self.socket += other.socket;
        self.tcp += other.tcp;
        self.cuda += other.cuda;
        self.process += other.process;
        self.sched += other.sched;
        self.recursion += other.recursion;
    }

    /// Whether nothing was lost.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
