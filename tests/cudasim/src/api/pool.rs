//! Memory pools: handles to allocate from; all memory comes from the device alike.

use std::ffi::{c_int, c_void};

use super::device::check;
use super::memory::{allocate_async, free_async};
use crate::abi::{CUdevice, DevPtr, Handle, In, Out};
use crate::error::{INVALID_VALUE, Res};
use crate::sim::lock;
use crate::stubs::exports;

exports! {
    cuMemAllocAsync@11020, cuMemAllocAsync_ptsz@11020
        fn(s, out: Out<DevPtr>, bytes: usize, stream: Handle) =>
        allocate_async(out, bytes, stream, s.per_thread);
    cuMemAllocFromPoolAsync@11020, cuMemAllocFromPoolAsync_ptsz@11020
        fn(s, out: Out<DevPtr>, bytes: usize, pool: Handle, stream: Handle) => {
        lock().pools.get(pool)?;
        allocate_async(out, bytes, stream, s.per_thread)
    };
    cuMemFreeAsync@11020, cuMemFreeAsync_ptsz@11020 fn(s, at: DevPtr, stream: Handle) =>
        free_async(at, stream, s.per_thread);
    cuDeviceGetDefaultMemPool@11020, cuDeviceGetMemPool@11020
        fn(_s, out: Out<Handle>, dev: CUdevice) => default_pool(out, dev);
    cuDeviceSetMemPool@11020 fn(_s, dev: CUdevice, pool: Handle) => {
        check(dev)?;
        lock().pools.get(pool).map(drop)
    };
    cuMemPoolCreate@11020 fn(_s, out: Out<Handle>, _properties: In<u64>) => {
        out.check()?;
        let pool = lock().pools.add(0);
        out.put(pool)
    };
    cuMemPoolDestroy@11020 fn(_s, pool: Handle) => destroy(pool);
    cuMemPoolTrimTo@11020 fn(_s, pool: Handle, _keep: usize) => lock().pools.get(pool).map(drop);
    cuMemPoolSetAttribute@11020 fn(_s, pool: Handle, _attribute: c_int, _value: In<c_void>) =>
        lock().pools.get(pool).map(drop);
    cuMemPoolGetAttribute@11020 fn(_s, pool: Handle, attribute: c_int, value: Out<u64>) =>
        get_attribute(pool, attribute, value);
}

fn default_pool(out: Out<Handle>, dev: CUdevice) -> Res {
    check(dev)?;
    let mut sim = lock();
    let pool = match sim.default_pools.get(&dev) {
        Some(&pool) => pool,
        None => {
            let pool = sim.pools.add(dev);
            sim.default_pools.insert(dev, pool);
            pool
        }
    };
    out.put(pool)
}

fn destroy(pool: Handle) -> Res {
    let mut sim = lock();
    if sim.default_pools.values().any(|&p| p == pool) {
        return Err(INVALID_VALUE);
    }
    sim.pools.remove(pool).map(drop)
}

/// Switches (32 bits wide) are on, the threshold is 0, amounts are the device's.
fn get_attribute(pool: Handle, attribute: c_int, value: Out<u64>) -> Res {
    let sim = lock();
    let device = *sim.pools.get(pool)?;
    match attribute {
        1..=3 => value.cast::<c_int>().put(1),
        4 => value.put(0),
        5..=8 => value.put(sim.memory.used(device)),
        _ => Err(INVALID_VALUE),
    }
}
