//! The sockets of a network namespace: what each is, and what it is connected to.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use procfs::{
    net::{TcpNetEntry, TcpState},
    process::Process,
};

use super::{object::Object, process::open, unix_peers::unix_peers};
use crate::intake::event::Descriptor;

/// Sockets in a process's network namespace, by inode.
#[derive(Default)]
pub struct Sockets {
    tcp: HashMap<u64, (SocketAddr, SocketAddr, bool)>,
    listening: HashSet<u16>,
    unix: HashMap<u64, u64>,
    peers_unknown: Option<String>,
}

impl Sockets {
    /// Reads the tables.
    pub fn of(pid: u32) -> Self {
        let Ok(process) = open(pid) else { return Self::default() };
        let mut found = Self::tcp_of(&process);
        match unix_peers(pid) {
            Ok(peers) => found.unix = peers,
            Err(reason) => {
                let table = process.unix().unwrap_or_default();
                found.unix = table.iter().map(|entry| (entry.inode, 0)).collect();
                found.peers_unknown = Some(reason.to_string());
            }
        }
        found
    }

    /// Reads the tables of TCP sockets alone.
    pub fn of_tcp(pid: u32) -> Self {
        open(pid).map_or_else(|_| Self::default(), |process| Self::tcp_of(&process))
    }

    fn tcp_of(process: &Process) -> Self {
        let mut found = Self::default();
        // A kernel without IPv6 has no second table.
        for table in [process.tcp(), process.tcp6()] {
            table.unwrap_or_default().iter().for_each(|entry| found.add(entry));
        }
        found
    }

    fn add(&mut self, entry: &TcpNetEntry) {
        let listens = entry.state == TcpState::Listen;
        if listens {
            self.listening.insert(entry.local_address.port());
        }
        let ends = (canonical(entry.local_address), canonical(entry.remote_address), listens);
        self.tcp.insert(entry.inode, ends);
    }

    /// Why no Unix socket's peer is known; `None` where they are.
    pub fn peers_unknown(&self) -> Option<&str> {
        self.peers_unknown.as_deref()
    }

    /// What an object is, in the words of the later rooms.
    pub fn kind(&self, object: Object) -> Descriptor {
        match object {
            Object::Socket(inode) => self.socket(inode),
            _ => object.kind(),
        }
    }

    fn socket(&self, inode: u64) -> Descriptor {
        if let Some((local, peer, listens)) = self.tcp.get(&inode).copied() {
            return if listens {
                Descriptor::Listener { local }
            } else {
                Descriptor::Tcp { local, peer, server: self.listening.contains(&local.port()) }
            };
        }
        match self.unix.get(&inode) {
            Some(peer) => Descriptor::Unix { inode, peer: *peer },
            None => Descriptor::Other,
        }
    }

    /// The other end of a pipe, or of a Unix socket. Sockets are each other's ends only where both
    /// say so: many datagram sockets may be connected to one, which is connected to none of them.
    pub fn other_end(&self, object: Object) -> Option<Object> {
        let Object::Socket(inode) = object else { return object.other_end() };
        let peer = self.unix.get(&inode).copied()?;
        (peer != inode && self.unix.get(&peer) == Some(&inode)).then_some(Object::Socket(peer))
    }

    /// Inodes of sockets that listen on a port.
    pub fn listeners(&self, port: u16) -> HashSet<u64> {
        let listens = |(_, (local, _, listens)): &(&u64, &(SocketAddr, SocketAddr, bool))| {
            *listens && local.port() == port
        };
        self.tcp.iter().filter(listens).map(|(inode, _)| *inode).collect()
    }
}

/// IPv4 addresses that are written as IPv6 become IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsRawFd as _, unix::net::UnixStream};

    use super::*;
    use crate::discover::object::object;

    #[test]
    fn a_pair_is_a_pair() {
        let me = std::process::id();
        let (one, two) = UnixStream::pair().unwrap();
        let [one, two] = [&one, &two].map(|end| object(me, end.as_raw_fd()).unwrap());
        let sockets = Sockets::of(me);
        assert_eq!(sockets.peers_unknown(), None);
        let (inode, peer) = (one.inode(), two.inode());
        assert_eq!(sockets.kind(one), Descriptor::Unix { inode, peer });
        assert_eq!(sockets.other_end(one), Some(two));
        assert_eq!(sockets.other_end(two), Some(one));
    }

    #[test]
    fn a_socket_that_many_send_to_is_nobodys_other_end() {
        let unix = HashMap::from([(1, 3), (2, 3), (3, 0), (4, 4)]);
        let sockets = Sockets { unix, ..Sockets::default() };
        for inode in 0..5 {
            assert_eq!(sockets.other_end(Object::Socket(inode)), None);
        }
    }

    #[test]
    fn what_is_no_socket_is_not_looked_up() {
        let sockets = Sockets::default();
        let pipe = Object::Pipe { device: 0, inode: 7, write_end: true };
        assert_eq!(sockets.kind(pipe), Descriptor::Pipe { inode: 7, write_end: true });
        assert_eq!(sockets.kind(Object::Socket(7)), Descriptor::Other);
    }
}
