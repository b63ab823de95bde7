//! Streams: making, asking, waiting, and host functions in them.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{CUdevice, Handle, HostFn, In, Out, StreamCallback};
use crate::capture;
use crate::clock::now;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Res};
use crate::event::Last;
use crate::oracle::Kind;
use crate::schedule::{After, HostCall, Work};
use crate::sim::{Sim, lock, wait};
use crate::stream::admit;
use crate::stubs::{Site, exports};

exports! {
    cuStreamCreate@2000 fn(_s, out: Out<Handle>, flags: c_uint) => create(out, flags, 0);
    cuStreamCreateWithPriority@5050 fn(_s, out: Out<Handle>, flags: c_uint, priority: c_int) =>
        create(out, flags, priority);
    cuStreamDestroy@2000, cuStreamDestroy_v2@4000 fn(_s, stream: Handle) => destroy(stream);
    cuStreamSynchronize@2000, cuStreamSynchronize_ptsz@7000 fn(s, stream: Handle) =>
        synchronize(s, stream);
    cuStreamQuery@2000, cuStreamQuery_ptsz@7000 fn(s, stream: Handle) => query(s, stream);
    cuStreamWaitEvent@3020, cuStreamWaitEvent_ptsz@7000
        fn(s, stream: Handle, event: Handle, flags: c_uint) => wait_event(s, stream, event, flags);
    cuStreamGetCtx@9020, cuStreamGetCtx_ptsz@9020 fn(s, stream: Handle, ctx: Out<Handle>) => {
        let mut sim = lock();
        let stream = sim.stream(stream, s.per_thread)?;
        ctx.put(sim.streams.get(stream)?.ctx)
    };
    cuStreamGetCtx_v2@12050, cuStreamGetCtx_v2_ptsz@12050
        fn(s, stream: Handle, ctx: Out<Handle>, green: Out<Handle>) => {
        let mut sim = lock();
        let stream = sim.stream(stream, s.per_thread)?;
        green.put_if(0);
        ctx.put(sim.streams.get(stream)?.ctx)
    };
    cuStreamGetDevice@12080, cuStreamGetDevice_ptsz@12080
        fn(s, stream: Handle, dev: Out<CUdevice>) => {
        let mut sim = lock();
        let stream = sim.stream(stream, s.per_thread)?;
        dev.put(sim.contexts.get(sim.streams.get(stream)?.ctx)?.device)
    };
    cuStreamGetFlags@5050, cuStreamGetFlags_ptsz@7000 fn(s, stream: Handle, out: Out<c_uint>) => {
        let mut sim = lock();
        let stream = sim.stream(stream, s.per_thread)?;
        out.put(sim.streams.get(stream)?.flags)
    };
    cuStreamGetPriority@5050, cuStreamGetPriority_ptsz@7000
        fn(s, stream: Handle, out: Out<c_int>) => {
        let mut sim = lock();
        let stream = sim.stream(stream, s.per_thread)?;
        out.put(sim.streams.get(stream)?.priority)
    };
    cuStreamGetId@12000, cuStreamGetId_ptsz@12000 fn(s, stream: Handle, id: Out<u64>) => {
        let stream = lock().stream(stream, s.per_thread)?;
        id.put(stream >> 4 & 0xfff_ffff)
    };
    cuStreamAddCallback@5000, cuStreamAddCallback_ptsz@7000
        fn(s, stream: Handle, callback: StreamCallback, data: *mut c_void, flags: c_uint) => {
        if flags != 0 || callback.is_none() {
            return Err(INVALID_VALUE);
        }
        host(s, HostCall { func: None, callback, stream, data })
    };
    cuLaunchHostFunc@10000, cuLaunchHostFunc_ptsz@10000
        fn(s, stream: Handle, func: HostFn, data: *mut c_void) => {
        if func.is_none() {
            return Err(INVALID_VALUE);
        }
        host(s, HostCall { func, callback: None, stream, data })
    };
    cuStreamAttachMemAsync@6000, cuStreamAttachMemAsync_ptsz@7000
        fn(s, stream: Handle, _at: u64, _length: usize, _flags: c_uint) =>
        lock().stream(stream, s.per_thread).map(drop);
    cuStreamGetAttribute@11000, cuStreamGetAttribute_ptsz@11000
        fn(s, stream: Handle, _attribute: c_int, value: Out<[u64; 8]>) => {
        lock().stream(stream, s.per_thread)?;
        value.put([0; 8])
    };
    cuStreamSetAttribute@11000, cuStreamSetAttribute_ptsz@11000
        fn(s, stream: Handle, _attribute: c_int, _value: In<u64>) =>
        lock().stream(stream, s.per_thread).map(drop);
    cuStreamCopyAttributes@11000, cuStreamCopyAttributes_ptsz@11000
        fn(s, dst: Handle, src: Handle) => {
        let mut sim = lock();
        sim.stream(dst, s.per_thread)?;
        sim.stream(src, s.per_thread).map(drop)
    };
}

/// Priorities outside the range are brought into it, as documented.
fn create(out: Out<Handle>, flags: c_uint, priority: c_int) -> Res {
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    out.check()?;
    let stream = lock().new_stream(flags, priority.clamp(-5, 0))?;
    out.put(stream)
}

/// The handle goes at once, what is enqueued still runs.
fn destroy(stream: Handle) -> Res {
    if stream <= 2 {
        return Err(INVALID_HANDLE);
    }
    let mut sim = lock();
    if sim.streams.get(stream)?.capture.is_some() {
        let _ = capture::refuse(&mut sim, stream);
    }
    sim.streams.remove(stream).map(drop)
}

impl Sim {
    /// What somebody who waits for a stream waits for.
    fn all_of(&self, stream: Handle) -> Res<After> {
        let s = self.streams.get(stream)?;
        if s.is_legacy() {
            // It stands for all blocking streams.
            return self.order(stream);
        }
        let mut after = After::default();
        after.add(&s.tail);
        Ok(after)
    }
}

fn synchronize(site: &Site, stream: Handle) -> Res {
    let mut sim = lock();
    let stream = sim.stream(stream, site.per_thread)?;
    let ctx = sim.streams.get(stream)?.ctx;
    sim.usable(ctx)?;
    capture::refuse(&mut sim, stream)?;
    let after = sim.all_of(stream)?;
    let how = sim.waiting(ctx);
    drop(sim);
    wait(&after, how);
    lock().usable(ctx).map(drop)
}

fn query(site: &Site, stream: Handle) -> Res {
    let mut sim = lock();
    let stream = sim.stream(stream, site.per_thread)?;
    sim.usable(sim.streams.get(stream)?.ctx)?;
    capture::refuse(&mut sim, stream)?;
    let after = sim.all_of(stream)?;
    if after.complete(now()) { Ok(()) } else { Err(NOT_READY) }
}

fn wait_event(site: &Site, stream: Handle, event: Handle, flags: c_uint) -> Res {
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let mut sim = lock();
    let last = sim.events.get(event)?.last.clone();
    let stream = sim.stream(stream, site.per_thread)?;
    sim.usable(sim.streams.get(stream)?.ctx)?;
    if capture::wait_event(&mut sim, stream, &last)? {
        return Ok(());
    }
    // The legacy stream may not wait while a blocking one captures.
    capture::active(&mut sim, stream)?;
    let mut sim = admit(sim, stream)?;
    match last {
        Last::Recorded(when) => {
            let mut extra = After::default();
            extra.add(&when);
            let work = Work { event, ..Work::marker(Kind::Wait) };
            sim.enqueue_after(stream, work, &extra).map(drop)
        }
        // Nothing recorded: nothing to wait for.
        Last::Never | Last::Captured { .. } => Ok(()),
    }
}

fn host(site: &Site, call: HostCall) -> Res {
    let mut sim = lock();
    let stream = sim.stream(call.stream, site.per_thread)?;
    sim.usable(sim.streams.get(stream)?.ctx)?;
    let mut sim = admit(sim, stream)?;
    let work = Work { host: Some(call), ..Work::marker(Kind::Host) };
    sim.enqueue(stream, work).map(drop)
}
