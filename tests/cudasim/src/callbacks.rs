//! Host functions: run one after another, each at its turn in its stream, on a thread of the
//! driver's own.

use std::sync::{Condvar, Once, PoisonError};
use std::time::Duration;

use crate::clock::now;
use crate::effects;
use crate::process::{spawn, thread};
use crate::sim::{lock, notify_settled};
use crate::stubs;

static DUE: Condvar = Condvar::new();

/// A host function was enqueued: sees to it that somebody will run it.
pub fn enqueued() {
    static THREAD: Once = Once::new();
    THREAD.call_once(|| {
        stubs::callbacks_exist();
        spawn("cudasim-host", run_for_ever);
    });
    DUE.notify_one();
}

fn run_for_ever() {
    thread(|t| t.in_callback.set(true));
    // SAFETY: takes integers; without it every callback would start up to 50 µs late.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    let mut sim = lock();
    loop {
        let Some(due) = sim.schedule.next_due() else {
            sim = DUE.wait(sim).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let time = now();
        if due.ready.end > time {
            let rest = Duration::from_nanos(due.ready.end - time);
            sim = DUE.wait_timeout(sim, rest).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        drop(sim);
        effects::finish(due.ready.effects);
        let start = now();
        // SAFETY: the program gave the function and its argument for exactly this call.
        unsafe {
            if let Some(func) = due.call.func {
                func(due.call.data);
            }
            if let Some(callback) = due.call.callback {
                callback(due.call.stream, 0, due.call.data);
            }
        }
        let end = now();
        sim = lock();
        sim.schedule.host_returned(due.id, start, end);
        notify_settled();
    }
}
