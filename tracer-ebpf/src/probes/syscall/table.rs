//! Which system calls are looked at, and how their arguments are found (x86-64).

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
    /// Returns a descriptor that is of no interest.
    Opens = 26,
    OpensEventFd = 27,
    OpensEpoll = 28,
    OpensPipe = 29,
    OpensSocketPair = 30,
    Mmap = 31,
    // Calls that can wait, from `Futex` to `IoUring`.
    /// Some of its operations wait.
    Futex = 32,
    FutexWait = 33,
    FutexWaitv = 34,
    EpollWait = 35,
    EpollPwait2 = 36,
    Poll = 37,
    Ppoll = 38,
    Select = 39,
    Pselect = 40,
    Nanosleep = 41,
    ClockNanosleep = 42,
    IoUring = 43,
    FutexWake = 44,
    FutexRequeue = 45,
    EpollCtl = 46,
    Yield = 47,
    Clone = 48,
    Exit = 49,
    SockName = 50,
    PeerName = 51,
}

/// Whether it is a call that can wait.
#[inline(always)]
pub fn waits(op: u8) -> bool {
    op >= Op::Futex as u8 && op <= Op::IoUring as u8
}

const SIZE: usize = 512;

const fn table() -> [u8; SIZE] {
    let mut t = [0u8; SIZE];
    t[0] = Op::Read as u8;
    t[1] = Op::Write as u8;
    t[3] = Op::Close as u8;
    t[7] = Op::Poll as u8;
    t[9] = Op::Mmap as u8;
    t[19] = Op::Readv as u8;
    t[20] = Op::Writev as u8;
    t[22] = Op::OpensPipe as u8;
    t[23] = Op::Select as u8;
    t[24] = Op::Yield as u8;
    t[32] = Op::Dup as u8;
    t[33] = Op::Dup2 as u8;
    t[35] = Op::Nanosleep as u8;
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
    t[51] = Op::SockName as u8;
    t[52] = Op::PeerName as u8;
    t[53] = Op::OpensSocketPair as u8;
    t[56] = Op::Clone as u8;
    t[57] = Op::Clone as u8; // fork
    t[58] = Op::Clone as u8; // vfork
    t[60] = Op::Exit as u8;
    t[72] = Op::Fcntl as u8;
    t[202] = Op::Futex as u8;
    t[213] = Op::OpensEpoll as u8; // epoll_create
    t[230] = Op::ClockNanosleep as u8;
    t[231] = Op::Exit as u8; // exit_group
    t[232] = Op::EpollWait as u8;
    t[233] = Op::EpollCtl as u8;
    t[270] = Op::Pselect as u8;
    t[271] = Op::Ppoll as u8;
    t[275] = Op::Splice as u8;
    t[281] = Op::EpollWait as u8; // epoll_pwait
    t[284] = Op::OpensEventFd as u8;
    t[288] = Op::Accept as u8; // accept4
    t[290] = Op::OpensEventFd as u8; // eventfd2
    t[291] = Op::OpensEpoll as u8; // epoll_create1
    t[292] = Op::Dup2 as u8; // dup3
    t[293] = Op::OpensPipe as u8; // pipe2
    t[299] = Op::Recvmmsg as u8;
    t[307] = Op::Sendmmsg as u8;
    t[426] = Op::IoUring as u8;
    t[435] = Op::Clone as u8; // clone3
    t[436] = Op::CloseRange as u8;
    t[441] = Op::EpollPwait2 as u8;
    t[449] = Op::FutexWaitv as u8;
    t[454] = Op::FutexWake as u8;
    t[455] = Op::FutexWait as u8;
    t[456] = Op::FutexRequeue as u8;
    // open, creat, openat, openat2, signalfd, signalfd4, timerfd_create, inotify_init,
    // inotify_init1, memfd_create, pidfd_open
    let opens = [2, 85, 257, 437, 282, 289, 283, 253, 294, 319, 434];
    let mut i = 0;
    while i < opens.len() {
        t[opens[i]] = Op::Opens as u8;
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
    /// The arguments.
    #[inline(always)]
    pub fn args(&self) -> [u64; 6] {
        [self.di, self.si, self.dx, self.r10, self.r8, self.r9]
    }
}
