//! Which system calls are looked at, and how their arguments are found (x86-64).
//!
//! Two raw tracepoints see every system call; a table of one byte per number decides in a few
//! nanoseconds whether to go on. That is cheaper than a tracepoint per call, and two programs let
//! go at once where dozens of perf events take seconds.

/// What a system call is to us. The numbers are those of `asm/unistd_64.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    Ignored = 0,
    Read = 1,
    Write = 2,
    Readv = 3,
    Writev = 4,
    Recvfrom = 5,
    Sendto = 6,
    Recvmsg = 7,
    Sendmsg = 8,
    Recvmmsg = 9,
    Sendmmsg = 10,
    Sendfile = 11,
    Splice = 12,
    Accept = 16,
    Connect = 17,
    Close = 18,
    Dup = 19,
    Dup2 = 20,
    Fcntl = 21,
    CloseRange = 22,
    Shutdown = 23,
    Listen = 24,
    Socket = 25,
    /// Returns a descriptor that carries no requests.
    Opens = 26,
    /// Writes two such descriptors to memory (first argument).
    OpensPair = 27,
    /// The same, fourth argument.
    OpensSocketPair = 28,
    Mmap = 29,
    /// The thread may sleep: gathered launches are sent before.
    Waits = 30,
}

const SIZE: usize = 512;

const fn table() -> [u8; SIZE] {
    let mut t = [0u8; SIZE];
    t[0] = Op::Read as u8;
    t[1] = Op::Write as u8;
    t[3] = Op::Close as u8;
    t[9] = Op::Mmap as u8;
    t[19] = Op::Readv as u8;
    t[20] = Op::Writev as u8;
    t[32] = Op::Dup as u8;
    t[33] = Op::Dup2 as u8;
    t[40] = Op::Sendfile as u8;
    t[41] = Op::Socket as u8;
    t[42] = Op::Connect as u8;
    t[43] = Op::Accept as u8;
    t[44] = Op::Sendto as u8;
    t[45] = Op::Recvfrom as u8;
    t[46] = Op::Sendmsg as u8;
    t[47] = Op::Recvmsg as u8;
    t[48] = Op::Shutdown as u8;
    t[50] = Op::Listen as u8;
    t[53] = Op::OpensSocketPair as u8;
    t[72] = Op::Fcntl as u8;
    t[275] = Op::Splice as u8;
    t[288] = Op::Accept as u8; // accept4
    t[292] = Op::Dup2 as u8; // dup3
    t[299] = Op::Recvmmsg as u8;
    t[307] = Op::Sendmmsg as u8;
    t[436] = Op::CloseRange as u8;
    // open, creat, openat, openat2, epoll_create, epoll_create1, eventfd, eventfd2, signalfd,
    // signalfd4, timerfd_create, inotify_init, inotify_init1, memfd_create, pidfd_open
    let opens = [2, 85, 257, 437, 213, 291, 284, 290, 282, 289, 283, 253, 294, 319, 434];
    let mut i = 0;
    while i < opens.len() {
        t[opens[i]] = Op::Opens as u8;
        i += 1;
    }
    t[22] = Op::OpensPair as u8; // pipe
    t[293] = Op::OpensPair as u8; // pipe2
    // poll, select, sched_yield, nanosleep, futex, clock_nanosleep, epoll_wait, pselect6, ppoll,
    // epoll_pwait, epoll_pwait2, futex_waitv
    let waits = [7, 23, 24, 35, 202, 230, 232, 270, 271, 281, 441, 449];
    let mut i = 0;
    while i < waits.len() {
        t[waits[i]] = Op::Waits as u8;
        i += 1;
    }
    t
}

static OPS: [u8; SIZE] = table();

/// What the system call with this number is to us.
#[inline(always)]
pub fn op(nr: u64) -> u8 {
    if nr >= SIZE as u64 {
        return Op::Ignored as u8;
    }
    // SAFETY: the index was checked; volatile keeps the check in front of the load.
    unsafe { core::ptr::read_volatile((&raw const OPS).cast::<u8>().add(nr as usize)) }
}

/// The registers of `struct pt_regs` (x86-64, `asm/ptrace.h`) from `r10` to `orig_ax`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Regs {
    r10: u64,
    r9: u64,
    r8: u64,
    ax: u64,
    cx: u64,
    dx: u64,
    si: u64,
    di: u64,
    orig_ax: u64,
}

/// Offset of `r10` in `struct pt_regs`.
pub const REGS_AT: usize = 56;
/// Offset of `orig_ax`, the system call's number.
pub const NR_AT: usize = 120;

impl Regs {
    /// The first five arguments.
    #[inline(always)]
    pub fn args(&self) -> [u64; 5] {
        [self.di, self.si, self.dx, self.r10, self.r8]
    }
}
