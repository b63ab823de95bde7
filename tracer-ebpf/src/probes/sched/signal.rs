//! What threads wake each other with: pipes, `eventfd`s, `socketpair`s, and who watches them.

use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    sched::{EpollCtl, Signal},
};

use crate::{
    emit::{header, send},
    probes::{
        fds::{lookup_or_add, object},
        syscall::Op,
    },
    state::Pending,
};

const EAGAIN: i64 = 11;

/// The exit of a call that moved bytes through one of them. Those that put them in have even
/// numbers, but for `sendfile`.
#[inline(never)]
pub fn exit(ids: u64, p: &Pending, ret: i64, time_ns: u64) {
    if ret == -EAGAIN {
        return;
    }
    let record = Signal {
        header: header(Kind::SchedSignal, 0, size_of::<Signal>(), ids, time_ns),
        enter_ns: p.enter_ns,
        object: p.conn_id,
        ret,
        fd: p.fd,
        written: u8::from(p.op & 1 == 0 || p.op == Op::Sendfile as u8),
        class: p.class,
        pad: [0; 2],
    };
    send(record, Loss::RingSched);
}

/// The exit of `epoll_ctl`. A descriptor that is watched before anything moved through it gets its
/// identity here.
#[inline(never)]
pub fn exit_epoll_ctl(ids: u64, p: &Pending, ret: i64, time_ns: u64) {
    if ret < 0 {
        return;
    }
    let fd = p.args[2] as i32;
    let record = EpollCtl {
        header: header(Kind::SchedEpollCtl, 0, size_of::<EpollCtl>(), ids, time_ns),
        epoll: object(ids, p.fd),
        object: lookup_or_add(ids, fd).conn_id,
        epoll_fd: p.fd,
        fd,
        op: p.args[1] as u32,
        pad: 0,
    };
    send(record, Loss::RingSched);
}
