//! Contexts: primary and created, the stack of current ones, synchronisation.

use std::ffi::{c_int, c_uint, c_void};

use super::device::check;
use crate::abi::{CUdevice, Handle, In, Out};
use crate::capture;
use crate::clock::sleep_us;
use crate::config::config;
use crate::error::{INVALID_CONTEXT, INVALID_VALUE, Res};
use crate::process::{current_context, thread};
use crate::sim::{lock, wait};
use crate::stubs::exports;

exports! {
    cuDevicePrimaryCtxRetain@7000 fn(_s, ctx: Out<Handle>, dev: CUdevice) => retain(ctx, dev);
    cuDevicePrimaryCtxRelease@7000, cuDevicePrimaryCtxRelease_v2@11000 fn(_s, dev: CUdevice) =>
        release(dev);
    cuDevicePrimaryCtxReset@7000, cuDevicePrimaryCtxReset_v2@11000 fn(_s, dev: CUdevice) =>
        reset(dev);
    cuDevicePrimaryCtxGetState@7000
        fn(_s, dev: CUdevice, flags: Out<c_uint>, active: Out<c_int>) => state(dev, flags, active);
    cuDevicePrimaryCtxSetFlags@7000, cuDevicePrimaryCtxSetFlags_v2@11000
        fn(_s, dev: CUdevice, flags: c_uint) => set_primary_flags(dev, flags);
    cuCtxCreate@2000, cuCtxCreate_v2@3020
        fn(_s, ctx: Out<Handle>, flags: c_uint, dev: CUdevice) => create(ctx, flags, dev);
    cuCtxCreate_v3@11040
        fn(_s, ctx: Out<Handle>, _affinity: In<u64>, _n: c_int, flags: c_uint, dev: CUdevice) =>
        create(ctx, flags, dev);
    cuCtxCreate_v4@12050
        fn(_s, ctx: Out<Handle>, _params: In<u64>, flags: c_uint, dev: CUdevice) =>
        create(ctx, flags, dev);
    cuCtxDestroy@2000, cuCtxDestroy_v2@4000 fn(_s, ctx: Handle) => destroy(ctx);
    cuCtxSetCurrent@4000 fn(_s, ctx: Handle) => set_current(ctx);
    cuCtxGetCurrent@4000 fn(_s, ctx: Out<Handle>) => ctx.put(current_context());
    cuCtxPushCurrent@2000, cuCtxPushCurrent_v2@4000 fn(_s, ctx: Handle) => push(ctx);
    cuCtxPopCurrent@2000, cuCtxPopCurrent_v2@4000 fn(_s, ctx: Out<Handle>) => pop(ctx);
    cuCtxGetDevice@2000 fn(_s, dev: Out<CUdevice>) => {
        let sim = lock();
        dev.put(sim.contexts.get(sim.current()?)?.device)
    };
    cuCtxGetFlags@7000 fn(_s, flags: Out<c_uint>) => {
        let sim = lock();
        flags.put(sim.contexts.get(sim.current()?)?.flags)
    };
    cuCtxSetFlags@12010 fn(_s, flags: c_uint) => {
        let mut sim = lock();
        let ctx = sim.current()?;
        sim.contexts.get_mut(ctx)?.flags = flags;
        Ok(())
    };
    cuCtxGetId@12000 fn(_s, ctx: Handle, id: Out<u64>) => {
        let sim = lock();
        let ctx = if ctx == 0 { sim.current()? } else { ctx };
        sim.usable(ctx)?;
        id.put(ctx >> 4 & 0xf_ffff | ctx >> 24 << 20)
    };
    cuCtxGetApiVersion@3020 fn(_s, ctx: Handle, version: Out<c_uint>) => {
        let sim = lock();
        sim.usable(if ctx == 0 { sim.current()? } else { ctx })?;
        version.put(3020)
    };
    cuCtxGetStreamPriorityRange@5050 fn(_s, least: Out<c_int>, greatest: Out<c_int>) => {
        lock().current()?;
        least.put_if(0);
        greatest.put_if(-5);
        Ok(())
    };
    cuCtxSynchronize@2000 fn(_s) => synchronize(None);
    cuCtxSynchronize_v2@13000 fn(_s, ctx: Handle) => synchronize(Some(ctx));
    cuCtxGetLimit@3010 fn(_s, value: Out<usize>, limit: c_int) => {
        lock().current()?;
        if !(0..=8).contains(&limit) {
            return Err(INVALID_VALUE);
        }
        value.put(if limit == 0 { 1024 } else { 8 << 20 })
    };
    cuCtxSetLimit@3010 fn(_s, _limit: c_int, _value: usize) => lock().current().map(drop);
    cuCtxGetCacheConfig@3020 fn(_s, out: Out<c_int>) => {
        lock().current()?;
        out.put(0)
    };
    cuCtxSetCacheConfig@3020 fn(_s, _config: c_int) => lock().current().map(drop);
    cuCtxGetSharedMemConfig@4020 fn(_s, out: Out<c_int>) => {
        lock().current()?;
        out.put(0)
    };
    cuCtxSetSharedMemConfig@4020 fn(_s, _config: c_int) => lock().current().map(drop);
    cuCtxResetPersistingL2Cache@11000 fn(_s) => lock().current().map(drop);
    cuCtxAttach@2000 fn(_s, _ctx: Out<*mut c_void>, _flags: c_uint) =>
        Err(crate::error::NOT_SUPPORTED);
    cuCtxDetach@2000 fn(_s, _ctx: Handle) => Err(crate::error::NOT_SUPPORTED);
}

fn retain(out: Out<Handle>, dev: CUdevice) -> Res {
    check(dev)?;
    out.check()?;
    let mut sim = lock();
    let flags = sim.primary_flags.get(&dev).copied().unwrap_or(0);
    let (ctx, uses) = match sim.primary.get(&dev).copied() {
        Some(known) => known,
        None => (sim.new_context(dev, flags, true), 0),
    };
    if uses == 0 && sim.contexts.get(ctx).is_ok_and(|c| !c.alive) {
        sim.revive(ctx);
        sim.contexts.get_mut(ctx)?.flags = flags;
    }
    sim.primary.insert(dev, (ctx, uses + 1));
    drop(sim);
    if uses == 0 {
        sleep_us(config().context_us);
    }
    out.put(ctx)
}

fn release(dev: CUdevice) -> Res {
    check(dev)?;
    let mut sim = lock();
    match sim.primary.get(&dev).copied() {
        Some((ctx, uses @ 1..)) => {
            sim.primary.insert(dev, (ctx, uses - 1));
            drop(sim);
            if uses == 1 { tear_down(ctx) } else { Ok(()) }
        }
        _ => Err(INVALID_CONTEXT),
    }
}

fn reset(dev: CUdevice) -> Res {
    check(dev)?;
    let mut sim = lock();
    let Some((ctx, _)) = sim.primary.get(&dev).copied() else { return Ok(()) };
    sim.primary.insert(dev, (ctx, 0));
    drop(sim);
    tear_down(ctx)
}

/// Lets a context's work end, then destroys what it has.
fn tear_down(ctx: Handle) -> Res {
    let sim = lock();
    let all = sim.contexts.get(ctx)?.all.clone();
    let how = sim.waiting(ctx);
    drop(sim);
    wait(&all, how);
    lock().empty_context(ctx);
    Ok(())
}

fn state(dev: CUdevice, flags: Out<c_uint>, active: Out<c_int>) -> Res {
    check(dev)?;
    let sim = lock();
    let uses = sim.primary.get(&dev).map_or(0, |p| p.1);
    flags.put(sim.primary_flags.get(&dev).copied().unwrap_or(0))?;
    active.put(c_int::from(uses > 0))
}

fn set_primary_flags(dev: CUdevice, flags: c_uint) -> Res {
    check(dev)?;
    let mut sim = lock();
    sim.primary_flags.insert(dev, flags);
    match sim.primary.get(&dev).copied() {
        Some((ctx, 1..)) => {
            sim.contexts.get_mut(ctx)?.flags = flags;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn create(out: Out<Handle>, flags: c_uint, dev: CUdevice) -> Res {
    check(dev)?;
    out.check()?;
    if flags & 7 > 4 {
        return Err(INVALID_VALUE);
    }
    let ctx = lock().new_context(dev, flags, false);
    sleep_us(config().context_us);
    thread(|t| t.contexts.borrow_mut().push(ctx));
    out.put(ctx)
}

fn destroy(ctx: Handle) -> Res {
    if lock().contexts.get(ctx)?.primary {
        return Err(INVALID_CONTEXT);
    }
    tear_down(ctx)?;
    lock().contexts.remove(ctx)?;
    thread(|t| {
        let mut stack = t.contexts.borrow_mut();
        if stack.last() == Some(&ctx) {
            stack.pop();
        }
    });
    Ok(())
}

fn set_current(ctx: Handle) -> Res {
    if ctx != 0 {
        lock().contexts.get(ctx)?;
    }
    thread(|t| {
        let mut stack = t.contexts.borrow_mut();
        stack.pop();
        if ctx != 0 {
            stack.push(ctx);
        }
    });
    Ok(())
}

fn push(ctx: Handle) -> Res {
    lock().contexts.get(ctx)?;
    thread(|t| t.contexts.borrow_mut().push(ctx));
    Ok(())
}

fn pop(out: Out<Handle>) -> Res {
    let ctx = thread(|t| t.contexts.borrow_mut().pop()).flatten().ok_or(INVALID_CONTEXT)?;
    out.put_if(ctx);
    Ok(())
}

fn synchronize(ctx: Option<Handle>) -> Res {
    let mut sim = lock();
    let ctx = match ctx {
        Some(ctx) if ctx != 0 => ctx,
        _ => sim.current()?,
    };
    sim.usable(ctx)?;
    capture::refuse_in_context(&mut sim, ctx)?;
    let all = sim.contexts.get(ctx)?.all.clone();
    let how = sim.waiting(ctx);
    drop(sim);
    wait(&all, how);
    lock().usable(ctx).map(drop)
}
