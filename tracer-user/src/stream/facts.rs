//! What `/proc` says about descriptors, and births and deaths of processes.

use std::net::SocketAddr;

use super::conn::{Conn, Family};
use super::context::Cause;
use super::exchange::{Out, Role, reason};
use super::names::Named;
use super::streams::Streams;
use crate::intake::event::{Descriptor, Event, ProcFact, Process};

impl Streams {
    pub(super) fn on_process(&mut self, event: &Event, process: &Process, out: &mut Vec<Out>) {
        match process {
            Process::Fork { child } => {
                let conns = self.names.fork(event.pid, *child, self.shared.limits.names);
                for id in conns {
                    if let Some(conn) = self.conns.get_mut(&id) {
                        conn.names += 1;
                    }
                }
            }
            Process::Exec => {
                let gone = self.names.exec(event.pid);
                self.unname_all(&gone, event.time_ns, out);
            }
            Process::Exit { last: true } => {
                let gone = self.names.exit(event.pid);
                self.unname_all(&gone, event.time_ns, out);
            }
            Process::Exit { last: false } | Process::NewThread { .. } | Process::MapExec => {}
        }
    }

    pub(super) fn on_fact(&mut self, time_ns: u64, fact: &ProcFact, out: &mut Vec<Out>) {
        match fact {
            ProcFact::Descriptor { pid, fd, conn, kind } => match *kind {
                Descriptor::Tcp { local, peer, server } => {
                    self.describe(time_ns, (*pid, *fd, *conn), (local, peer), server, out);
                }
                Descriptor::Listener { local } => {
                    self.not_a_connection(*conn);
                    self.bind(*pid, *fd, Named::Listener(local), time_ns, out);
                }
                Descriptor::Unix { .. } => {
                    self.introduce(*conn, *pid, time_ns, Family::Unix, false, out);
                    self.name(*pid, *fd, *conn, time_ns, out);
                    if let Some(conn) = self.conns.get_mut(conn) {
                        conn.family = Family::Unix;
                        conn.track.discard(&mut self.shared);
                    }
                }
                Descriptor::Pipe { .. }
                | Descriptor::EventFd { .. }
                | Descriptor::Epoll
                | Descriptor::Other => self.not_a_connection(*conn),
            },
            ProcFact::Gone { pid } => {
                let gone = self.names.exit(*pid);
                self.unname_all(&gone, time_ns, out);
            }
            ProcFact::Closed(naming) => self.found_closed(*naming, out),
            ProcFact::Paused { pid } => self.pause(*pid, time_ns, out),
            ProcFact::Target { .. }
            | ProcFact::Watched { .. }
            | ProcFact::Shared { .. }
            | ProcFact::Container { .. }
            | ProcFact::Visible { .. }
            | ProcFact::Coverage { .. }
            | ProcFact::Doing(_)
            | ProcFact::Shed { .. } => {}
        }
    }

    /// What the process does with its connections is not seen from now on.
    fn pause(&mut self, pid: u32, time_ns: u64, out: &mut Vec<Out>) {
        let mut ids = self.names.exit(pid);
        ids.extend(self.conns.values().filter(|conn| conn.pid == pid).map(|conn| conn.id));
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            self.end(id, time_ns, Cause::Unseen(reason::PAUSED), out);
        }
    }

    /// `/proc` said what a descriptor is.
    fn describe(
        &mut self,
        time_ns: u64,
        (pid, fd, id): (u32, i32, u64),
        (local, peer): (SocketAddr, SocketAddr),
        server: bool,
        out: &mut Vec<Out>,
    ) {
        self.inherit(pid, id, local, peer);
        self.introduce(id, pid, time_ns, Family::Tcp, false, out);
        self.name(pid, fd, id, time_ns, out);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.family = Family::Tcp;
        (conn.local, conn.peer) = (Some(local), Some(peer));
        conn.role = conn.role.or(Some(if server { Role::Server } else { Role::Client }));
        self.claim(id);
    }

    /// A child names a connection that it inherited by another number: from now on it is the
    /// child's, with what is known of its beginning.
    fn inherit(&mut self, pid: u32, id: u64, local: SocketAddr, peer: SocketAddr) {
        let Some(old) = self.tuples.owner(local, peer).filter(|old| *old != id) else { return };
        if !self.names.is_inherited(pid, old) {
            return;
        }
        let Some(parent) = self.conns.get_mut(&old).filter(|c| c.track.open().next().is_none())
        else {
            return;
        };
        let Some(tuple) = parent.tuple.take() else { return };
        let begun = (parent.established_ns, parent.accepted_ns, parent.role, parent.first_ns);
        let unused = parent.track.is_blank() && parent.bytes_in == 0 && parent.bytes_out == 0;
        let limit = self.shared.limits.connections;
        if self.conns.len() < limit || self.conns.contains_key(&id) {
            let conn = self
                .conns
                .entry(id)
                .or_insert_with(|| Conn::new(id, pid, begun.3, Family::Tcp, unused));
            (conn.established_ns, conn.accepted_ns, conn.role) = (begun.0, begun.1, begun.2);
            conn.tuple = Some(tuple);
            self.tuples.hand_over(tuple, id);
        }
    }

    /// What was taken for a connection is none: nothing is said about it.
    fn not_a_connection(&mut self, id: u64) {
        if let Some(mut conn) = self.conns.remove(&id) {
            if let Some(tuple) = conn.tuple.take() {
                self.tuples.remove(tuple);
            }
            conn.track.discard(&mut self.shared);
        }
    }
}
