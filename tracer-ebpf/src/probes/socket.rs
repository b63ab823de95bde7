//! Socket system calls: what moved, when it was entered and left, and the first bytes of it.
//!
//! Payload is read at exit with entry's pointer: at entry the page may not be there yet.

mod io;

use aya_ebpf::{
    helpers::{bpf_get_smp_processor_id, bpf_probe_read_kernel, bpf_probe_read_user},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    policy::{Class, FdInfo, FdKey, Setting, TARGET_CUDA, Target},
    process::MapExec,
    socket::{Accept, Close, CloseRange, Connect, Dup, IO_UNKNOWN_FD, Listen, Shutdown, SockAddr},
};

use super::{
    cuda,
    syscall::{NR_AT, Op, REGS_AT, Regs, op},
    tcp::from_sockaddr,
};
use crate::{
    emit::{header, lose, now, pid_tgid, send},
    maps::{CONN_POLICY, FDS, LATE, PENDING},
    state::Pending,
    targets::{is_on, target},
};

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOCK_STREAM: u64 = 1;
const SOCK_TYPE_MASK: u64 = 0xf;
const F_DUPFD: u64 = 0;
const F_DUPFD_CLOEXEC: u64 = 1030;
const CLOSE_RANGE_CLOEXEC: u64 = 4;
const PROT_EXEC: u64 = 4;
const EINPROGRESS: i64 = 115;

/// Class of a descriptor that the map does not hold. Above every [`Class`].
const NOT_FOUND: u32 = u32::MAX;

/// Every system call's entry.
#[raw_tracepoint]
pub fn sys_enter(ctx: RawTracePointContext) -> u32 {
    try_sys_enter(&ctx);
    0
}

#[inline(always)]
fn try_sys_enter(ctx: &RawTracePointContext) -> Option<()> {
    let op = op(ctx.arg::<u64>(1));
    if op == Op::Ignored as u8 {
        return None;
    }
    let ids = pid_tgid();
    let known = target(ids);
    if known.is_none() && !(op == Op::Mmap as u8 && is_on(Setting::AllMaps)) {
        return None;
    }
    let target = known.unwrap_or(Target { capture_len: 0, flags: 0 });
    if target.flags & TARGET_CUDA != 0 {
        cuda::flush(ids);
    }
    if op == Op::Waits as u8 {
        return None;
    }
    let regs = ctx.arg::<u64>(0) as usize + REGS_AT;
    // SAFETY: the raw tracepoint's first argument points to the registers.
    let args = unsafe { bpf_probe_read_kernel(regs as *const Regs) }.ok()?.args();
    let mut pending = new_pending(op, now(), args, &target);
    if enter(ids, &mut pending).is_some() && PENDING.insert(&ids, &pending, 0).is_err() {
        lose(Loss::MapSyscall, 1);
    }
    Some(())
}

/// What is to be done at entry; `Some` where the exit matters too.
#[inline(always)]
fn enter(ids: u64, p: &mut Pending) -> Option<()> {
    let op = p.op;
    if op <= Op::Sendmmsg as u8 {
        follow(p, &lookup_or_add(ids, p.fd))
    } else if op == Op::Sendfile as u8 {
        follow(p, &lookup_or_add(ids, p.fd))
    } else if op == Op::Splice as u8 {
        enter_splice(ids, p)
    } else if op == Op::Close as u8 {
        forget_fd(ids, p.fd, p.enter_ns);
        None
    } else if op == Op::Dup as u8 || op == Op::Dup2 as u8 {
        enter_dup(ids, p)
    } else if op == Op::Fcntl as u8 {
        if p.args[1] != F_DUPFD && p.args[1] != F_DUPFD_CLOEXEC {
            return None;
        }
        enter_dup(ids, p)
    } else if op == Op::CloseRange as u8 {
        if p.args[2] & CLOSE_RANGE_CLOEXEC == 0 {
            let header =
                header(Kind::SocketCloseRange, 0, size_of::<CloseRange>(), ids, p.enter_ns);
            let (first, last) = (p.args[0] as u32, p.args[1] as u32);
            send(CloseRange { header, first, last }, Loss::RingSocket);
        }
        None
    } else if op == Op::Mmap as u8 {
        // A file mapped as executable: arguments three (protection) and five (descriptor).
        (p.args[2] & PROT_EXEC != 0 && (p.args[4] as i32) >= 0).then_some(())
    } else if op == Op::Shutdown as u8 || op == Op::Connect as u8 {
        let info = lookup_or_add(ids, p.fd);
        p.conn_id = info.conn_id;
        p.class = info.class as u8;
        (p.class < Class::Other as u8).then_some(())
    } else {
        Some(())
    }
}

/// Takes over what is known of the descriptor; `None` where nothing of it is wanted.
#[inline(always)]
fn follow(p: &mut Pending, info: &FdInfo) -> Option<()> {
    if info.class >= Class::Other as u32 {
        return None;
    }
    p.conn_id = info.conn_id;
    p.class = info.class as u8;
    if p.class == Class::Unknown as u8 {
        p.flags |= IO_UNKNOWN_FD;
    }
    if p.class == Class::Unix as u8 {
        p.capture_len = 0;
    }
    // SAFETY: plain data.
    if let Some(policy) = unsafe { CONN_POLICY.get(&info.conn_id) } {
        if policy.ignore != 0 {
            return None;
        }
        p.capture_len = p.capture_len.min(policy.capture_len);
    }
    Some(())
}

#[inline(never)]
fn enter_splice(ids: u64, p: &mut Pending) -> Option<()> {
    let out_fd = p.args[2] as i32;
    let info = lookup(ids, out_fd);
    if info.class < Class::Other as u32 {
        p.fd = out_fd;
        p.args[3] = 1; // the socket is the output
        return follow(p, &info);
    }
    p.args[3] = 0;
    follow(p, &lookup(ids, p.fd))
}

#[inline(never)]
fn enter_dup(ids: u64, p: &mut Pending) -> Option<()> {
    let info = lookup(ids, p.fd);
    let new_fd = p.args[1] as i32;
    if p.op == Op::Dup2 as u8 && new_fd != p.fd {
        forget_fd(ids, new_fd, p.enter_ns);
    }
    if info.class == NOT_FOUND {
        return None;
    }
    p.conn_id = info.conn_id;
    p.class = info.class as u8;
    Some(())
}

/// What is known of the descriptor; class [`NOT_FOUND`] where nothing is. (An `Option` of a struct
/// leaves registers undefined that the verifier then sees copied.)
#[inline(always)]
fn lookup(ids: u64, fd: i32) -> FdInfo {
    let key = FdKey { tgid: (ids >> 32) as u32, fd };
    // SAFETY: plain data.
    match unsafe { FDS.get(&key) } {
        Some(info) => *info,
        None => FdInfo { conn_id: 0, made_ns: 0, class: NOT_FOUND, pad: 0 },
    }
}

/// What the descriptor is. One never seen is traced as [`Class::Unknown`] until user space has
/// looked.
#[inline(always)]
fn lookup_or_add(ids: u64, fd: i32) -> FdInfo {
    let info = lookup(ids, fd);
    if info.class != NOT_FOUND || fd < 0 {
        return info;
    }
    let info = fd_info(new_id(), Class::Unknown as u32);
    remember_fd(ids, fd, &info);
    info
}

#[inline(always)]
fn fd_info(conn_id: u64, class: u32) -> FdInfo {
    FdInfo { conn_id, made_ns: now(), class, pad: 0 }
}

#[inline(never)]
fn remember_fd(ids: u64, fd: i32, info: &FdInfo) {
    let key = FdKey { tgid: (ids >> 32) as u32, fd };
    if FDS.insert(&key, info, 0).is_err() {
        lose(Loss::MapFd, 1);
    }
}

/// The descriptor is about to be free for somebody else.
#[inline(never)]
fn forget_fd(ids: u64, fd: i32, time_ns: u64) {
    let key = FdKey { tgid: (ids >> 32) as u32, fd };
    let info = lookup(ids, fd);
    if info.class == NOT_FOUND {
        return;
    }
    let _ = FDS.remove(&key);
    if info.class < Class::Other as u32 {
        let header = header(Kind::SocketClose, 0, size_of::<Close>(), ids, time_ns);
        send(Close { header, conn_id: info.conn_id, fd, pad: 0 }, Loss::RingSocket);
    }
}

/// Unique since boot: time and processor. Bit 63 stays free for user space's own.
#[inline(always)]
fn new_id() -> u64 {
    // SAFETY: the helper takes no arguments.
    let cpu = u64::from(unsafe { bpf_get_smp_processor_id() });
    (now() << 10 | cpu & 0x3ff) & !tracer_ebpf::wire::policy::CONN_ID_FROM_USER
}

/// Every system call's exit.
#[raw_tracepoint]
pub fn sys_exit(ctx: RawTracePointContext) -> u32 {
    try_sys_exit(&ctx);
    0
}

#[inline(always)]
fn try_sys_exit(ctx: &RawTracePointContext) -> Option<()> {
    let nr_at = ctx.arg::<u64>(0) as usize + NR_AT;
    // SAFETY: the raw tracepoint's first argument points to the registers.
    let op = op(unsafe { bpf_probe_read_kernel(nr_at as *const u64) }.ok()?);
    if op == Op::Ignored as u8 || op == Op::Waits as u8 || op == Op::Close as u8 {
        return None;
    }
    let ids = pid_tgid();
    // SAFETY: the entry is this thread's own; it is copied before it is removed.
    let mut p = match unsafe { PENDING.get(&ids) } {
        Some(p) => *p,
        None => return late_exit(ids, op, ctx.arg::<u64>(0), ctx.arg::<u64>(1) as i64),
    };
    let _ = PENDING.remove(&ids);
    if p.op != op {
        return None;
    }
    leave(ids, &mut p, ctx.arg::<u64>(1) as i64)
}

/// A call that was entered before tracing began: a server that waits in `accept` or `recv` when we
/// attach would otherwise lose its next request. The registers still hold the arguments.
#[inline(never)]
fn late_exit(ids: u64, op: u8, regs: u64, ret: i64) -> Option<()> {
    let tid = ids as u32;
    // SAFETY: plain data.
    unsafe { LATE.get(&tid) }?;
    let _ = LATE.remove(&tid);
    let late = op <= Op::Splice as u8 || op == Op::Accept as u8 || op == Op::Connect as u8;
    let target = target(ids)?;
    if !late || ret < 0 {
        return None;
    }
    let at = regs as usize + REGS_AT;
    // SAFETY: the raw tracepoint's first argument points to the registers.
    let args = unsafe { bpf_probe_read_kernel(at as *const Regs) }.ok()?.args();
    let mut p = new_pending(op, 0, args, &target);
    enter(ids, &mut p)?;
    leave(ids, &mut p, ret)
}

#[inline(always)]
fn new_pending(op: u8, enter_ns: u64, args: [u64; 5], target: &Target) -> Pending {
    Pending {
        enter_ns,
        conn_id: 0,
        args,
        fd: args[0] as i32,
        capture_len: target.capture_len,
        flags: 0,
        op,
        class: Class::Unknown as u8,
        pad: 0,
    }
}

#[inline(never)]
fn leave(ids: u64, p: &mut Pending, ret: i64) -> Option<()> {
    let op = p.op;
    let time_ns = now();
    if op <= Op::Splice as u8 {
        io::exit_io(ids, p, ret, time_ns)
    } else if op == Op::Accept as u8 {
        exit_accept(ids, p, ret, time_ns)
    } else if op == Op::Connect as u8 {
        exit_connect(ids, p, ret, time_ns)
    } else {
        exit_other(ids, p, ret, time_ns)
    }
}

#[inline(never)]
fn exit_other(ids: u64, p: &Pending, ret: i64, time_ns: u64) -> Option<()> {
    if ret < 0 {
        return None;
    }
    let op = p.op;
    let other = fd_info(0, Class::Other as u32);
    if op == Op::Dup as u8 || op == Op::Dup2 as u8 || op == Op::Fcntl as u8 {
        let new_fd = ret as i32;
        let info = fd_info(p.conn_id, u32::from(p.class));
        remember_fd(ids, new_fd, &info);
        if p.class < Class::Other as u8 {
            let header = header(Kind::SocketDup, 0, size_of::<Dup>(), ids, time_ns);
            let record = Dup { header, conn_id: p.conn_id, old_fd: p.fd, new_fd };
            send(record, Loss::RingSocket);
        }
    } else if op == Op::Socket as u8 {
        let class = socket_class(p.args[0] as u16, p.args[1]);
        let conn_id = if class == Class::Other { 0 } else { new_id() };
        remember_fd(ids, ret as i32, &fd_info(conn_id, class as u32));
    } else if op == Op::Opens as u8 {
        remember_fd(ids, ret as i32, &other);
    } else if op == Op::OpensPair as u8 || op == Op::OpensSocketPair as u8 {
        let at = if op == Op::OpensPair as u8 { p.args[0] } else { p.args[3] };
        // SAFETY: the helper checks the user address.
        let pair = unsafe { bpf_probe_read_user(at as *const [i32; 2]) }.ok()?;
        remember_fd(ids, pair[0], &other);
        remember_fd(ids, pair[1], &other);
    } else if op == Op::Shutdown as u8 {
        let header = header(Kind::SocketShutdown, 0, size_of::<Shutdown>(), ids, time_ns);
        let how = p.args[1] as u32;
        send(Shutdown { header, conn_id: p.conn_id, fd: p.fd, how }, Loss::RingSocket);
    } else if op == Op::Listen as u8 {
        let header = header(Kind::SocketListen, 0, size_of::<Listen>(), ids, time_ns);
        let backlog = p.args[1] as u32;
        send(Listen { header, fd: p.fd, backlog }, Loss::RingSocket);
    } else if op == Op::Mmap as u8 {
        let header = header(Kind::MapExec, 0, size_of::<MapExec>(), ids, time_ns);
        send(MapExec { header, address: ret as u64 }, Loss::RingProcess);
    }
    Some(())
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
fn exit_accept(ids: u64, p: &Pending, ret: i64, time_ns: u64) -> Option<()> {
    if ret < 0 {
        return None;
    }
    let peer = sockaddr(p.args[1]);
    let listener = lookup(ids, p.fd);
    let unix = peer.family == AF_UNIX || peer.family == 0 && listener.class == Class::Unix as u32;
    let class = if unix { Class::Unix } else { Class::TcpServer };
    let info = fd_info(new_id(), class as u32);
    remember_fd(ids, ret as i32, &info);
    let record = Accept {
        header: header(Kind::SocketAccept, 0, size_of::<Accept>(), ids, time_ns),
        enter_ns: p.enter_ns,
        conn_id: info.conn_id,
        peer,
        listen_fd: p.fd,
        fd: ret as i32,
    };
    send(record, Loss::RingSocket);
    Some(())
}

#[inline(never)]
fn exit_connect(ids: u64, p: &Pending, ret: i64, time_ns: u64) -> Option<()> {
    let peer = sockaddr(p.args[1]);
    if ret == 0 || ret == -EINPROGRESS {
        let class = if peer.family == AF_UNIX { Class::Unix } else { Class::TcpClient };
        remember_fd(ids, p.fd, &fd_info(p.conn_id, class as u32));
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
    Some(())
}
