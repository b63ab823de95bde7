//! What threads wake each other with, and which two names mean the same thing.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use tracer_ebpf::wire::sched::OTHER_END;

use crate::intake::event::{Descriptor, ProcFact};

/// Objects of each kind that are remembered; beyond, the kind is learned anew.
const MAX_OBJECTS: usize = 65_536;
/// Descriptors that one epoll instance watches.
const MAX_WATCHED: usize = 16_384;
/// Stretches of shared memory of one process.
const MAX_SHARED: usize = 1_024;

/// A stretch of memory that processes share.
#[derive(Clone, Copy, Debug)]
struct Shared {
    from: u64,
    to: u64,
    device: u64,
    inode: u64,
    offset: u64,
}

/// What an epoll instance watches.
#[derive(Debug, Default)]
struct Watched {
    by_fd: HashMap<i32, u64>,
    /// How many descriptors name each object: a server watches thousands, and is woken often.
    objects: HashMap<u64, u32>,
}

impl Watched {
    fn insert(&mut self, fd: i32, object: u64) {
        self.remove(fd);
        self.by_fd.insert(fd, object);
        *self.objects.entry(object).or_default() += 1;
    }

    fn remove(&mut self, fd: i32) {
        let Some(object) = self.by_fd.remove(&fd) else { return };
        if let Some(count) = self.objects.get_mut(&object) {
            *count -= 1;
            if *count == 0 {
                self.objects.remove(&object);
            }
        }
    }
}

/// Whether two objects are two ends of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// They are.
    Yes,
    /// They are not.
    No,
    /// Too little is known of one of them.
    Unknown,
}

/// What is known of objects.
#[derive(Debug, Default)]
pub struct Objects {
    watched: HashMap<u64, Watched>,
    /// Unix sockets: own inode and peer's.
    unix: HashMap<u64, (u64, u64)>,
    unix_by_inode: HashMap<u64, u64>,
    /// Connections by their ends, this end first.
    tcp: HashMap<u64, (SocketAddr, SocketAddr)>,
    tcp_by_ends: HashMap<(SocketAddr, SocketAddr), u64>,
    /// Objects of which something is known.
    known: HashSet<u64>,
    shared: HashMap<u32, Vec<Shared>>,
    /// Device and inode of what each process shares of these.
    files: HashMap<u32, HashSet<(u64, u64)>>,
}

fn room<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>) {
    if map.len() >= MAX_OBJECTS {
        map.clear();
    }
}

impl Objects {
    /// An answer that `/proc` gave.
    pub fn on_fact(&mut self, fact: &ProcFact) {
        match fact {
            ProcFact::Descriptor { conn, kind, .. } => match *kind {
                Descriptor::Unix { inode, peer } => {
                    room(&mut self.unix);
                    self.unix.insert(*conn, (inode, peer));
                    room(&mut self.unix_by_inode);
                    self.unix_by_inode.insert(inode, *conn);
                }
                Descriptor::Tcp { local, peer, .. } => self.on_connection(*conn, local, peer),
                Descriptor::Pipe { .. } | Descriptor::EventFd { .. } => self.know(*conn),
                Descriptor::Listener { .. } | Descriptor::Epoll | Descriptor::Other => {}
            },
            ProcFact::Watched { epoll, object, fd, .. } => self.watch(*epoll, *fd, *object, true),
            ProcFact::Shared { pid, from, to, device, inode, offset } => {
                room(&mut self.shared);
                let list = self.shared.entry(*pid).or_default();
                if list.len() >= MAX_SHARED {
                    list.clear();
                    self.files.remove(pid);
                }
                list.retain(|shared| shared.from != *from);
                let (from, to, device) = (*from, *to, *device);
                list.push(Shared { from, to, device, inode: *inode, offset: *offset });
                room(&mut self.files);
                self.files.entry(*pid).or_default().insert((device, *inode));
            }
            ProcFact::Gone { pid } | ProcFact::Paused { pid } => {
                self.shared.remove(pid);
                self.files.remove(pid);
            }
            ProcFact::Target { .. }
            | ProcFact::Container { .. }
            | ProcFact::Coverage { .. }
            | ProcFact::Visible { .. }
            | ProcFact::Closed(_)
            | ProcFact::Doing(_)
            | ProcFact::Shed { .. } => {}
        }
    }

    /// The two ends of a connection.
    pub fn on_connection(&mut self, conn: u64, local: SocketAddr, peer: SocketAddr) {
        room(&mut self.tcp);
        self.tcp.insert(conn, (local, peer));
        room(&mut self.tcp_by_ends);
        self.tcp_by_ends.insert((local, peer), conn);
    }

    /// A pipe, `eventfd` or `socketpair` was used.
    pub fn know(&mut self, object: u64) {
        if self.known.len() >= MAX_OBJECTS {
            self.known.clear();
        }
        self.known.insert(object & !OTHER_END);
    }

    /// Whether it is a pipe, `eventfd` or `socketpair`.
    pub fn is_signal(&self, object: u64) -> bool {
        self.known.contains(&(object & !OTHER_END))
    }

    /// What an epoll instance watches has changed.
    pub fn watch(&mut self, epoll: u64, fd: i32, object: u64, watched: bool) {
        room(&mut self.watched);
        let members = self.watched.entry(epoll).or_default();
        if !watched {
            members.remove(fd);
        } else if members.by_fd.len() < MAX_WATCHED || members.by_fd.contains_key(&fd) {
            members.insert(fd, object);
        }
    }

    /// Whether what a thread did to `acted` is what another, waiting for `awaited`, waits for.
    pub fn ends(&self, acted: u64, awaited: u64) -> Match {
        if acted == 0 || awaited == 0 {
            return Match::Unknown;
        }
        if acted == awaited || acted ^ OTHER_END == awaited {
            return Match::Yes;
        }
        if let (Some((inode, peer)), Some((other, other_peer))) =
            (self.unix.get(&acted), self.unix.get(&awaited))
        {
            return match *peer == *other || *other_peer == *inode {
                true if *inode != 0 && *other != 0 => Match::Yes,
                _ if *peer == 0 && *other_peer == 0 => Match::Unknown,
                _ => Match::No,
            };
        }
        if let (Some((local, peer)), Some((other, other_peer))) =
            (self.tcp.get(&acted), self.tcp.get(&awaited))
        {
            return if local == other_peer && peer == other { Match::Yes } else { Match::No };
        }
        let kind = |object: u64| {
            (
                self.known.contains(&(object & !OTHER_END)),
                self.unix.contains_key(&object),
                self.tcp.contains_key(&object),
            )
        };
        let (one, other) = (kind(acted), kind(awaited));
        if one == (false, false, false) || other == (false, false, false) {
            Match::Unknown
        } else {
            Match::No
        }
    }

    /// Whether what a thread did to `acted` makes something ready that the epoll instance watches.
    pub fn watches(&self, epoll: u64, acted: u64) -> Match {
        if acted == 0 {
            return Match::Unknown;
        }
        let Some(members) = self.watched.get(&epoll) else { return Match::Unknown };
        let is_member = |object: &u64| *object != 0 && members.objects.contains_key(object);
        if [acted, acted ^ OTHER_END].iter().chain(self.other_end(acted)).any(is_member) {
            return Match::Yes;
        }
        let mut answer = Match::No;
        for object in members.objects.keys() {
            match self.ends(acted, *object) {
                Match::Yes => return Match::Yes,
                Match::Unknown => answer = Match::Unknown,
                Match::No => {}
            }
        }
        answer
    }

    /// The other end of a socket, where both are known.
    fn other_end(&self, object: u64) -> Option<&u64> {
        if let Some((_, peer)) = self.unix.get(&object) {
            return self.unix_by_inode.get(peer).filter(|_| *peer != 0);
        }
        let (local, peer) = self.tcp.get(&object)?;
        self.tcp_by_ends.get(&(*peer, *local))
    }

    /// Whether two futex addresses are one futex: the same address in one process, the same place
    /// in shared memory in two.
    pub fn futexes(&self, one: (u32, u64), other: (u32, u64)) -> Match {
        if one.0 == other.0 {
            return if one.1 == other.1 { Match::Yes } else { self.shared_futexes(one, other) };
        }
        match self.shared_futexes(one, other) {
            Match::No if self.place(one).is_none() || self.place(other).is_none() => Match::Unknown,
            answer => answer,
        }
    }

    /// Whether two processes map the same memory, as far as that was looked up.
    pub fn share_memory(&self, one: u32, other: u32) -> bool {
        let (Some(one), Some(other)) = (self.files.get(&one), self.files.get(&other)) else {
            return false;
        };
        let (few, many) = if one.len() <= other.len() { (one, other) } else { (other, one) };
        few.iter().any(|file| many.contains(file))
    }

    fn shared_futexes(&self, one: (u32, u64), other: (u32, u64)) -> Match {
        match (self.place(one), self.place(other)) {
            (Some(one), Some(other)) if one == other => Match::Yes,
            _ => Match::No,
        }
    }

    /// Device, inode and offset of an address in shared memory.
    fn place(&self, (pid, address): (u32, u64)) -> Option<(u64, u64, u64)> {
        let within = |s: &&Shared| s.from <= address && address < s.to;
        let shared = self.shared.get(&pid)?.iter().find(within)?;
        Some((shared.device, shared.inode, shared.offset.wrapping_add(address - shared.from)))
    }
}
