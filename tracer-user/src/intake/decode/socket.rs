//! Socket system calls and the TCP tracepoints.

use std::mem::offset_of;

use tracer_ebpf::wire::{Header, socket, tcp};

use super::{DecodeError, IoSpan, fields::Fields};
use crate::intake::event::{Direction, Io, IoCall, Socket, Tcp};

/// The system call with this number of [`IoCall`], and which way it moves bytes.
fn io_call(number: u8) -> Option<(IoCall, Direction)> {
    const CALLS: [IoCall; 13] = [
        IoCall::Read,
        IoCall::Write,
        IoCall::Readv,
        IoCall::Writev,
        IoCall::Recvfrom,
        IoCall::Sendto,
        IoCall::Recvmsg,
        IoCall::Sendmsg,
        IoCall::Recvmmsg,
        IoCall::Sendmmsg,
        IoCall::Sendfile,
        IoCall::SpliceIn,
        IoCall::SpliceOut,
    ];
    let call = CALLS.into_iter().find(|call| *call as u8 == number)?;
    let direction = match call {
        IoCall::Read
        | IoCall::Readv
        | IoCall::Recvfrom
        | IoCall::Recvmsg
        | IoCall::Recvmmsg
        | IoCall::SpliceIn => Direction::In,
        IoCall::Write
        | IoCall::Writev
        | IoCall::Sendto
        | IoCall::Sendmsg
        | IoCall::Sendmmsg
        | IoCall::Sendfile
        | IoCall::SpliceOut => Direction::Out,
    };
    Some((call, direction))
}

impl Fields<'_> {
    pub(super) fn io_span(&self) -> Result<(IoSpan, IoCall), DecodeError> {
        let data_at = size_of::<socket::Io>();
        let captured = self.u32(offset_of!(socket::Io, captured))?;
        self.with_payload(data_at, captured as usize)?;
        let number = self.u8(offset_of!(socket::Io, call))?;
        let field = DecodeError::Field { field: "call", value: number.into() };
        let (call, direction) = io_call(number).ok_or(field)?;
        let moved = u64::try_from(self.i64(offset_of!(socket::Io, ret))?).unwrap_or(0);
        let too_much = DecodeError::Field { field: "captured", value: captured.into() };
        let missing = moved.checked_sub(captured.into()).ok_or(too_much)?;
        let conn = self.u64(offset_of!(socket::Io, conn_id))?;
        let flags = self.u16(offset_of!(socket::Io, header.flags))?;
        let peek = flags & socket::IO_PEEK != 0;
        Ok((IoSpan { conn, direction, peek, data_at, missing }, call))
    }

    pub(super) fn io(&self, header: &Header) -> Result<Io, DecodeError> {
        let (span, call) = self.io_span()?;
        Ok(Io {
            conn: span.conn,
            fd: self.i32(offset_of!(socket::Io, fd))?,
            call,
            direction: span.direction,
            enter_ns: self.u64(offset_of!(socket::Io, enter_ns))?,
            ret: self.i64(offset_of!(socket::Io, ret))?,
            requested: self.u64(offset_of!(socket::Io, requested))?,
            peek: header.flags & socket::IO_PEEK != 0,
            data: self.rest(span.data_at),
        })
    }

    pub(super) fn accept(&self) -> Result<Socket, DecodeError> {
        self.exactly(size_of::<socket::Accept>())?;
        Ok(Socket::Accept {
            conn: self.u64(offset_of!(socket::Accept, conn_id))?,
            fd: self.i32(offset_of!(socket::Accept, fd))?,
            listen_fd: self.i32(offset_of!(socket::Accept, listen_fd))?,
            peer: self.address(offset_of!(socket::Accept, peer))?,
            enter_ns: self.u64(offset_of!(socket::Accept, enter_ns))?,
        })
    }

    pub(super) fn connect(&self) -> Result<Socket, DecodeError> {
        self.exactly(size_of::<socket::Connect>())?;
        Ok(Socket::Connect {
            conn: self.u64(offset_of!(socket::Connect, conn_id))?,
            fd: self.i32(offset_of!(socket::Connect, fd))?,
            peer: self.address(offset_of!(socket::Connect, peer))?,
            ret: self.i32(offset_of!(socket::Connect, ret))?,
            enter_ns: self.u64(offset_of!(socket::Connect, enter_ns))?,
        })
    }

    pub(super) fn close(&self) -> Result<Socket, DecodeError> {
        self.exactly(size_of::<socket::Close>())?;
        Ok(Socket::Close {
            conn: self.u64(offset_of!(socket::Close, conn_id))?,
            fd: self.i32(offset_of!(socket::Close, fd))?,
        })
    }

    pub(super) fn dup(&self) -> Result<Socket, DecodeError> {
        self.exactly(size_of::<socket::Dup>())?;
        Ok(Socket::Dup {
            conn: self.u64(offset_of!(socket::Dup, conn_id))?,
            old_fd: self.i32(offset_of!(socket::Dup, old_fd))?,
            new_fd: self.i32(offset_of!(socket::Dup, new_fd))?,
        })
    }

    pub(super) fn close_range(&self) -> Result<Socket, DecodeError> {
        self.exactly(size_of::<socket::CloseRange>())?;
        Ok(Socket::CloseRange {
            first: self.u32(offset_of!(socket::CloseRange, first))?,
            last: self.u32(offset_of!(socket::CloseRange, last))?,
        })
    }

    pub(super) fn shutdown(&self) -> Result<Socket, DecodeError> {
        self.exactly(size_of::<socket::Shutdown>())?;
        Ok(Socket::Shutdown {
            conn: self.u64(offset_of!(socket::Shutdown, conn_id))?,
            how: self.u32(offset_of!(socket::Shutdown, how))?,
        })
    }

    pub(super) fn listen(&self) -> Result<Socket, DecodeError> {
        self.exactly(size_of::<socket::Listen>())?;
        Ok(Socket::Listen { fd: self.i32(offset_of!(socket::Listen, fd))? })
    }

    pub(super) fn named(&self) -> Result<Socket, DecodeError> {
        self.exactly(size_of::<socket::Named>())?;
        let addr = self.address(offset_of!(socket::Named, addr))?;
        let is_local = self.u32(offset_of!(socket::Named, local))? != 0;
        Ok(Socket::Named {
            conn: self.u64(offset_of!(socket::Named, conn_id))?,
            peer: addr.filter(|_| !is_local),
            local: addr.filter(|_| is_local),
        })
    }

    pub(super) fn arrival(&self) -> Result<Tcp, DecodeError> {
        self.exactly(size_of::<tcp::Arrival>())?;
        Ok(Tcp::Arrival {
            local: self.tcp_end(offset_of!(tcp::Arrival, local), "local.family")?,
            peer: self.tcp_end(offset_of!(tcp::Arrival, peer), "peer.family")?,
            bytes: self.u32(offset_of!(tcp::Arrival, data_len))?,
            srtt_us: self.u32(offset_of!(tcp::Arrival, srtt_us))?,
        })
    }

    /// The end of a passive opening's handshake, and the end of a socket. An active opening is
    /// told by `connect`.
    pub(super) fn tcp_state(&self) -> Result<Option<Tcp>, DecodeError> {
        self.exactly(size_of::<tcp::TcpState>())?;
        let local = self.tcp_end(offset_of!(tcp::TcpState, local), "local.family")?;
        let peer = self.tcp_end(offset_of!(tcp::TcpState, peer), "peer.family")?;
        let old = self.u32(offset_of!(tcp::TcpState, old_state))?;
        let new = self.u32(offset_of!(tcp::TcpState, new_state))?;
        Ok(match (old, new) {
            (tcp::TCP_SYN_RECV, tcp::TCP_ESTABLISHED) => Some(Tcp::Established { local, peer }),
            (_, tcp::TCP_CLOSE) => Some(Tcp::Closed { local, peer }),
            _ => None,
        })
    }

    pub(super) fn retransmit(&self) -> Result<Tcp, DecodeError> {
        self.exactly(size_of::<tcp::Retransmit>())?;
        Ok(Tcp::Retransmit {
            local: self.tcp_end(offset_of!(tcp::Retransmit, local), "local.family")?,
            peer: self.tcp_end(offset_of!(tcp::Retransmit, peer), "peer.family")?,
        })
    }
}
