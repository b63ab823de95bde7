//! The targets' descriptors: what each names, and under which identity.

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    policy::{CONN_ID_FROM_USER, Class, FdInfo, FdKey},
    sched::OTHER_END,
    socket::Close,
};

use crate::{
    emit::{header, lose, now, send},
    maps::FDS,
};

/// Class of a descriptor that the map does not hold. Above every [`Class`].
pub const NOT_FOUND: u32 = u32::MAX;

/// Whether requests may come through it: it is a socket, or nobody knows yet.
#[inline(always)]
pub fn carries(class: u32) -> bool {
    class <= Class::Tcp as u32
}

/// Whether threads wake each other with it.
#[inline(always)]
pub fn signals(class: u32) -> bool {
    class >= Class::Pipe as u32 && class <= Class::Pair as u32
}

/// What is known of the descriptor; class [`NOT_FOUND`] where nothing is. (An `Option` of a struct
/// leaves registers undefined that the verifier then sees copied.)
#[inline(always)]
pub fn lookup(ids: u64, fd: i32) -> FdInfo {
    let key = FdKey { tgid: (ids >> 32) as u32, fd };
    // SAFETY: plain data.
    match unsafe { FDS.get(&key) } {
        Some(info) => *info,
        None => FdInfo { conn_id: 0, made_ns: 0, class: NOT_FOUND, pad: 0 },
    }
}

/// Identity of what the descriptor names, 0 where that is nothing that is followed.
#[inline(always)]
pub fn object(ids: u64, fd: i32) -> u64 {
    let key = FdKey { tgid: (ids >> 32) as u32, fd };
    // SAFETY: plain data.
    match unsafe { FDS.get(&key) } {
        Some(info) => info.conn_id,
        None => 0,
    }
}

/// What the descriptor is. One never seen is traced as [`Class::Unknown`] until user space has
/// looked.
#[inline(always)]
pub fn lookup_or_add(ids: u64, fd: i32) -> FdInfo {
    let info = lookup(ids, fd);
    if info.class != NOT_FOUND || fd < 0 {
        return info;
    }
    let info = fd_info(new_id(), Class::Unknown as u32);
    remember(ids, fd, &info);
    info
}

/// A descriptor that is opened now.
#[inline(always)]
pub fn fd_info(conn_id: u64, class: u32) -> FdInfo {
    FdInfo { conn_id, made_ns: now(), class, pad: 0 }
}

#[inline(never)]
pub fn remember(ids: u64, fd: i32, info: &FdInfo) {
    let key = FdKey { tgid: (ids >> 32) as u32, fd };
    if FDS.insert(&key, info, 0).is_err() {
        lose(Loss::MapFd, 1);
    }
}

/// The descriptor is about to be free for somebody else. Returns the identity of what it named.
#[inline(never)]
pub fn forget(ids: u64, fd: i32, time_ns: u64) -> u64 {
    let key = FdKey { tgid: (ids >> 32) as u32, fd };
    let info = lookup(ids, fd);
    if info.class == NOT_FOUND {
        return 0;
    }
    let _ = FDS.remove(&key);
    if carries(info.class) {
        let header = header(Kind::SocketClose, 0, size_of::<Close>(), ids, time_ns);
        send(Close { header, conn_id: info.conn_id, fd, pad: 0 }, Loss::RingSocket);
    }
    info.conn_id
}

/// Unique since boot (for 52 days: then the nanoseconds come round): time and processor. Bit 63
/// stays free for user space's own, bit 62 for the other end.
#[inline(always)]
pub fn new_id() -> u64 {
    // SAFETY: the helper takes no arguments.
    let cpu = u64::from(unsafe { bpf_get_smp_processor_id() });
    (now() << 10 | cpu & 0x3ff) & !(CONN_ID_FROM_USER | OTHER_END)
}
