//! Events: records, questions, waiting, elapsed time.

use std::ffi::c_uint;

use crate::abi::{Handle, Out};
use crate::capture;
use crate::clock::{Waiting, now};
use crate::error::{CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, Res};
use crate::event::{DISABLE_TIMING, Event, Last};
use crate::oracle::Kind;
use crate::schedule::{After, When, Work};
use crate::sim::{Sim, lock, wait};
use crate::stream::admit;
use crate::stubs::{Site, exports};

exports! {
    cuEventCreate@2000 fn(_s, out: Out<Handle>, flags: c_uint) => create(out, flags);
    cuEventDestroy@2000, cuEventDestroy_v2@4000 fn(_s, event: Handle) =>
        lock().events.remove(event).map(drop);
    cuEventRecord@2000, cuEventRecord_ptsz@7000 fn(s, event: Handle, stream: Handle) =>
        record(s, event, stream, 0);
    cuEventRecordWithFlags@11010, cuEventRecordWithFlags_ptsz@11010
        fn(s, event: Handle, stream: Handle, flags: c_uint) => record(s, event, stream, flags);
    cuEventQuery@2000 fn(_s, event: Handle) => query(event);
    cuEventSynchronize@2000 fn(_s, event: Handle) => synchronize(event);
    cuEventElapsedTime@2000, cuEventElapsedTime_v2@12080
        fn(_s, ms: Out<f32>, start: Handle, end: Handle) => elapsed(ms, start, end);
}

/// `CU_EVENT_BLOCKING_SYNC`.
const BLOCKING_SYNC: u32 = 1;
/// `CU_EVENT_RECORD_EXTERNAL`.
const EXTERNAL: u32 = 1;

fn create(out: Out<Handle>, flags: c_uint) -> Res {
    // Interprocess events are not simulated.
    if flags > 7 || flags & 4 != 0 {
        return Err(if flags > 7 { INVALID_VALUE } else { NOT_SUPPORTED });
    }
    out.check()?;
    let mut sim = lock();
    let ctx = sim.current()?;
    let event = sim.events.add(Event { ctx, flags, last: Last::Never });
    out.put(event)
}

fn record(site: &Site, event: Handle, stream: Handle, flags: c_uint) -> Res {
    if flags > EXTERNAL {
        return Err(INVALID_VALUE);
    }
    let mut sim = lock();
    let ctx = sim.events.get(event)?.ctx;
    let stream = sim.stream(stream, site.per_thread)?;
    if sim.streams.get(stream)?.ctx != ctx {
        return Err(INVALID_HANDLE);
    }
    sim.usable(ctx)?;
    if capture::active(&mut sim, stream)? {
        if flags == EXTERNAL {
            return Err(NOT_SUPPORTED);
        }
        if let Some((capture, nodes)) = sim.streams.get(stream)?.capture.clone() {
            sim.events.get_mut(event)?.last = Last::Captured { capture, nodes };
        }
        return Ok(());
    }
    let mut sim = admit(sim, stream)?;
    let work = Work { event, ..Work::marker(Kind::Record) };
    if let Some(when) = sim.enqueue(stream, work)? {
        sim.events.get_mut(event)?.last = Last::Recorded(when);
    }
    Ok(())
}

/// The event's last record outside a capture; asking about one inside is an error.
fn recorded(sim: &Sim, event: Handle) -> Res<Option<When>> {
    match &sim.events.get(event)?.last {
        Last::Never => Ok(None),
        Last::Recorded(when) => Ok(Some(when.clone())),
        Last::Captured { .. } => Err(CAPTURED_EVENT),
    }
}

fn query(event: Handle) -> Res {
    let mut sim = lock();
    sim.usable(sim.events.get(event)?.ctx)?;
    capture::refuse_unsafe(&mut sim)?;
    match recorded(&sim, event)? {
        Some(when) if !when.complete(now()) => Err(NOT_READY),
        _ => Ok(()),
    }
}

fn synchronize(event: Handle) -> Res {
    let mut sim = lock();
    let e = sim.events.get(event)?;
    let (ctx, flags) = (e.ctx, e.flags);
    sim.usable(ctx)?;
    capture::refuse_unsafe(&mut sim)?;
    let mut after = After::default();
    if let Some(when) = recorded(&sim, event)? {
        after.add(&when);
    }
    let how = if flags & BLOCKING_SYNC != 0 { Waiting::Block } else { sim.waiting(ctx) };
    drop(sim);
    wait(&after, how);
    lock().usable(ctx).map(drop)
}

fn elapsed(ms: Out<f32>, start: Handle, end: Handle) -> Res {
    ms.check()?;
    let sim = lock();
    for event in [start, end] {
        let e = sim.events.get(event)?;
        sim.usable(e.ctx)?;
        if e.flags & DISABLE_TIMING != 0 {
            return Err(INVALID_HANDLE);
        }
    }
    let from = recorded(&sim, start)?.ok_or(INVALID_HANDLE)?;
    let to = recorded(&sim, end)?.ok_or(INVALID_HANDLE)?;
    let time = now();
    match (from.known(), to.known()) {
        (Some(a), Some(b)) if from.complete(time) && to.complete(time) => {
            ms.put((b.end as f64 - a.end as f64) as f32 / 1e6)
        }
        _ => Err(NOT_READY),
    }
}
