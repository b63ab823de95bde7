//! Socket system calls: what moved, when it was entered and left, and the first bytes of it.
//!
//! Payload is read at exit with entry's pointer: at entry the page may not be there yet.

mod io;

use aya_ebpf::helpers::bpf_probe_read_user;
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    policy::{Class, FdInfo},
    sched::{Call, OTHER_END},
    socket::{Accept, CloseRange, Connect, Dup, IO_UNKNOWN_FD, Listen, Named, Shutdown, SockAddr},
};

pub use self::io::exit_io;
use super::{
    fds::{self, NOT_FOUND, carries, fd_info, lookup, lookup_or_add, new_id, remember, signals},
    syscall::Op,
    tcp::from_sockaddr,
};
use crate::{
    emit::{header, send},
    maps::CONN_POLICY,
    state::{Pending, Thread},
};

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOCK_STREAM: u64 = 1;
const SOCK_TYPE_MASK: u64 = 0xf;
const F_DUPFD: u64 = 0;
const F_DUPFD_CLOEXEC: u64 = 1030;
const CLOSE_RANGE_CLOEXEC: u64 = 4;
const EINPROGRESS: i64 = 115;

/// A call that moves bytes. Those that take them in have odd numbers, but for `sendfile`.
#[inline(always)]
pub fn enter_io(ids: u64, thread: &mut Thread) -> bool {
    let op = thread.pending.op;
    if op == Op::Splice as u8 {
        return enter_splice(ids, thread);
    }
    let takes = op & 1 != 0 && op != Op::Sendfile as u8;
    thread.call = if takes { Call::Read as u8 } else { Call::Write as u8 };
    let info = lookup_or_add(ids, thread.pending.fd);
    thread.object = info.conn_id;
    follow(&mut thread.pending, &info)
}

/// Takes over what is known of the descriptor; `false` where nothing of it is wanted.
#[inline(always)]
fn follow(p: &mut Pending, info: &FdInfo) -> bool {
    p.conn_id = info.conn_id;
    p.class = info.class as u8;
    if !carries(info.class) {
        return signals(info.class);
    }
    if info.class == Class::Unknown as u32 {
        p.flags |= IO_UNKNOWN_FD;
    }
    if info.class == Class::Unix as u32 {
        p.capture_len = 0;
    }
    // SAFETY: plain data.
    if let Some(policy) = unsafe { CONN_POLICY.get(&info.conn_id) } {
        if policy.ignore != 0 {
            return false;
        }
        p.capture_len = p.capture_len.min(policy.capture_len);
    }
    true
}

/// Sockets only: a pipe that one end of the splice is says nothing of its own.
#[inline(never)]
fn enter_splice(ids: u64, thread: &mut Thread) -> bool {
    let out_fd = thread.pending.args[2] as i32;
    let output = lookup(ids, out_fd);
    thread.call = Call::Write as u8;
    thread.object = output.conn_id;
    let p = &mut thread.pending;
    if carries(output.class) {
        p.fd = out_fd;
        p.args[3] = 1; // the socket is the output
        return follow(p, &output);
    }
    p.args[3] = 0;
    let input = lookup(ids, p.fd);
    carries(input.class) && follow(p, &input)
}

/// Calls that open, close, copy or rename descriptors.
#[inline(always)]
pub fn enter_other(ids: u64, thread: &mut Thread) -> bool {
    let p = &mut thread.pending;
    let op = p.op;
    thread.call = Call::Other as u8;
    if op == Op::Close as u8 {
        thread.call = Call::Close as u8;
        thread.object = fds::forget(ids, p.fd, p.enter_ns);
        false
    } else if op == Op::Dup as u8 || op == Op::Dup2 as u8 {
        enter_dup(ids, thread)
    } else if op == Op::Fcntl as u8 {
        (p.args[1] == F_DUPFD || p.args[1] == F_DUPFD_CLOEXEC) && enter_dup(ids, thread)
    } else if op == Op::CloseRange as u8 {
        thread.call = Call::Close as u8;
        if p.args[2] & CLOSE_RANGE_CLOEXEC == 0 {
            let header =
                header(Kind::SocketCloseRange, 0, size_of::<CloseRange>(), ids, p.enter_ns);
            let (first, last) = (p.args[0] as u32, p.args[1] as u32);
            send(CloseRange { header, first, last }, Loss::RingSocket);
        }
        false
    } else if op == Op::Shutdown as u8 || op == Op::Connect as u8 {
        let shuts = op == Op::Shutdown as u8;
        thread.call = if shuts { Call::Shutdown as u8 } else { Call::Connect as u8 };
        let info = lookup_or_add(ids, p.fd);
        thread.object = info.conn_id;
        p.conn_id = info.conn_id;
        p.class = info.class as u8;
        carries(info.class)
    } else if op == Op::Accept as u8 {
        thread.call = Call::Accept as u8;
        thread.object = fds::object(ids, p.fd);
        true
    } else if op == Op::PeerName as u8 || op == Op::SockName as u8 {
        let info = lookup(ids, p.fd);
        p.conn_id = info.conn_id;
        carries(info.class)
    } else {
        true
    }
}

#[inline(never)]
fn enter_dup(ids: u64, thread: &mut Thread) -> bool {
    let p = &mut thread.pending;
    let info = lookup(ids, p.fd);
    let new_fd = p.args[1] as i32;
    if p.op == Op::Dup2 as u8 && new_fd != p.fd {
        thread.call = Call::Close as u8;
        thread.object = fds::forget(ids, new_fd, p.enter_ns);
    }
    p.conn_id = info.conn_id;
    p.class = info.class as u8;
    info.class != NOT_FOUND
}

/// The exit of a call that opens, copies or renames descriptors.
#[inline(always)]
pub fn exit_other(ids: u64, p: &Pending, ret: i64, time_ns: u64) {
    if p.op == Op::Connect as u8 {
        exit_connect(ids, p, ret, time_ns);
    } else if ret >= 0 {
        if p.op == Op::Accept as u8 {
            exit_accept(ids, p, ret, time_ns);
        } else if p.op == Op::PeerName as u8 || p.op == Op::SockName as u8 {
            exit_named(ids, p, time_ns);
        } else {
            opened(ids, p, ret, time_ns);
        }
    }
}

#[inline(never)]
fn opened(ids: u64, p: &Pending, ret: i64, time_ns: u64) {
    let op = p.op;
    if op == Op::Dup as u8 || op == Op::Dup2 as u8 || op == Op::Fcntl as u8 {
        let new_fd = ret as i32;
        remember(ids, new_fd, &fd_info(p.conn_id, u32::from(p.class)));
        if carries(u32::from(p.class)) {
            let header = header(Kind::SocketDup, 0, size_of::<Dup>(), ids, time_ns);
            let record = Dup { header, conn_id: p.conn_id, old_fd: p.fd, new_fd };
            send(record, Loss::RingSocket);
        }
    } else if op == Op::Socket as u8 {
        remember_new(ids, ret as i32, socket_class(p.args[0] as u16, p.args[1]));
    } else if op == Op::Opens as u8 {
        remember_new(ids, ret as i32, Class::Other);
    } else if op == Op::OpensEventFd as u8 {
        remember_new(ids, ret as i32, Class::EventFd);
    } else if op == Op::OpensEpoll as u8 {
        remember_new(ids, ret as i32, Class::Epoll);
    } else if op == Op::OpensPipe as u8 {
        remember_pair(ids, p.args[0], Class::Pipe);
    } else if op == Op::OpensSocketPair as u8 {
        let local = p.args[0] as u16 == AF_UNIX;
        remember_pair(ids, p.args[3], if local { Class::Pair } else { Class::Other });
    } else if op == Op::Shutdown as u8 {
        let header = header(Kind::SocketShutdown, 0, size_of::<Shutdown>(), ids, time_ns);
        let how = p.args[1] as u32;
        send(Shutdown { header, conn_id: p.conn_id, fd: p.fd, how }, Loss::RingSocket);
    } else if op == Op::Listen as u8 {
        let header = header(Kind::SocketListen, 0, size_of::<Listen>(), ids, time_ns);
        let backlog = p.args[1] as u32;
        send(Listen { header, fd: p.fd, backlog }, Loss::RingSocket);
    }
}

#[inline(always)]
fn remember_new(ids: u64, fd: i32, class: Class) {
    let conn_id = if class == Class::Other { 0 } else { new_id() };
    remember(ids, fd, &fd_info(conn_id, class as u32));
}

/// Two descriptors that the call wrote to memory: the ends of one thing.
#[inline(always)]
fn remember_pair(ids: u64, at: u64, class: Class) {
    // SAFETY: the helper checks the user address.
    let Ok(pair) = (unsafe { bpf_probe_read_user(at as *const [i32; 2]) }) else { return };
    let (one, other) = match class {
        Class::Other => (0, 0),
        _ => {
            let id = new_id();
            (id, id | OTHER_END)
        }
    };
    remember(ids, pair[0], &fd_info(one, class as u32));
    remember(ids, pair[1], &fd_info(other, class as u32));
}

#[inline(always)]
fn socket_class(family: u16, kind: u64) -> Class {
    let stream = kind & SOCK_TYPE_MASK == SOCK_STREAM;
    match family {
        AF_INET | AF_INET6 if stream => Class::Tcp,
        AF_UNIX if stream => Class::Unix,
        _ => Class::Other,
    }
}

/// Reads an address that user space passed; family 0 where there is none.
#[inline(always)]
fn sockaddr(at: u64) -> SockAddr {
    let mut none = SockAddr { addr: [0; 16], family: 0, port: 0, pad: [0; 4] };
    if at == 0 {
        return none;
    }
    // SAFETY: the helper checks the user address.
    let Ok([family, port]) = (unsafe { bpf_probe_read_user(at as *const [u16; 2]) }) else {
        return none;
    };
    let port = u16::from_be(port);
    let mut raw = [0u8; 28];
    if family == AF_INET6 {
        // SAFETY: the helper checks the user address.
        match unsafe { bpf_probe_read_user(at as *const [u8; 28]) } {
            Ok(bytes) => raw = bytes,
            Err(_) => return none,
        }
    } else if family == AF_INET {
        // SAFETY: the helper checks the user address.
        match unsafe { bpf_probe_read_user(at as *const [u8; 8]) } {
            Ok(bytes) => {
                raw[4] = bytes[4];
                raw[5] = bytes[5];
                raw[6] = bytes[6];
                raw[7] = bytes[7];
            }
            Err(_) => return none,
        }
    } else {
        none.family = family;
        return none;
    }
    from_sockaddr(&raw, family, port)
}

#[inline(never)]
fn exit_accept(ids: u64, p: &Pending, ret: i64, time_ns: u64) {
    let peer = sockaddr(p.args[1]);
    let listener = lookup(ids, p.fd);
    let unix = peer.family == AF_UNIX || peer.family == 0 && listener.class == Class::Unix as u32;
    let class = if unix { Class::Unix } else { Class::TcpServer };
    let info = fd_info(new_id(), class as u32);
    remember(ids, ret as i32, &info);
    let record = Accept {
        header: header(Kind::SocketAccept, 0, size_of::<Accept>(), ids, time_ns),
        enter_ns: p.enter_ns,
        conn_id: info.conn_id,
        peer,
        listen_fd: p.fd,
        fd: ret as i32,
    };
    send(record, Loss::RingSocket);
}

#[inline(never)]
fn exit_named(ids: u64, p: &Pending, time_ns: u64) {
    let addr = sockaddr(p.args[1]);
    if addr.family != AF_INET && addr.family != AF_INET6 {
        return;
    }
    let header = header(Kind::SocketNamed, 0, size_of::<Named>(), ids, time_ns);
    let local = u32::from(p.op == Op::SockName as u8);
    send(Named { header, conn_id: p.conn_id, addr, fd: p.fd, local }, Loss::RingSocket);
}

#[inline(never)]
fn exit_connect(ids: u64, p: &Pending, ret: i64, time_ns: u64) {
    let peer = sockaddr(p.args[1]);
    if ret == 0 || ret == -EINPROGRESS {
        let class = if peer.family == AF_UNIX { Class::Unix } else { Class::TcpClient };
        remember(ids, p.fd, &fd_info(p.conn_id, class as u32));
    }
    let record = Connect {
        header: header(Kind::SocketConnect, 0, size_of::<Connect>(), ids, time_ns),
        enter_ns: p.enter_ns,
        conn_id: p.conn_id,
        peer,
        fd: p.fd,
        ret: ret as i32,
    };
    send(record, Loss::RingSocket);
}
