//! Which sockets listen on a port. The kernel's tables in `/proc` hold every connection, and reading
//! them walks all places where one could be, milliseconds even where there is none. `sock_diag` can
//! be asked for listeners alone, which are kept apart.

use std::{collections::HashSet, io};

use netlink_packet_sock_diag::{
    SockDiagMessage,
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};

use super::{diag::ask, sockets::Sockets};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// Inodes of the sockets that listen on one of these ports, in this network namespace.
pub fn listeners(ports: &[u16]) -> HashSet<u64> {
    asked(ports).unwrap_or_else(|_| {
        // A kernel without `CONFIG_INET_DIAG`.
        let sockets = Sockets::of_tcp(std::process::id());
        ports.iter().flat_map(|port| sockets.listeners(*port)).collect()
    })
}

fn asked(ports: &[u16]) -> io::Result<HashSet<u64>> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    let mut found = HashSet::new();
    for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        let question = SockDiagMessage::InetRequest(InetRequest {
            family,
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::empty(),
            states: StateFlags::LISTEN,
            socket_id,
        });
        ask(&socket, question, &mut |answer| {
            if let SockDiagMessage::InetResponse(answer) = answer
                && ports.contains(&answer.header.socket_id.source_port)
            {
                found.insert(u64::from(answer.header.inode));
            }
        })?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn both_ways_find_the_same() {
        let any = ["127.0.0.1:0", "[::1]:0"].map(|address| TcpListener::bind(address).ok());
        let bound: Vec<TcpListener> = any.into_iter().flatten().collect();
        for listener in &bound {
            let port = listener.local_addr().unwrap().port();
            let wanted = Sockets::of_tcp(std::process::id()).listeners(port);
            assert_eq!(wanted.len(), 1);
            assert_eq!(listeners(&[port]), wanted);
            if let Ok(asked) = asked(&[port]) {
                assert_eq!(asked, wanted);
            }
        }
    }

    #[test]
    fn who_does_not_listen_is_not_found() {
        assert_eq!(listeners(&[]), HashSet::new());
        // A connection's own port, which nobody listens on.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(listeners(&[client.local_addr().unwrap().port()]), HashSet::new());
    }
}
