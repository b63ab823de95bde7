//! What every record begins with.

use crate::assert_size;

/// The first bytes of every record in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// When the record was made, ns of `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`).
    pub time_ns: u64,
    /// Process (thread group) that was current, 0 where the current task means nothing.
    pub tgid: u32,
    /// Thread that was current, 0 where the current task means nothing.
    pub tid: u32,
    /// One of [`Kind`].
    pub kind: u16,
    /// Flags of the record's own family.
    pub flags: u16,
    /// Bytes of the whole record, header and trailing payload included.
    pub len: u32,
}
assert_size!(Header, 24);

/// What a record is. One consecutive range per event family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// [`super::socket::Io`] and captured bytes.
    SocketIo = 1,
    /// [`super::socket::Accept`].
    SocketAccept = 2,
    /// [`super::socket::Connect`].
    SocketConnect = 3,
    /// [`super::socket::Close`].
    SocketClose = 4,
    /// [`super::socket::Dup`].
    SocketDup = 5,
    /// [`super::socket::CloseRange`].
    SocketCloseRange = 6,
    /// [`super::socket::Shutdown`].
    SocketShutdown = 7,
    /// [`super::socket::Listen`].
    SocketListen = 8,
    /// [`super::socket::Named`].
    SocketNamed = 9,
    /// [`super::tcp::Arrival`].
    TcpArrival = 16,
    /// [`super::tcp::TcpState`].
    TcpState = 17,
    /// [`super::tcp::Retransmit`].
    TcpRetransmit = 18,
    /// [`super::cuda::Launches`].
    CudaLaunches = 32,
    /// [`super::cuda::Call`] and, for some functions, a payload.
    CudaCall = 33,
    /// [`super::process::NewTask`].
    NewTask = 48,
    /// [`super::process::Exec`].
    Exec = 49,
    /// [`super::process::Exit`].
    Exit = 50,
    /// [`super::process::MapExec`].
    MapExec = 51,
    /// [`super::sched::OffCpu`].
    SchedOffCpu = 64,
    /// [`super::sched::Wait`].
    SchedWait = 65,
    /// [`super::sched::Yields`].
    SchedYields = 66,
    /// [`super::sched::Signal`].
    SchedSignal = 67,
    /// [`super::sched::EpollCtl`].
    SchedEpollCtl = 68,
}

impl Kind {
    /// Every kind, in the order of its number.
    pub const ALL: [Self; 23] = [
        Self::SocketIo,
        Self::SocketAccept,
        Self::SocketConnect,
        Self::SocketClose,
        Self::SocketDup,
        Self::SocketCloseRange,
        Self::SocketShutdown,
        Self::SocketListen,
        Self::SocketNamed,
        Self::TcpArrival,
        Self::TcpState,
        Self::TcpRetransmit,
        Self::CudaLaunches,
        Self::CudaCall,
        Self::NewTask,
        Self::Exec,
        Self::Exit,
        Self::MapExec,
        Self::SchedOffCpu,
        Self::SchedWait,
        Self::SchedYields,
        Self::SchedSignal,
        Self::SchedEpollCtl,
    ];
}
