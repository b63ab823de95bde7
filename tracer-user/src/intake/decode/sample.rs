//! Records for tests, made field by field.

use std::mem::offset_of;

use tracer_ebpf::wire::{Header, Kind, cuda, process, sched, socket, tcp};

use crate::intake::event::IoCall;

/// Process and thread of every sample.
pub(crate) const PID: u32 = 40;
pub(crate) const TID: u32 = 41;

/// Bytes of the kind's struct.
pub(crate) fn size(kind: Kind) -> usize {
    match kind {
        Kind::SocketIo => size_of::<socket::Io>(),
        Kind::SocketAccept => size_of::<socket::Accept>(),
        Kind::SocketConnect => size_of::<socket::Connect>(),
        Kind::SocketClose => size_of::<socket::Close>(),
        Kind::SocketDup => size_of::<socket::Dup>(),
        Kind::SocketCloseRange => size_of::<socket::CloseRange>(),
        Kind::SocketShutdown => size_of::<socket::Shutdown>(),
        Kind::SocketListen => size_of::<socket::Listen>(),
        Kind::SocketNamed => size_of::<socket::Named>(),
        Kind::TcpArrival => size_of::<tcp::Arrival>(),
        Kind::TcpState => size_of::<tcp::TcpState>(),
        Kind::TcpRetransmit => size_of::<tcp::Retransmit>(),
        Kind::CudaLaunches => size_of::<cuda::Launches>(),
        Kind::CudaCall => size_of::<cuda::Call>(),
        Kind::NewTask => size_of::<process::NewTask>(),
        Kind::Exec => size_of::<process::Exec>(),
        Kind::Exit => size_of::<process::Exit>(),
        Kind::MapExec => size_of::<process::MapExec>(),
        Kind::SchedOffCpu => size_of::<sched::OffCpu>(),
        Kind::SchedWait => size_of::<sched::Wait>(),
        Kind::SchedYields => size_of::<sched::Yields>(),
        Kind::SchedSignal => size_of::<sched::Signal>(),
        Kind::SchedEpollCtl => size_of::<sched::EpollCtl>(),
    }
}

/// A record of the kind: a header, `fill` wherever the struct has a byte, then the payload.
pub(crate) fn raw(kind: Kind, time_ns: u64, fill: u8, payload: &[u8]) -> Vec<u8> {
    let mut record = vec![fill; size(kind)];
    record.extend_from_slice(payload);
    let len = record.len() as u32;
    put(&mut record, offset_of!(Header, time_ns), time_ns.to_le_bytes());
    put(&mut record, offset_of!(Header, tgid), PID.to_le_bytes());
    put(&mut record, offset_of!(Header, tid), TID.to_le_bytes());
    put(&mut record, offset_of!(Header, kind), (kind as u16).to_le_bytes());
    put(&mut record, offset_of!(Header, flags), 0u16.to_le_bytes());
    put(&mut record, offset_of!(Header, len), len.to_le_bytes());
    record
}

/// Writes a field.
pub(crate) fn put<const N: usize>(record: &mut [u8], at: usize, bytes: [u8; N]) {
    record[at..at + N].copy_from_slice(&bytes);
}

/// Sets the header's flags.
pub(crate) fn flag(record: &mut [u8], flags: u16) {
    put(record, offset_of!(Header, flags), flags.to_le_bytes());
}

/// Writes an address.
pub(crate) fn put_address(record: &mut [u8], at: usize, family: u16, addr: [u8; 16], port: u16) {
    put(record, at + offset_of!(socket::SockAddr, addr), addr);
    put(record, at + offset_of!(socket::SockAddr, family), family.to_le_bytes());
    put(record, at + offset_of!(socket::SockAddr, port), port.to_le_bytes());
}

/// `data` moved by one call, and `missing` bytes more.
pub(crate) fn io(time_ns: u64, conn: u64, call: IoCall, data: &[u8], missing: u64) -> Vec<u8> {
    let mut record = raw(Kind::SocketIo, time_ns, 0, data);
    let moved = (data.len() as u64 + missing) as i64;
    put(&mut record, offset_of!(socket::Io, conn_id), conn.to_le_bytes());
    put(&mut record, offset_of!(socket::Io, enter_ns), (time_ns.saturating_sub(5)).to_le_bytes());
    put(&mut record, offset_of!(socket::Io, ret), moved.to_le_bytes());
    put(&mut record, offset_of!(socket::Io, requested), 4096u64.to_le_bytes());
    put(&mut record, offset_of!(socket::Io, fd), 7i32.to_le_bytes());
    put(&mut record, offset_of!(socket::Io, captured), (data.len() as u32).to_le_bytes());
    put(&mut record, offset_of!(socket::Io, call), [call as u8]);
    record
}

/// A descriptor of the connection is closed.
pub(crate) fn close(time_ns: u64, conn: u64) -> Vec<u8> {
    let mut record = raw(Kind::SocketClose, time_ns, 0, &[]);
    put(&mut record, offset_of!(socket::Close, conn_id), conn.to_le_bytes());
    record
}

/// A run of launches.
pub(crate) fn launches(time_ns: u64, first_ns: u64) -> Vec<u8> {
    let mut record = raw(Kind::CudaLaunches, time_ns, 0, &[]);
    put(&mut record, offset_of!(cuda::Launches, first_ns), first_ns.to_le_bytes());
    put(&mut record, offset_of!(cuda::Launches, count), 3u32.to_le_bytes());
    record
}

/// A call of the driver.
pub(crate) fn call(time_ns: u64, api: u16, payload: &[u8]) -> Vec<u8> {
    let mut record = raw(Kind::CudaCall, time_ns, 0, payload);
    put(&mut record, offset_of!(cuda::Call, api), api.to_le_bytes());
    put(&mut record, offset_of!(cuda::Call, out), 0xabcd_u64.to_le_bytes());
    put(&mut record, offset_of!(cuda::Call, payload), (payload.len() as u16).to_le_bytes());
    record
}

/// A record of each kind that can be decoded.
pub(crate) fn each() -> Vec<Vec<u8>> {
    let with_addresses = |kind: Kind, local: usize, peer: usize| {
        let mut record = raw(kind, 9, 0, &[]);
        put_address(&mut record, local, 2, [127; 16], 80);
        put_address(&mut record, peer, 10, [1; 16], 81);
        record
    };
    let each = |kind| match kind {
        Kind::SocketIo => io(9, 1, IoCall::Read, b"hello", 3),
        Kind::TcpArrival => {
            with_addresses(kind, offset_of!(tcp::Arrival, local), offset_of!(tcp::Arrival, peer))
        }
        Kind::TcpState => {
            let at = (offset_of!(tcp::TcpState, local), offset_of!(tcp::TcpState, peer));
            let mut record = with_addresses(kind, at.0, at.1);
            put(&mut record, offset_of!(tcp::TcpState, new_state), 7u32.to_le_bytes());
            record
        }
        Kind::TcpRetransmit => with_addresses(
            kind,
            offset_of!(tcp::Retransmit, local),
            offset_of!(tcp::Retransmit, peer),
        ),
        Kind::CudaCall => call(9, 13, b"payload"),
        kind => raw(kind, 9, 0, &[]),
    };
    Kind::ALL.into_iter().map(each).collect()
}
