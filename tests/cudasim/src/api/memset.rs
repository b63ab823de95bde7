//! Setting memory: asynchronous to the host in all forms, unless the target is pinned host memory
//! and the form a synchronous one.

use std::ffi::{c_uchar, c_uint, c_ushort};

use crate::abi::{DevPtr, Handle, MemsetNodeParams};
use crate::capture;
use crate::effects::Effect;
use crate::engine::{Cost, Engine, copy_ns};
use crate::error::{INVALID_VALUE, Res};
use crate::oracle::Kind;
use crate::schedule::{After, Work};
use crate::sim::{Sim, lock, wait};
use crate::stream::admit;
use crate::stubs::{Site, exports};

exports! {
    cuMemsetD8_v2@3020, cuMemsetD8_v2_ptds@7000 fn(s, dst: DevPtr, value: c_uchar, n: usize) =>
        set(s, flat(dst, value.into(), 1, n), None);
    cuMemsetD8Async@3020, cuMemsetD8Async_ptsz@7000
        fn(s, dst: DevPtr, value: c_uchar, n: usize, stream: Handle) =>
        set(s, flat(dst, value.into(), 1, n), Some(stream));
    cuMemsetD16_v2@3020, cuMemsetD16_v2_ptds@7000 fn(s, dst: DevPtr, value: c_ushort, n: usize) =>
        set(s, flat(dst, value.into(), 2, n), None);
    cuMemsetD16Async@3020, cuMemsetD16Async_ptsz@7000
        fn(s, dst: DevPtr, value: c_ushort, n: usize, stream: Handle) =>
        set(s, flat(dst, value.into(), 2, n), Some(stream));
    cuMemsetD32_v2@3020, cuMemsetD32_v2_ptds@7000 fn(s, dst: DevPtr, value: c_uint, n: usize) =>
        set(s, flat(dst, value, 4, n), None);
    cuMemsetD32Async@3020, cuMemsetD32Async_ptsz@7000
        fn(s, dst: DevPtr, value: c_uint, n: usize, stream: Handle) =>
        set(s, flat(dst, value, 4, n), Some(stream));
    cuMemsetD2D8_v2@3020, cuMemsetD2D8_v2_ptds@7000
        fn(s, dst: DevPtr, pitch: usize, value: c_uchar, width: usize, height: usize) =>
        set(s, rows(dst, pitch, value.into(), 1, width, height), None);
    cuMemsetD2D8Async@3020, cuMemsetD2D8Async_ptsz@7000
        fn(s, dst: DevPtr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: Handle)
        => set(s, rows(dst, pitch, value.into(), 1, width, height), Some(stream));
    cuMemsetD2D16_v2@3020, cuMemsetD2D16_v2_ptds@7000
        fn(s, dst: DevPtr, pitch: usize, value: c_ushort, width: usize, height: usize) =>
        set(s, rows(dst, pitch, value.into(), 2, width, height), None);
    cuMemsetD2D16Async@3020, cuMemsetD2D16Async_ptsz@7000
        fn(s, dst: DevPtr, pitch: usize, value: c_ushort, width: usize, height: usize,
         stream: Handle) => set(s, rows(dst, pitch, value.into(), 2, width, height), Some(stream));
    cuMemsetD2D32_v2@3020, cuMemsetD2D32_v2_ptds@7000
        fn(s, dst: DevPtr, pitch: usize, value: c_uint, width: usize, height: usize) =>
        set(s, rows(dst, pitch, value, 4, width, height), None);
    cuMemsetD2D32Async@3020, cuMemsetD2D32Async_ptsz@7000
        fn(s, dst: DevPtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: Handle)
        => set(s, rows(dst, pitch, value, 4, width, height), Some(stream));
}

fn flat(dst: DevPtr, value: c_uint, element: c_uint, width: usize) -> MemsetNodeParams {
    MemsetNodeParams { dst, pitch: 0, value, element, width, height: 1 }
}

fn rows(
    dst: DevPtr,
    pitch: usize,
    value: c_uint,
    element: c_uint,
    width: usize,
    height: usize,
) -> MemsetNodeParams {
    MemsetNodeParams { dst, pitch, value, element, width, height }
}

/// The operation, and whether its target is memory of the host.
fn plan(sim: &Sim, p: &MemsetNodeParams) -> Res<(Work, bool)> {
    let size = p.element as usize;
    if !matches!(size, 1 | 2 | 4) || !p.dst.is_multiple_of(size as u64) {
        return Err(INVALID_VALUE);
    }
    let row = p.width.checked_mul(size).ok_or(INVALID_VALUE)?;
    if p.height > 1 && p.pitch < row {
        return Err(INVALID_VALUE);
    }
    let span = p.height.saturating_sub(1).saturating_mul(p.pitch).saturating_add(row);
    let block = sim.memory.find_range(p.dst, span as u64)?.ok_or(INVALID_VALUE)?;
    let bytes = row.saturating_mul(p.height) as u64;
    let (dst, value, width, height, pitch) = (p.dst, p.value, p.width, p.height, p.pitch);
    let work = Work {
        engine: Some(Engine::Compute),
        cost: Cost::Fixed(copy_ns(Engine::Compute, bytes, false, 1.0)),
        bytes,
        effect: Some(Effect::Set { dst, value, size, width, height, pitch }),
        ..Work::marker(Kind::Memset)
    };
    Ok((work, !block.origin.on_device()))
}

/// Node of a graph for a memset.
pub fn node_work(sim: &Sim, p: &MemsetNodeParams) -> Res<Work> {
    plan(sim, p).map(|(work, _)| work)
}

fn set(site: &Site, p: MemsetNodeParams, stream: Option<Handle>) -> Res {
    let mut sim = lock();
    let ctx = sim.current()?;
    let synchronous = stream.is_none();
    let stream = sim.stream(stream.unwrap_or(0), site.per_thread)?;
    if synchronous {
        capture::refuse_unsafe(&mut sim)?;
    }
    if p.width == 0 || p.height == 0 {
        return Ok(());
    }
    let (work, on_host) = plan(&sim, &p)?;
    let mut sim = admit(sim, stream)?;
    let when = sim.enqueue(stream, work)?;
    let how = sim.waiting(ctx);
    drop(sim);
    match when {
        Some(when) if synchronous && on_host => {
            let mut after = After::default();
            after.add(&when);
            wait(&after, how);
            Ok(())
        }
        _ => Ok(()),
    }
}
