//! Streaks of `sched_yield`: where they begin and end, and never every yield.

use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    sched::{Call, Yields},
};

use crate::{
    emit::{header, send},
    state::{Thread, Yielding},
};

/// A thread that ran for longer than this between two yields has done something, ns. As long an
/// absence inside a yield is told of.
const PAUSE_NS: u64 = 200_000;

/// The thread yields.
#[inline(always)]
pub fn note(ids: u64, thread: &mut Thread, time_ns: u64) {
    let since = thread.yields.last_ns.max(thread.yields.back_ns);
    if thread.yields.count != 0 && time_ns.saturating_sub(since) > PAUSE_NS {
        tell(ids, thread, time_ns);
    }
    let yields = &mut thread.yields;
    if yields.count == 0 {
        *yields = Yielding { first_ns: time_ns, last_ns: time_ns, back_ns: time_ns, count: 0 };
    }
    yields.last_ns = time_ns;
    yields.count += 1;
}

/// A thread with a streak is back on a processor; `true` where it left it in a yield, for so short
/// a time that the streak stands for it.
#[inline(always)]
pub fn back(thread: &mut Thread, out_ns: u64, time_ns: u64) -> bool {
    thread.yields.back_ns = time_ns;
    thread.call == Call::Yield as u8
        && thread.left == 0
        && time_ns.saturating_sub(out_ns) < PAUSE_NS
}

/// The streak is over.
#[inline(never)]
pub fn tell(ids: u64, thread: &mut Thread, time_ns: u64) {
    let yields = &mut thread.yields;
    let record = Yields {
        header: header(Kind::SchedYields, 0, size_of::<Yields>(), ids, time_ns),
        first_ns: yields.first_ns,
        last_ns: yields.last_ns,
        count: yields.count,
    };
    send(record, Loss::RingSched);
    yields.count = 0;
}
