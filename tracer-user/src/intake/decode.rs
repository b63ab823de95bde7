//! The only reader of the wire structs' bytes.
//!
//! Fields are found at the offsets that the compiler gives for the structs of
//! [`tracer_ebpf::wire`], so the layout has one definition. Records are little endian, as every
//! machine is on which the kernel half runs. Whatever the bytes are, the answer is an event,
//! [`Decoded::Nothing`] or a [`DecodeError`].

mod cuda;
mod fields;
#[cfg(test)]
pub(crate) mod sample;
mod sched;
mod socket;
#[cfg(test)]
pub(crate) mod tests;

use std::mem::offset_of;

use tracer_ebpf::wire::{
    Header, Kind, process,
    socket::{Close as WireClose, IO_UNKNOWN_FD, Io as WireIo, MAX_CAPTURE},
};

use self::fields::Fields;
use super::event::{Cuda, Direction, Event, Process, Socket, What};

/// Longest record of any kind, bytes.
pub const MAX_RECORD: usize = size_of::<WireIo>() + MAX_CAPTURE;

/// What a record says.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// Something that later rooms want to know.
    Event(Event),
    /// A fact that no later room needs, such as a change of TCP state midway.
    Nothing,
}

/// Why a record's bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the kind takes.
    #[error("the record has {have} bytes where its kind takes {need}")]
    Short {
        /// Bytes that there are.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The record's own length, its payload's length and its bytes do not agree.
    #[error("the record has {have} bytes and says that it has {says}")]
    Length {
        /// Bytes by the record's own word.
        says: u64,
        /// Bytes that there are.
        have: usize,
    },
    /// No kind has this number.
    #[error("no kind of record has the number {0}")]
    Kind(u16),
    /// A field holds what it cannot hold.
    #[error("{field} cannot be {value}")]
    Field {
        /// Name of the field in the wire struct.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
}

/// Turns one record into an event. An event's time is the record's, except that a run of launches
/// takes its place at its first launch.
pub fn decode(record: &[u8]) -> Result<Decoded, DecodeError> {
    let fields = Fields(record);
    let (header, kind) = fields.header()?;
    let mut time_ns = header.time_ns;
    let what = match kind {
        Kind::SocketIo => What::Socket(Socket::Io(fields.io(&header)?)),
        Kind::SocketAccept => What::Socket(fields.accept()?),
        Kind::SocketConnect => What::Socket(fields.connect()?),
        Kind::SocketClose => What::Socket(fields.close()?),
        Kind::SocketDup => What::Socket(fields.dup()?),
        Kind::SocketCloseRange => What::Socket(fields.close_range()?),
        Kind::SocketShutdown => What::Socket(fields.shutdown()?),
        Kind::SocketListen => What::Socket(fields.listen()?),
        Kind::SocketNamed => What::Socket(fields.named()?),
        Kind::TcpArrival => What::Tcp(fields.arrival()?),
        Kind::TcpState => match fields.tcp_state()? {
            Some(change) => What::Tcp(change),
            None => return Ok(Decoded::Nothing),
        },
        Kind::TcpRetransmit => What::Tcp(fields.retransmit()?),
        Kind::CudaLaunches => {
            let run = fields.launches(&header)?;
            time_ns = run.first_ns;
            What::Cuda(Cuda::Launches(run))
        }
        Kind::CudaCall => What::Cuda(Cuda::Call(fields.call(&header)?)),
        Kind::NewTask => What::Process(fields.new_task()?),
        Kind::Exec => {
            fields.exactly(size_of::<process::Exec>())?;
            What::Process(Process::Exec)
        }
        Kind::Exit => What::Process(fields.exit(&header)?),
        Kind::SchedOffCpu => What::Sched(fields.off_cpu()?),
        Kind::SchedWait => What::Sched(fields.wait()?),
        Kind::SchedYields => What::Sched(fields.yields(&header)?),
        Kind::SchedSignal => What::Sched(fields.signal()?),
        Kind::SchedEpollCtl => What::Sched(fields.epoll_ctl()?),
        Kind::MapExec => {
            fields.exactly(size_of::<process::MapExec>())?;
            What::Process(Process::MapExec)
        }
    };
    Ok(Decoded::Event(Event { time_ns, pid: header.tgid, tid: header.tid, what }))
}

/// As much of a record as those need to know who handle its bytes without wanting the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// Bytes moved over a connection.
    Io(IoSpan),
    /// A descriptor of the connection was closed.
    Close {
        /// The connection.
        conn: u64,
    },
    /// Any other record that [`decode`] can read.
    Other,
}

/// Where captured bytes lie in a record, and where they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoSpan {
    /// The connection.
    pub conn: u64,
    /// Which way the bytes went.
    pub direction: Direction,
    /// The bytes stay in the socket and will come again.
    pub peek: bool,
    /// Offset in the record of the first captured byte; they reach to its end.
    pub data_at: usize,
    /// Bytes moved after the captured ones.
    pub missing: u64,
}

/// Looks at a record without copying its payload. Fails exactly where [`decode`] does.
pub fn glance(record: &[u8]) -> Result<Glance, DecodeError> {
    let fields = Fields(record);
    let (_, kind) = fields.header()?;
    match kind {
        Kind::SocketIo => Ok(Glance::Io(fields.io_span()?.0)),
        Kind::SocketClose => {
            let at = offset_of!(WireClose, conn_id);
            fields.exactly(size_of::<WireClose>())?;
            Ok(Glance::Close { conn: fields.u64(at)? })
        }
        _ => decode(record).map(|_| Glance::Other),
    }
}

/// A descriptor that the kernel half did not know when a call on it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFd {
    /// Process.
    pub pid: u32,
    /// Descriptor.
    pub fd: i32,
    /// The identity under which its events come.
    pub conn: u64,
}

/// Whether the record asks user space to look a descriptor up.
pub fn unknown_fd(record: &[u8]) -> Option<UnknownFd> {
    let fields = Fields(record);
    let (header, kind) = fields.header().ok()?;
    if kind != Kind::SocketIo || header.flags & IO_UNKNOWN_FD == 0 {
        return None;
    }
    Some(UnknownFd {
        pid: header.tgid,
        fd: fields.i32(offset_of!(WireIo, fd)).ok()?,
        conn: fields.u64(offset_of!(WireIo, conn_id)).ok()?,
    })
}

impl Fields<'_> {
    fn new_task(&self) -> Result<Process, DecodeError> {
        self.exactly(size_of::<process::NewTask>())?;
        let tid = self.u32(offset_of!(process::NewTask, tid))?;
        let flags = self.u64(offset_of!(process::NewTask, clone_flags))?;
        Ok(if flags & process::CLONE_THREAD != 0 {
            Process::NewThread { tid }
        } else {
            Process::Fork { child: tid }
        })
    }

    /// Where the kernel does not say whether others live on, the leader's end counts as the
    /// process's: threads that outlive their leader are rare.
    fn exit(&self, header: &Header) -> Result<Process, DecodeError> {
        self.exactly(size_of::<process::Exit>())?;
        Ok(match self.u32(offset_of!(process::Exit, group_dead))? {
            0 => Process::Exit { last: false },
            1 => Process::Exit { last: true },
            2 => Process::Exit { last: header.tid == header.tgid },
            value => {
                return Err(DecodeError::Field { field: "group_dead", value: value.into() });
            }
        })
    }
}
