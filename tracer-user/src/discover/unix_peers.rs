//! Which Unix socket is connected to which. Only `sock_diag` tells, and of one network namespace at
//! a time.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::AsFd as _,
    thread,
};

use netlink_packet_sock_diag::{
    SockDiagMessage,
    unix::{ShowFlags, StateFlags, UnixRequest},
};
use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::diag::ask;

/// Sockets of a namespace that are taken; the rest is not followed.
const MAX_SOCKETS: usize = 1 << 20;

/// The Unix sockets of the process's network namespace: their inodes, and each one's peer, 0 where
/// it has none.
///
/// # Errors
/// Where the namespace cannot be entered (that takes `CAP_SYS_ADMIN` unless it is our own), or the
/// kernel was built without `CONFIG_UNIX_DIAG`.
pub fn unix_peers(pid: u32) -> io::Result<HashMap<u64, u64>> {
    peers(&socket_in_namespace_of(pid)?)
}

/// A socket belongs to the namespace in which it was made. So a thread of its own goes there, makes
/// one and ends; no other thread of ours ever leaves home.
fn socket_in_namespace_of(pid: u32) -> io::Result<Socket> {
    let theirs = format!("/proc/{pid}/ns/net");
    if fs::read_link(&theirs)? == fs::read_link("/proc/self/ns/net")? {
        return Socket::new(NETLINK_SOCK_DIAG);
    }
    let namespace = File::open(theirs)?;
    let visit = thread::Builder::new().name("namespace".into()).spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Socket::new(NETLINK_SOCK_DIAG)
    })?;
    visit.join().map_err(|_| io::Error::other("the thread that went there failed"))?
}

fn peers(socket: &Socket) -> io::Result<HashMap<u64, u64>> {
    let question = SockDiagMessage::UnixRequest(UnixRequest {
        // Sockets in every state: those of a pair, and those that wait to be connected.
        state_flags: StateFlags::from_bits_retain(u32::MAX),
        inode: 0,
        show_flags: ShowFlags::PEER,
        cookie: [0; 8],
    });
    let mut peers = HashMap::new();
    ask(socket, question, &mut |answer| {
        if let SockDiagMessage::UnixResponse(socket) = answer
            && peers.len() < MAX_SOCKETS
        {
            let peer = socket.peer().unwrap_or(0);
            peers.insert(u64::from(socket.header.inode), u64::from(peer));
        }
    })?;
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        os::{fd::AsRawFd as _, unix::net::UnixStream},
        process::{Command, Stdio},
    };

    use super::*;
    use crate::discover::object::{Object, object};

    fn inode(socket: &UnixStream) -> u64 {
        match object(std::process::id(), socket.as_raw_fd()).unwrap() {
            Object::Socket(inode) => inode,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pair_knows_each_other() {
        let (one, two) = UnixStream::pair().unwrap();
        let peers = unix_peers(std::process::id()).unwrap();
        assert_eq!(peers.get(&inode(&one)), Some(&inode(&two)));
        assert_eq!(peers.get(&inode(&two)), Some(&inode(&one)));
    }

    #[test]
    fn pairs_in_another_namespace_are_found() {
        let script = "import os, socket\n\
            a, b = socket.socketpair()\n\
            print(os.fstat(a.fileno()).st_ino, os.fstat(b.fileno()).st_ino, flush=True)\n\
            input()";
        let child = Command::new("unshare")
            .args(["--net", "python3", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        // Not everywhere may one make a namespace.
        let Ok(mut child) = child else { return };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let inodes: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let peers = unix_peers(child.id());
        let home = unix_peers(std::process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        if let [one, two] = inodes[..] {
            assert_eq!(peers.unwrap().get(&one), Some(&two));
            assert!(!home.contains_key(&one), "this thread is still at home");
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(unix_peers(u32::MAX).is_err());
    }
}
