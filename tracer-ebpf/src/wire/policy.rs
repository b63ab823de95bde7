//! Values of the maps through which user space steers the kernel half, and the kernel half's own
//! bookkeeping.

use crate::assert_size;

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Not looked up yet: traced until user space answers.
    Unknown = 0,
    /// An accepted TCP connection.
    TcpServer = 1,
    /// A TCP connection that the target opened.
    TcpClient = 2,
    /// A Unix socket.
    Unix = 3,
    /// A TCP connection whose direction is not known yet.
    Tcp = 4,
    /// One end of a pipe: told as a signal, without bytes. From here on nothing carries requests.
    Pipe = 5,
    /// An `eventfd`: told as a signal.
    EventFd = 6,
    /// One end of a `socketpair`: told as a signal.
    Pair = 7,
    /// An epoll instance: only its number matters.
    Epoll = 8,
    /// Anything of no interest: ignored. The highest of all.
    Other = 9,
}

/// A process that is traced. Key of the map: process id (tgid).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Target {
    /// Payload bytes taken per call, at most [`super::socket::MAX_CAPTURE`].
    pub capture_len: u32,
    /// `TARGET_*`.
    pub flags: u32,
}
assert_size!(Target, 8);

/// [`Target`]: the process uses the CUDA driver, so its threads hand their launches over before
/// they wait.
pub const TARGET_CUDA: u32 = 1;

/// A thread of a target. Key of the map: thread id. What user space says of one that was there
/// before; the kernel half keeps more behind it, zero at first: [`THREAD_BYTES`] in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadSeed {
    /// Its process.
    pub tgid: u32,
    /// Payload bytes taken per call, as [`Target`] has them.
    pub capture_len: u32,
    /// 1: it may be in a system call which it entered before tracing began.
    pub late: u32,
    /// Zero.
    pub pad: u32,
}
assert_size!(ThreadSeed, 16);

/// Bytes of a thread's entry.
pub const THREAD_BYTES: usize = 240;

/// Where user space finds in a thread's entry what the thread is in now, bytes from its begin.
pub mod thread_at {
    /// `u64`: entry of its system call, ns of `CLOCK_MONOTONIC`; 0 where that was before tracing.
    pub const ENTER_NS: usize = 16;
    /// `u8`: 0 where it is in no call whose exit matters.
    pub const OP: usize = 90;
    /// `u64`: object of `CALL`.
    pub const OBJECT: usize = 96;
    /// `u8`: one of [`crate::wire::sched::Call`], what it is in or was last.
    pub const CALL: usize = 104;
    /// `u8`, 1: it has left that call.
    pub const LEFT: usize = 105;
    /// `u16`: state bits of the last switch out.
    pub const STATE: usize = 108;
    /// `u64`: last switch out, ns; 0 while it runs and where that was not seen.
    pub const OUT_NS: usize = 112;
    /// `u64`: last wake, ns; 0 where there was none since.
    pub const WOKEN_NS: usize = 120;
}

/// Key of the descriptor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FdKey {
    /// Process.
    pub tgid: u32,
    /// Descriptor.
    pub fd: i32,
}
assert_size!(FdKey, 8);

/// What the kernel half knows about a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FdInfo {
    /// The open description that it names.
    pub conn_id: u64,
    /// When it was opened, or found open, ns of `CLOCK_MONOTONIC`.
    pub made_ns: u64,
    /// One of [`Class`].
    pub class: u32,
    /// Zero.
    pub pad: u32,
}
assert_size!(FdInfo, 24);

/// What user space decided about one connection. Key of the map: `conn_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ConnPolicy {
    /// Payload bytes taken per call; 0 takes sizes and times only.
    pub capture_len: u32,
    /// 1: trace nothing of it.
    pub ignore: u32,
}
assert_size!(ConnPolicy, 8);

/// Bit of a `conn_id` that user space made up for a descriptor found in `/proc`.
pub const CONN_ID_FROM_USER: u64 = 1 << 63;

/// A switch: index into the settings, 0 off and 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Setting {
    /// Executable mappings of every process are reported, not only the targets'.
    AllMaps = 0,
    /// New programs of every process are reported, not only the targets'.
    AllExecs = 1,
    /// The scheduler's tracepoints are attached: a thread is forgotten when it is switched out for
    /// the last time, not already when it ends.
    Sched = 2,
    /// Payload bytes taken per call at most, whatever the targets say; 0: as they say.
    CaptureCap = 3,
}

/// Number of settings.
pub const SETTING_COUNT: u32 = 4;
