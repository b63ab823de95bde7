//! Which descriptors name which connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use foldhash::HashMap;

/// What a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// A connection.
    Conn(u64),
    /// A listening TCP socket.
    Listener(SocketAddr),
}

#[derive(Clone, Copy, Debug)]
struct Name {
    named: Named,
    /// Inherited by a fork, and not used since: an `exec` will most likely have closed it.
    inherited: bool,
    /// Since when, ns.
    since_ns: u64,
}

/// What a descriptor named before it was bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Nothing.
    Newly,
    /// This.
    Instead(Named),
    /// It is not bound: there are too many.
    Refused,
}

/// The descriptors of all processes that name something.
#[derive(Debug, Default)]
pub struct Names {
    processes: HashMap<u32, BTreeMap<i32, Name>>,
    total: usize,
}

impl Names {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.total
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// What the descriptor names.
    pub fn get(&self, pid: u32, fd: i32) -> Option<Named> {
        Some(self.name(pid, fd)?.named)
    }

    /// Descriptors that name connections: process, descriptor and connection, in no order.
    pub fn conns(&self) -> impl Iterator<Item = (u32, i32, u64)> {
        self.processes.iter().flat_map(|(pid, fds)| {
            fds.iter().filter_map(|(fd, name)| Some((*pid, *fd, name.conn()?)))
        })
    }

    /// The descriptor names the connection and was used under that name before.
    pub fn names(&self, pid: u32, fd: i32, conn: u64) -> bool {
        let is = |name: &Name| name.named == Named::Conn(conn) && !name.inherited;
        self.name(pid, fd).is_some_and(is)
    }

    fn name(&self, pid: u32, fd: i32) -> Option<&Name> {
        self.processes.get(&pid)?.get(&fd)
    }

    /// The connection is named so because a fork inherited it, and never used under that name.
    pub fn is_inherited(&self, pid: u32, conn: u64) -> bool {
        self.processes
            .get(&pid)
            .is_some_and(|fds| fds.values().any(|n| n.inherited && n.named == Named::Conn(conn)))
    }

    /// A call on `conn` that was entered at `enter_ns` is still under way although its descriptor
    /// names something else since.
    pub fn is_stale(&self, pid: u32, fd: i32, conn: u64, enter_ns: u64) -> bool {
        let is = |name: &Name| name.named != Named::Conn(conn) && name.since_ns > enter_ns;
        self.name(pid, fd).is_some_and(is)
    }

    /// The descriptor names this from `since_ns` on, unless there are already `limit`.
    pub fn bind(
        &mut self,
        (pid, fd): (u32, i32),
        named: Named,
        since_ns: u64,
        limit: usize,
    ) -> Bound {
        let full = self.total >= limit;
        let fds = self.processes.entry(pid).or_default();
        if let Some(name) = fds.get_mut(&fd) {
            let old = name.named;
            let since_ns = if old == named { name.since_ns } else { since_ns };
            *name = Name { named, inherited: false, since_ns };
            return Bound::Instead(old);
        }
        if full {
            if fds.is_empty() {
                self.processes.remove(&pid);
            }
            return Bound::Refused;
        }
        fds.insert(fd, Name { named, inherited: false, since_ns });
        self.total += 1;
        Bound::Newly
    }

    /// The descriptor was closed.
    pub fn unbind(&mut self, pid: u32, fd: i32) -> Option<Named> {
        let fds = self.processes.get_mut(&pid)?;
        let name = fds.remove(&fd)?;
        if fds.is_empty() {
            self.processes.remove(&pid);
        }
        self.total -= 1;
        Some(name.named)
    }

    /// Descriptors from `first` to `last` were closed. Returns the connections that lost a name.
    pub fn unbind_range(&mut self, pid: u32, first: u32, last: u32) -> Vec<u64> {
        let first = i32::try_from(first).unwrap_or(i32::MAX);
        let last = i32::try_from(last).unwrap_or(i32::MAX);
        self.retain(pid, |fd, _| !(first..=last).contains(&fd))
    }

    /// The process began a new program: what it inherited and never used is closed.
    pub fn exec(&mut self, pid: u32) -> Vec<u64> {
        self.retain(pid, |_, name| !name.inherited)
    }

    /// The process is gone.
    pub fn exit(&mut self, pid: u32) -> Vec<u64> {
        self.retain(pid, |_, _| false)
    }

    /// The child has its parent's descriptors. Returns the connections that got a name.
    pub fn fork(&mut self, parent: u32, child: u32, limit: usize) -> Vec<u64> {
        let Some(fds) = self.processes.get(&parent) else { return Vec::new() };
        if self.processes.contains_key(&child) || self.total.saturating_add(fds.len()) > limit {
            return Vec::new();
        }
        let copy: BTreeMap<i32, Name> =
            fds.iter().map(|(fd, name)| (*fd, Name { inherited: true, ..*name })).collect();
        self.total += copy.len();
        let conns = copy.values().filter_map(Name::conn).collect();
        self.processes.insert(child, copy);
        conns
    }

    fn retain(&mut self, pid: u32, keep: impl Fn(i32, &Name) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        let Some(fds) = self.processes.get_mut(&pid) else { return gone };
        let before = fds.len();
        fds.retain(|fd, name| {
            let kept = keep(*fd, name);
            if !kept {
                gone.extend(name.conn());
            }
            kept
        });
        self.total -= before - fds.len();
        if fds.is_empty() {
            self.processes.remove(&pid);
        }
        gone
    }
}

impl Name {
    fn conn(&self) -> Option<u64> {
        match self.named {
            Named::Conn(conn) => Some(conn),
            Named::Listener(_) => None,
        }
    }
}
