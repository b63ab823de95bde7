//! Events in, exchanges out.

use std::net::SocketAddr;

use foldhash::HashMap;

use super::conn::{Conn, Family, side_of};
use super::context::{Cause, Shared};
use super::exchange::{Exchange, Flow, Out, Role, Stamp, reason};
use super::limits::{Counters, Limits};
use super::names::{Bound, Named, Names};
use super::tuples::Tuples;
use crate::intake::event::{Event, Losses, Socket, Tcp, What};

/// All connections of all traced processes.
///
/// Reads no clock and does no I/O: the same events give the same exchanges. Events must come in the
/// order of their times.
#[derive(Debug, Default)]
pub struct Streams {
    pub(super) conns: HashMap<u64, Conn>,
    pub(super) names: Names,
    pub(super) tuples: Tuples,
    pub(super) shared: Shared,
}

impl Streams {
    /// With other caps than the default ones.
    pub fn new(limits: Limits) -> Self {
        Self { shared: Shared { limits, ..Shared::default() }, ..Self::default() }
    }

    /// Takes one event. What it finished is added to `out`.
    pub fn on_event(&mut self, event: &Event, out: &mut Vec<Out>) {
        match &event.what {
            What::Socket(socket) => self.on_socket(event, socket, out),
            What::Tcp(tcp) => self.on_tcp(event.time_ns, tcp, out),
            What::Process(process) => self.on_process(event, process, out),
            What::Proc(fact) => self.on_fact(event.time_ns, fact, out),
            What::Loss(losses) => self.on_loss(event.time_ns, losses),
            What::Cuda(_) | What::Sched(_) => {}
        }
    }

    /// Requests being served (or made) now, in no order.
    pub fn open(&self) -> impl Iterator<Item = &Exchange> {
        self.conns.values().flat_map(|conn| conn.track.open())
    }

    /// Connections that are open and not parsed, in no order. A TCP connection in whose bytes
    /// nothing was recognised so far is among them.
    pub fn unparsed(&self) -> impl Iterator<Item = Flow> + '_ {
        self.conns.values().filter_map(|conn| conn.flow(true))
    }

    /// What happened beside the exchanges.
    pub fn counters(&self) -> Counters {
        self.shared.counters
    }

    /// What the process is on a connection, and the other end of it, as far as they are known.
    pub fn ends_at(&self, conn: u64) -> Option<(Option<Role>, Option<SocketAddr>)> {
        self.conns.get(&conn).map(|conn| (conn.role, conn.peer))
    }

    /// Connections held.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// The trace ends: says what is not parsed and still open. Open exchanges are not finished by
    /// that; [`Self::open`] says them.
    pub fn finish_flows(&mut self, out: &mut Vec<Out>) {
        let mut flows: Vec<Flow> = self.unparsed().collect();
        flows.sort_unstable_by_key(|flow| (flow.first_ns, flow.conn));
        self.shared.counters.flows += flows.len() as u64;
        out.extend(flows.into_iter().map(Out::Flow));
    }

    fn on_socket(&mut self, event: &Event, socket: &Socket, out: &mut Vec<Out>) {
        match socket {
            Socket::Io(io) => self.on_io(event, io, out),
            Socket::Accept { conn, fd, listen_fd, peer, .. } => {
                self.accept(event, (*conn, *fd, *listen_fd), *peer, out);
            }
            Socket::Connect { conn, fd, peer, ret, .. } => {
                self.connect(event, (*conn, *fd), *peer, *ret, out);
            }
            Socket::Close { conn, fd } => self.on_close(event, *conn, *fd, out),
            Socket::Dup { conn, new_fd, .. } => {
                if self.conns.contains_key(conn) {
                    self.name(event.pid, *new_fd, *conn, event.time_ns, out);
                }
            }
            Socket::CloseRange { first, last } => {
                let gone = self.names.unbind_range(event.pid, *first, *last);
                self.unname_all(&gone, event.time_ns, out);
            }
            Socket::Shutdown { conn, how } => self.on_shutdown(event, *conn, *how, out),
            Socket::Named { conn, peer, local } => {
                if let Some(known) = self.conns.get_mut(conn) {
                    known.peer = known.peer.or(*peer);
                    known.local = known.local.or(*local);
                    self.claim(*conn);
                }
            }
            // Its address comes as a fact.
            Socket::Listen { .. } => {}
        }
    }

    fn accept(
        &mut self,
        event: &Event,
        (id, fd, listen_fd): (u64, i32, i32),
        peer: Option<SocketAddr>,
        out: &mut Vec<Out>,
    ) {
        self.introduce(id, event.pid, event.time_ns, Family::Tcp, true, out);
        self.name(event.pid, fd, id, event.time_ns, out);
        let listener = self.names.get(event.pid, listen_fd);
        let on_unix = match listener {
            Some(Named::Conn(named)) => {
                self.conns.get(&named).is_some_and(|conn| conn.family == Family::Unix)
            }
            _ => false,
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.role = Some(Role::Server);
        conn.accepted_ns = Some(event.time_ns);
        conn.peer = peer.or(conn.peer);
        conn.listener = Some((event.pid, listen_fd));
        if on_unix {
            conn.family = Family::Unix;
        }
        self.claim(id);
    }

    fn connect(
        &mut self,
        event: &Event,
        (id, fd): (u64, i32),
        peer: Option<SocketAddr>,
        ret: i32,
        out: &mut Vec<Out>,
    ) {
        const EINPROGRESS: i32 = 115;
        if ret != 0 && ret != -EINPROGRESS && !self.conns.contains_key(&id) {
            return;
        }
        let family = if peer.is_some() { Family::Tcp } else { Family::Unidentified };
        self.introduce(id, event.pid, event.time_ns, family, true, out);
        self.name(event.pid, fd, id, event.time_ns, out);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.role = conn.role.or(Some(Role::Client));
        conn.peer = peer.or(conn.peer);
    }

    fn on_tcp(&mut self, time_ns: u64, tcp: &Tcp, out: &mut Vec<Out>) {
        let Shared { limits, counters, .. } = &mut self.shared;
        match *tcp {
            Tcp::Arrival { local, peer, bytes, srtt_us } => {
                let segment = (time_ns, bytes, srtt_us);
                self.tuples.arrive((local, peer), segment, limits, counters);
            }
            Tcp::Established { local, peer } => {
                self.tuples.establish((local, peer), time_ns, limits, counters);
            }
            Tcp::Closed { local, peer } => {
                let owner = self.tuples.close(local, peer);
                let Some(conn) = owner.and_then(|id| self.conns.get_mut(&id)) else { return };
                (conn.tuple, conn.tcp_closed) = (None, true);
                // Whatever descriptors are left were inherited by somebody who never used them.
                if conn.closed {
                    let id = conn.id;
                    self.end(id, time_ns, Cause::Own, out);
                }
            }
            Tcp::Retransmit { local, peer } => {
                let owner = self.tuples.owner(local, peer);
                if let Some(conn) = owner.and_then(|id| self.conns.get_mut(&id)) {
                    conn.retransmits = conn.retransmits.saturating_add(1);
                }
            }
        }
    }

    fn on_loss(&mut self, time_ns: u64, losses: &Losses) {
        if losses.socket > 0 || losses.recursion > 0 {
            self.conns.values_mut().for_each(|conn| conn.track.lost());
        }
        self.doubt(time_ns, losses);
        if losses.tcp > 0 || losses.recursion > 0 {
            self.tuples.distrust();
        }
    }

    fn on_close(&mut self, event: &Event, id: u64, fd: i32, out: &mut Vec<Out>) {
        if self.names.get(event.pid, fd) == Some(Named::Conn(id)) {
            self.names.unbind(event.pid, fd);
            self.unname_all(&[id], event.time_ns, out);
        } else if self.conns.get(&id).is_some_and(|conn| conn.names == 0) {
            self.end(id, event.time_ns, Cause::Own, out);
        }
    }

    fn on_shutdown(&mut self, event: &Event, id: u64, how: u32, out: &mut Vec<Out>) {
        let Some(conn) = self.conns.get_mut(&id).filter(|_| how == 1 || how == 2) else { return };
        conn.shut = true;
        let cause = if conn.peer_closed { Cause::Peer } else { Cause::Own };
        let Some(role) = conn.role.filter(|_| !conn.is_passed()) else { return };
        let side = side_of(role, crate::intake::event::Direction::Out);
        let ctx = conn.context(role, None);
        conn.track.eof(side, (event.time_ns, cause), &ctx, &mut self.shared, out);
    }

    /// Makes sure that the connection is known.
    pub(super) fn introduce(
        &mut self,
        id: u64,
        pid: u32,
        time_ns: u64,
        family: Family,
        fresh: bool,
        out: &mut Vec<Out>,
    ) {
        if !self.conns.contains_key(&id) {
            if self.conns.len() >= self.shared.limits.connections.max(1) {
                self.evict(out);
            }
            self.conns.insert(id, Conn::new(id, pid, time_ns, family, fresh));
        }
    }

    /// Lets the sixteenth part go that was silent longest.
    fn evict(&mut self, out: &mut Vec<Out>) {
        let mut silent: Vec<(u64, u64)> =
            self.conns.values().map(|conn| (conn.last_ns, conn.id)).collect();
        let part = (silent.len() / 16).max(1);
        silent.sort_unstable();
        for (last_ns, id) in silent.into_iter().take(part) {
            self.end(id, last_ns, Cause::Unseen(reason::EVICTED), out);
            self.shared.counters.connections_evicted += 1;
        }
    }

    /// The descriptor names the connection.
    pub(super) fn name(&mut self, pid: u32, fd: i32, id: u64, time_ns: u64, out: &mut Vec<Out>) {
        if self.bind(pid, fd, Named::Conn(id), time_ns, out)
            && let Some(conn) = self.conns.get_mut(&id)
        {
            conn.names += 1;
        }
    }

    /// Says whether the descriptor names it newly.
    pub(super) fn bind(
        &mut self,
        pid: u32,
        fd: i32,
        named: Named,
        time_ns: u64,
        out: &mut Vec<Out>,
    ) -> bool {
        match self.names.bind((pid, fd), named, time_ns, self.shared.limits.names) {
            Bound::Newly => true,
            Bound::Instead(old) if old == named => false,
            Bound::Instead(old) => {
                if let Named::Conn(old) = old {
                    self.closed_unseen(old, out);
                }
                true
            }
            Bound::Refused => {
                self.shared.counters.names_refused += 1;
                false
            }
        }
    }

    /// The connections lost one name each; those without any end.
    pub(super) fn unname_all(&mut self, ids: &[u64], time_ns: u64, out: &mut Vec<Out>) {
        for id in ids {
            if self.unname(*id) {
                self.end(*id, time_ns, Cause::Own, out);
            }
        }
    }

    /// The connection lost a name. Says whether that is its end.
    pub(super) fn unname(&mut self, id: u64) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        conn.names = conn.names.saturating_sub(1);
        conn.closed = true;
        conn.names == 0 || conn.tcp_closed
    }

    /// The connection is over.
    pub(super) fn end(&mut self, id: u64, time_ns: u64, cause: Cause, out: &mut Vec<Out>) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        if let Some(tuple) = conn.tuple.take() {
            self.tuples.remove(tuple);
        }
        let cause = if cause == Cause::Own && conn.peer_closed { Cause::Peer } else { cause };
        if let Some(role) = conn.role.filter(|_| !conn.is_passed()) {
            let ctx = conn.context(role, None);
            conn.track.finish_all((time_ns, cause, true), &ctx, &mut self.shared, out);
        } else {
            conn.track.discard(&mut self.shared);
        }
        if let Some(flow) = conn.flow(false) {
            self.shared.counters.flows += 1;
            out.push(Out::Flow(flow));
        }
    }

    /// Joins the connection with what the TCP stack says about its addresses, once both ends are
    /// known.
    pub(super) fn claim(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.local.is_none()
            && let Some((pid, fd)) = conn.listener
            && let Some(Named::Listener(local)) = self.names.get(pid, fd)
        {
            conn.local = Some(local);
            conn.listener = None;
        }
        let (Some(local), Some(peer), None, false) =
            (conn.local, conn.peer, conn.tuple, conn.tcp_closed)
        else {
            return;
        };
        conn.tuple = self.tuples.claim(id, local, peer);
        let Some(tuple) = conn.tuple else { return };
        if conn.role == Some(Role::Client) || conn.is_passed() {
            self.tuples.mute(tuple);
        }
        if let Some(tuple) = self.tuples.get_mut(tuple) {
            if let Some(ip) = tuple.local().filter(|_| local.ip().is_unspecified()) {
                conn.local = Some(SocketAddr::new(ip, local.port()));
            }
            conn.established_ns = tuple.established_ns().or(conn.established_ns);
        }
    }

    /// A fresh stamp of an event that is a call.
    pub(super) fn stamp(event: &Event, enter_ns: u64) -> Stamp {
        Stamp { enter_ns, exit_ns: event.time_ns, tid: event.tid }
    }

    /// Whether nothing is held: for tests of bounds.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty() && self.names.is_empty() && self.shared.open == 0
    }
}
