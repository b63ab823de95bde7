//! A record's bytes, read by offset.

use std::{
    mem::offset_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use bytes::Bytes;
use tracer_ebpf::wire::{Header, Kind, socket};

use super::{DecodeError, MAX_RECORD};

/// `AF_INET` and `AF_INET6` of Linux's `socket.h`.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A record's bytes, read by offset.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], DecodeError> {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk::<N>).copied();
        bytes.ok_or(DecodeError::Short { have: self.0.len(), need: at.saturating_add(N) })
    }

    pub(super) fn u8(&self, at: usize) -> Result<u8, DecodeError> {
        self.array(at).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&self, at: usize) -> Result<u16, DecodeError> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&self, at: usize) -> Result<u32, DecodeError> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&self, at: usize) -> Result<i32, DecodeError> {
        self.array(at).map(i32::from_le_bytes)
    }

    pub(super) fn u64(&self, at: usize) -> Result<u64, DecodeError> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub(super) fn i64(&self, at: usize) -> Result<i64, DecodeError> {
        self.array(at).map(i64::from_le_bytes)
    }

    /// The header, where its length is that of the bytes.
    pub(super) fn header(&self) -> Result<(Header, Kind), DecodeError> {
        let header = Header {
            time_ns: self.u64(offset_of!(Header, time_ns))?,
            tgid: self.u32(offset_of!(Header, tgid))?,
            tid: self.u32(offset_of!(Header, tid))?,
            kind: self.u16(offset_of!(Header, kind))?,
            flags: self.u16(offset_of!(Header, flags))?,
            len: self.u32(offset_of!(Header, len))?,
        };
        if header.len as usize != self.0.len() || self.0.len() > MAX_RECORD {
            return Err(DecodeError::Length { says: header.len.into(), have: self.0.len() });
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u16 == header.kind);
        Ok((header, kind.ok_or(DecodeError::Kind(header.kind))?))
    }

    /// A record of this size and no payload.
    pub(super) fn exactly(&self, size: usize) -> Result<(), DecodeError> {
        self.with_payload(size, 0)
    }

    /// A record of this size and a payload of `payload` bytes.
    pub(super) fn with_payload(&self, size: usize, payload: usize) -> Result<(), DecodeError> {
        let have = self.0.len();
        if have < size {
            return Err(DecodeError::Short { have, need: size });
        }
        if have - size != payload {
            return Err(DecodeError::Length { says: size as u64 + payload as u64, have });
        }
        Ok(())
    }

    /// The bytes from `at` on.
    pub(super) fn rest(&self, at: usize) -> Bytes {
        Bytes::copy_from_slice(self.0.get(at..).unwrap_or_default())
    }

    /// An Internet address; `None` where the family is another or unknown. An IPv4 address in IPv6
    /// clothes becomes a plain one, so that both ends of a socket spell it alike.
    pub(super) fn address(&self, at: usize) -> Result<Option<SocketAddr>, DecodeError> {
        let family = self.u16(at + offset_of!(socket::SockAddr, family))?;
        let port = self.u16(at + offset_of!(socket::SockAddr, port))?;
        let addr = at + offset_of!(socket::SockAddr, addr);
        let ip = match family {
            AF_INET => IpAddr::V4(Ipv4Addr::from(self.array::<4>(addr)?)),
            AF_INET6 => IpAddr::V6(Ipv6Addr::from(self.array::<16>(addr)?)).to_canonical(),
            _ => return Ok(None),
        };
        Ok(Some(SocketAddr::new(ip, port)))
    }

    /// An address of a TCP tracepoint, which has one always.
    pub(super) fn tcp_end(
        &self,
        at: usize,
        field: &'static str,
    ) -> Result<SocketAddr, DecodeError> {
        let family = self.u16(at + offset_of!(socket::SockAddr, family))?;
        self.address(at)?.ok_or(DecodeError::Field { field, value: family.into() })
    }
}
