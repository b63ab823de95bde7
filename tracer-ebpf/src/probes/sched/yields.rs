//! Streaks of `sched_yield`: where they begin and end, and never every yield.

use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    sched::{Call, YIELDS_GO_ON, Yields},
};

use crate::{
    emit::{header, send},
    state::{Thread, Yielding},
};

/// A thread that ran for longer than this between two yields has done something, ns. As long an
/// absence inside a yield is told of.
const PAUSE_NS: u64 = 200_000;
/// A streak that lasts for longer is told of before it ends, once, ns.
const LASTING_NS: u64 = 5_000_000;

/// The thread yields.
#[inline(always)]
pub fn note(ids: u64, thread: &mut Thread, time_ns: u64) {
    let since = thread.yields.last_ns.max(thread.yields.back_ns);
    if thread.yields.count != 0 && time_ns.saturating_sub(since) > PAUSE_NS {
        tell(ids, thread, time_ns);
    }
    let yields = &mut thread.yields;
    if yields.count == 0 {
        let (first_ns, last_ns, back_ns) = (time_ns, time_ns, time_ns);
        *yields = Yielding { first_ns, last_ns, back_ns, count: 0, told: 0 };
    }
    yields.last_ns = time_ns;
    yields.count += 1;
    if yields.told == 0 && time_ns.saturating_sub(yields.first_ns) > LASTING_NS {
        yields.told = 1;
        say(ids, thread, time_ns, YIELDS_GO_ON);
    }
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
#[inline(always)]
pub fn tell(ids: u64, thread: &mut Thread, time_ns: u64) {
    say(ids, thread, time_ns, 0);
    thread.yields.count = 0;
}

#[inline(never)]
fn say(ids: u64, thread: &mut Thread, time_ns: u64, flags: u16) {
    let yields = &thread.yields;
    let record = Yields {
        header: header(Kind::SchedYields, flags, size_of::<Yields>(), ids, time_ns),
        first_ns: yields.first_ns,
        last_ns: yields.last_ns,
        count: yields.count,
    };
    send(record, Loss::RingSched);
}
