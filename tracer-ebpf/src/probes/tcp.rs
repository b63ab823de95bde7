//! The TCP stack's tracepoints. The current task is arbitrary here, so the gate is the local port.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use tracer_ebpf::wire::{
    Header, Kind,
    loss::Loss,
    offsets::Field,
    socket::SockAddr,
    tcp::{Arrival, Retransmit, TCP_CLOSE, TCP_ESTABLISHED, TCP_LISTEN, TcpState},
};

use super::process::field;
use crate::{
    emit::{header, now, send},
    maps::PORTS,
};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const IPPROTO_TCP: u16 = 6;

#[inline(always)]
fn wanted(port: u16) -> bool {
    // SAFETY: plain data.
    unsafe { PORTS.get(&u32::from(port)) }.is_some()
}

#[inline(always)]
fn no_task(kind: Kind, len: usize) -> Header {
    header(kind, 0, len, 0, now())
}

/// `tcp:tcp_probe`: a segment reached an established socket.
#[tracepoint]
pub fn tcp_probe(ctx: TracePointContext) -> u32 {
    try_tcp_probe(&ctx);
    0
}

#[inline(always)]
fn try_tcp_probe(ctx: &TracePointContext) -> Option<()> {
    let sport = field::<u16>(ctx, Field::TcpProbeSport)?;
    if !wanted(sport) {
        return None;
    }
    let data_len = field::<u16>(ctx, Field::TcpProbeDataLen)?;
    if data_len == 0 {
        return None;
    }
    let family = field::<u16>(ctx, Field::TcpProbeFamily)?;
    let dport = field::<u16>(ctx, Field::TcpProbeDport)?;
    let saddr = field::<[u8; 28]>(ctx, Field::TcpProbeSaddr)?;
    let daddr = field::<[u8; 28]>(ctx, Field::TcpProbeDaddr)?;
    let record = Arrival {
        header: no_task(Kind::TcpArrival, size_of::<Arrival>()),
        local: from_sockaddr(&saddr, family, sport),
        peer: from_sockaddr(&daddr, family, dport),
        data_len: u32::from(data_len),
        srtt_us: field::<u32>(ctx, Field::TcpProbeSrtt).unwrap_or(0),
    };
    send(record, Loss::RingTcp);
    Some(())
}

/// The record holds a `sockaddr_in` (address at 4) or a `sockaddr_in6` (address at 8).
#[inline(always)]
pub fn from_sockaddr(raw: &[u8; 28], family: u16, port: u16) -> SockAddr {
    let mut addr = [0u8; 16];
    if family == AF_INET6 {
        let mut i = 0;
        while i < 16 {
            addr[i] = raw[8 + i];
            i += 1;
        }
    } else {
        let mut i = 0;
        while i < 4 {
            addr[i] = raw[4 + i];
            i += 1;
        }
    }
    SockAddr { addr, family, port, pad: [0; 4] }
}

#[inline(always)]
fn address(
    ctx: &TracePointContext,
    family: u16,
    port: u16,
    v4: Field,
    v6: Field,
) -> Option<SockAddr> {
    let mut addr = [0u8; 16];
    if family == AF_INET6 {
        addr = field::<[u8; 16]>(ctx, v6)?;
    } else {
        let short = field::<[u8; 4]>(ctx, v4)?;
        addr[0] = short[0];
        addr[1] = short[1];
        addr[2] = short[2];
        addr[3] = short[3];
    }
    Some(SockAddr { addr, family, port, pad: [0; 4] })
}

/// `sock:inet_sock_set_state`: a handshake ended, a connection is gone, or somebody listens.
#[tracepoint]
pub fn inet_sock_set_state(ctx: TracePointContext) -> u32 {
    try_inet_sock_set_state(&ctx);
    0
}

#[inline(always)]
fn try_inet_sock_set_state(ctx: &TracePointContext) -> Option<()> {
    let sport = field::<u16>(ctx, Field::StateSport)?;
    if !wanted(sport) || field::<u16>(ctx, Field::StateProtocol)? != IPPROTO_TCP {
        return None;
    }
    let new_state = field::<u32>(ctx, Field::StateNew)?;
    if !matches!(new_state, TCP_ESTABLISHED | TCP_CLOSE | TCP_LISTEN) {
        return None;
    }
    let family = field::<u16>(ctx, Field::StateFamily)?;
    if family != AF_INET && family != AF_INET6 {
        return None;
    }
    let dport = field::<u16>(ctx, Field::StateDport)?;
    let record = TcpState {
        header: no_task(Kind::TcpState, size_of::<TcpState>()),
        local: address(ctx, family, sport, Field::StateSaddr, Field::StateSaddrV6)?,
        peer: address(ctx, family, dport, Field::StateDaddr, Field::StateDaddrV6)?,
        old_state: field::<u32>(ctx, Field::StateOld)?,
        new_state,
    };
    send(record, Loss::RingTcp);
    Some(())
}

/// `tcp:tcp_retransmit_skb`: a segment was sent again.
#[tracepoint]
pub fn tcp_retransmit_skb(ctx: TracePointContext) -> u32 {
    try_tcp_retransmit_skb(&ctx);
    0
}

#[inline(always)]
fn try_tcp_retransmit_skb(ctx: &TracePointContext) -> Option<()> {
    let sport = field::<u16>(ctx, Field::RetransmitSport)?;
    if !wanted(sport) {
        return None;
    }
    let family = field::<u16>(ctx, Field::RetransmitFamily)?;
    let dport = field::<u16>(ctx, Field::RetransmitDport)?;
    let record = Retransmit {
        header: no_task(Kind::TcpRetransmit, size_of::<Retransmit>()),
        local: address(ctx, family, sport, Field::RetransmitSaddr, Field::RetransmitSaddrV6)?,
        peer: address(ctx, family, dport, Field::RetransmitDaddr, Field::RetransmitDaddrV6)?,
    };
    send(record, Loss::RingTcp);
    Some(())
}
