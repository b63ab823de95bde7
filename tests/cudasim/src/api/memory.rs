//! Allocation, release, page-locking, and questions about addresses.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{CUdevice, DevPtr, Handle, In, Out};
use crate::capture;
use crate::config::config;
use crate::effects::Effect;
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Res};
use crate::memory::{Block, Origin};
use crate::oracle::Kind;
use crate::schedule::Work;
use crate::sim::{lock, wait};
use crate::stream::admit;
use crate::stubs::exports;

exports! {
    cuMemAlloc_v2@3020 fn(_s, out: Out<DevPtr>, bytes: usize) =>
        allocate(out, bytes, Origin::Device, 0);
    cuMemAllocManaged@6000 fn(_s, out: Out<DevPtr>, bytes: usize, flags: c_uint) => {
        // Attached to all streams, or to the host.
        if !matches!(flags, 1 | 2) { Err(INVALID_VALUE) } else {
            allocate(out, bytes, Origin::Managed, flags)
        }
    };
    cuMemAllocPitch_v2@3020
        fn(_s, out: Out<DevPtr>, pitch: Out<usize>, width: usize, height: usize, element: c_uint) =>
        allocate_pitch(out, pitch, width, height, element);
    cuMemAllocHost@2000 fn(_s, out: Out<DevPtr>, bytes: c_uint) =>
        allocate(out, bytes as usize, Origin::Host, 0);
    cuMemAllocHost_v2@3020 fn(_s, out: Out<DevPtr>, bytes: usize) =>
        allocate(out, bytes, Origin::Host, 0);
    cuMemHostAlloc@2020 fn(_s, out: Out<DevPtr>, bytes: usize, flags: c_uint) =>
        allocate(out, bytes, Origin::Host, flags);
    cuMemFree_v2@3020 fn(_s, at: DevPtr) => free(at, &[Origin::Device, Origin::Managed]);
    cuMemFreeHost@2000 fn(_s, at: DevPtr) => free(at, &[Origin::Host]);
    cuMemHostRegister@4000, cuMemHostRegister_v2@6050
        fn(_s, at: u64, bytes: usize, flags: c_uint) => register(at, bytes, flags);
    cuMemHostUnregister@4000 fn(_s, at: u64) => unregister(at);
    cuMemHostGetDevicePointer_v2@3020 fn(_s, out: Out<DevPtr>, at: u64, _flags: c_uint) => {
        match lock().memory.find(at) {
            Some(b) if !b.origin.on_device() => out.put(at),
            _ => Err(INVALID_VALUE),
        }
    };
    cuMemHostGetFlags@2030 fn(_s, flags: Out<c_uint>, at: u64) => {
        match lock().memory.find(at) {
            Some(b) if !b.origin.on_device() => flags.put(b.flags),
            _ => Err(INVALID_VALUE),
        }
    };
    cuMemGetInfo_v2@3020 fn(_s, free: Out<usize>, total: Out<usize>) => {
        let sim = lock();
        let device = sim.contexts.get(sim.current()?)?.device;
        let all = config().memory;
        free.put((all - sim.memory.used(device).min(all)) as usize)?;
        total.put(all as usize)
    };
    cuMemGetAddressRange_v2@3020 fn(_s, base: Out<DevPtr>, size: Out<usize>, at: DevPtr) => {
        let block = *lock().memory.find(at).ok_or(INVALID_VALUE)?;
        base.put_if(block.base);
        size.put_if(block.size as usize);
        Ok(())
    };
    cuPointerGetAttribute@4000 fn(_s, out: Out<u64>, attribute: c_int, at: DevPtr) =>
        pointer_attribute(out, attribute, at);
    cuPointerGetAttributes@7000
        fn(_s, n: c_uint, attributes: In<c_int>, outs: In<Out<u64>>, at: DevPtr) => {
        for i in 0..n as usize {
            // What is unknown of an address is left at zero, here no error.
            let out = outs.at(i)?;
            let _ = pointer_attribute(out, attributes.at(i)?, at);
        }
        Ok(())
    };
    cuMemAdvise@8000 fn(_s, _at: DevPtr, _bytes: usize, _advice: c_int, _dev: CUdevice) => Ok(());
    cuMemAdvise_v2@12020 fn(_s, _at: DevPtr, _bytes: usize, _advice: c_int, _location: u64) =>
        Ok(());
    cuMemGetHandleForAddressRange@11070
        fn(_s, _out: Out<c_void>, _at: DevPtr, _size: usize, _kind: c_int, _flags: u64) =>
        Err(NOT_SUPPORTED);
}

/// Allocates memory of any kind for the calling thread's context.
fn allocate(out: Out<DevPtr>, bytes: usize, origin: Origin, flags: c_uint) -> Res {
    out.check()?;
    let mut sim = lock();
    let ctx = sim.current()?;
    capture::refuse_unsafe(&mut sim)?;
    let device = sim.contexts.get(ctx)?.device;
    let size = bytes as u64;
    let block = Block { base: 0, size, origin, ctx, device, flags, freed: false };
    out.put(sim.memory.allocate(block, config().memory)?)
}

fn allocate_pitch(
    out: Out<DevPtr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> Res {
    if !matches!(element, 4 | 8 | 16) {
        return Err(INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(512).ok_or(INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(INVALID_VALUE)?;
    allocate(out, bytes, Origin::Device, 0)?;
    pitch.put(row)
}

/// Allocates in stream order: usable at once by what follows on the stream.
pub fn allocate_async(out: Out<DevPtr>, bytes: usize, stream: Handle, per_thread: bool) -> Res {
    out.check()?;
    let mut sim = lock();
    let stream = sim.stream(stream, per_thread)?;
    if capture::active(&mut sim, stream)? {
        // Would become an allocation node, which is not simulated.
        capture::refuse(&mut sim, stream)?;
    }
    let ctx = sim.streams.get(stream)?.ctx;
    let device = sim.usable(ctx)?.device;
    let (origin, size) = (Origin::Device, bytes as u64);
    let block = Block { base: 0, size, origin, ctx, device, flags: 0, freed: false };
    out.put(sim.memory.allocate(block, config().memory)?)
}

/// Frees in stream order: the memory goes when what precedes on the stream is done.
pub fn free_async(at: DevPtr, stream: Handle, per_thread: bool) -> Res {
    let mut sim = lock();
    let stream = sim.stream(stream, per_thread)?;
    if capture::active(&mut sim, stream)? {
        capture::refuse(&mut sim, stream)?;
    }
    sim.memory.freeable(at, &[Origin::Device, Origin::Managed])?;
    sim.memory.mark_freed(at);
    let mut sim = admit(sim, stream)?;
    let work = Work { effect: Some(Effect::Release { base: at }), ..Work::marker(Kind::Free) };
    sim.enqueue(stream, work).map(drop)
}

/// Frees at once, which waits for the work of the context.
fn free(at: DevPtr, origins: &[Origin]) -> Res {
    let mut sim = lock();
    sim.current()?;
    if at == 0 {
        // As with the runtime's cudaFree(0); the driver accepts it too.
        return Ok(());
    }
    capture::refuse_unsafe(&mut sim)?;
    let block = sim.memory.freeable(at, origins)?;
    let all = sim.contexts.get(block.ctx).map(|c| c.all.clone()).unwrap_or_default();
    let how = sim.waiting(block.ctx);
    // From here on a second free of the same memory fails.
    sim.memory.mark_freed(at);
    drop(sim);
    wait(&all, how);
    lock().memory.release(at);
    Ok(())
}

fn register(at: u64, bytes: usize, flags: c_uint) -> Res {
    let mut sim = lock();
    let ctx = sim.current()?;
    let device = sim.contexts.get(ctx)?.device;
    let (base, size, origin) = (at, bytes as u64, Origin::Registered);
    sim.memory.register(Block { base, size, origin, ctx, device, flags, freed: false })
}

fn unregister(at: u64) -> Res {
    let sim = lock();
    let ctx = sim.current()?;
    let all = sim.contexts.get(ctx)?.all.clone();
    let how = sim.waiting(ctx);
    drop(sim);
    wait(&all, how);
    lock().memory.unregister(at)
}

/// `CUpointer_attribute`, each with a result of its own size.
fn pointer_attribute(out: Out<u64>, attribute: c_int, at: DevPtr) -> Res {
    out.check()?;
    let block = *lock().memory.find(at).ok_or(INVALID_VALUE)?;
    let on_device = block.origin.on_device();
    let small = |value: c_int| out.cast::<c_int>().put(value);
    let flag = |value: bool| out.cast::<u8>().put(u8::from(value));
    match attribute {
        1 => out.put(block.ctx),
        2 => small(if on_device { 2 } else { 1 }),
        3 | 11 => out.put(if attribute == 11 { block.base } else { at }),
        4 if !on_device || block.origin == Origin::Managed => out.put(at),
        7 => out.put(block.base),
        8 => flag(block.origin == Origin::Managed),
        9 => small(block.device),
        12 => out.put(block.size),
        13 => flag(true),
        _ => Err(INVALID_VALUE),
    }
}
