//! Copies: one set of rules for all forms, from NVIDIA's page on API synchronisation behaviour.

use std::ffi::c_uint;

use crate::abi::{DevPtr, Handle, In, Memcpy2D, Memcpy3D, Out, Side3D};
use crate::capture;
use crate::clock::wait_until;
use crate::effects::{self, Effect, Shape, Stride};
use crate::engine::{Cost, Engine, copy_ns};
use crate::error::{CuError, INVALID_VALUE, NOT_SUPPORTED, Res};
use crate::memory::Origin;
use crate::oracle::Kind;
use crate::schedule::{After, Work};
use crate::sim::{Guard, Sim, known, lock, wait};
use crate::stream::admit;
use crate::stubs::{Site, exports};

exports! {
    cuMemcpyHtoD_v2@3020, cuMemcpyHtoD_v2_ptds@7000 fn(s, dst: DevPtr, src: u64, n: usize) =>
        linear(s, Ends { dst, src, device: (true, false) }, n, None);
    cuMemcpyHtoDAsync_v2@3020, cuMemcpyHtoDAsync_v2_ptsz@7000
        fn(s, dst: DevPtr, src: u64, n: usize, stream: Handle) =>
        linear(s, Ends { dst, src, device: (true, false) }, n, Some(stream));
    cuMemcpyDtoH_v2@3020, cuMemcpyDtoH_v2_ptds@7000 fn(s, dst: u64, src: DevPtr, n: usize) =>
        linear(s, Ends { dst, src, device: (false, true) }, n, None);
    cuMemcpyDtoHAsync_v2@3020, cuMemcpyDtoHAsync_v2_ptsz@7000
        fn(s, dst: u64, src: DevPtr, n: usize, stream: Handle) =>
        linear(s, Ends { dst, src, device: (false, true) }, n, Some(stream));
    cuMemcpyDtoD_v2@3020, cuMemcpyDtoD_v2_ptds@7000 fn(s, dst: DevPtr, src: DevPtr, n: usize) =>
        linear(s, Ends { dst, src, device: (true, true) }, n, None);
    cuMemcpyDtoDAsync_v2@3020, cuMemcpyDtoDAsync_v2_ptsz@7000
        fn(s, dst: DevPtr, src: DevPtr, n: usize, stream: Handle) =>
        linear(s, Ends { dst, src, device: (true, true) }, n, Some(stream));
    cuMemcpy@4000, cuMemcpy_ptds@7000 fn(s, dst: DevPtr, src: DevPtr, n: usize) =>
        linear(s, Ends { dst, src, device: (false, false) }, n, None);
    cuMemcpyAsync@4000, cuMemcpyAsync_ptsz@7000
        fn(s, dst: DevPtr, src: DevPtr, n: usize, stream: Handle) =>
        linear(s, Ends { dst, src, device: (false, false) }, n, Some(stream));
    cuMemcpyPeer@4000, cuMemcpyPeer_ptds@7000
        fn(s, dst: DevPtr, _dctx: Handle, src: DevPtr, _sctx: Handle, n: usize) =>
        linear(s, Ends { dst, src, device: (true, true) }, n, None);
    cuMemcpyPeerAsync@4000, cuMemcpyPeerAsync_ptsz@7000
        fn(s, dst: DevPtr, _dctx: Handle, src: DevPtr, _sctx: Handle, n: usize, stream: Handle) =>
        linear(s, Ends { dst, src, device: (true, true) }, n, Some(stream));
    cuMemcpy2D_v2@3020, cuMemcpy2D_v2_ptds@7000,
    cuMemcpy2DUnaligned_v2@3020, cuMemcpy2DUnaligned_v2_ptds@7000 fn(s, c: In<Memcpy2D>) =>
        copy_2d(s, c.get()?, None);
    cuMemcpy2DAsync_v2@3020, cuMemcpy2DAsync_v2_ptsz@7000 fn(s, c: In<Memcpy2D>, stream: Handle) =>
        copy_2d(s, c.get()?, Some(stream));
    cuMemcpy3D_v2@3020, cuMemcpy3D_v2_ptds@7000, cuMemcpy3DPeer@4000, cuMemcpy3DPeer_ptds@7000
        fn(s, c: In<Memcpy3D>) => copy_3d(s, c.get()?, None);
    cuMemcpy3DAsync_v2@3020, cuMemcpy3DAsync_v2_ptsz@7000,
    cuMemcpy3DPeerAsync@4000, cuMemcpy3DPeerAsync_ptsz@7000
        fn(s, c: In<Memcpy3D>, stream: Handle) => copy_3d(s, c.get()?, Some(stream));
    cuMemcpyBatchAsync@12080, cuMemcpyBatchAsync_ptsz@12080
        fn(s, dsts: In<DevPtr>, srcs: In<DevPtr>, sizes: In<usize>, count: usize, _attrs: In<u64>,
         _indexes: In<usize>, _n: usize, failed: Out<usize>, stream: Handle) => {
        let result = batch(s, dsts, srcs, sizes, count, stream);
        result.map_err(|(index, error)| {
            failed.put_if(index);
            error
        })
    };
    cuMemcpyBatchAsync_v2@13000, cuMemcpyBatchAsync_v2_ptsz@13000
        fn(s, dsts: In<DevPtr>, srcs: In<DevPtr>, sizes: In<usize>, count: usize, _attrs: In<u64>,
         _indexes: In<usize>, _n: usize, stream: Handle) =>
        batch(s, dsts, srcs, sizes, count, stream).map_err(|e| e.1);
}

/// Up to this size pageable memory is staged at once, without waiting for the stream.
const STAGED_AT_ONCE: u64 = 64 << 10;
/// What fits into the driver's staging memory: a larger copy returns when this much is left.
const STAGING: u64 = 1 << 20;

/// Both ends of a copy, and which of them the call requires to be known to the driver.
#[derive(Clone, Copy)]
struct Ends {
    dst: u64,
    src: u64,
    device: (bool, bool),
}

fn linear(site: &Site, ends: Ends, bytes: usize, stream: Option<Handle>) -> Res {
    copy(site, ends, Shape::linear(bytes), stream)
}

fn batch(
    site: &Site,
    dsts: In<DevPtr>,
    srcs: In<DevPtr>,
    sizes: In<usize>,
    count: usize,
    stream: Handle,
) -> Result<(), (usize, CuError)> {
    if stream == 1 || (stream == 0 && !site.per_thread) {
        // Not on the legacy default stream, says the reference.
        return Err((usize::MAX, INVALID_VALUE));
    }
    for i in 0..count {
        let one = || {
            let ends = Ends { dst: dsts.at(i)?, src: srcs.at(i)?, device: (false, false) };
            linear(site, ends, sizes.at(i)?, Some(stream))
        };
        one().map_err(|e| (i, e))?;
    }
    Ok(())
}

/// `CUmemorytype`: which field holds the address.
fn address(kind: c_uint, host: u64, device: u64) -> Res<(u64, bool)> {
    match kind {
        1 => Ok((host, false)),
        2 => Ok((device, true)),
        4 => Ok((device, false)),
        // Arrays are not simulated.
        3 => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

/// An address plus so many steps of each size.
fn offset(address: u64, steps: &[(usize, usize)]) -> Res<u64> {
    steps
        .iter()
        .try_fold(address, |at, &(count, size)| at.checked_add(count.checked_mul(size)? as u64))
        .ok_or(INVALID_VALUE)
}

fn copy_2d(site: &Site, c: Memcpy2D, stream: Option<Handle>) -> Res {
    let (src, src_device) = address(c.src.kind, c.src.host, c.src.device)?;
    let (dst, dst_device) = address(c.dst.kind, c.dst.host, c.dst.device)?;
    let pitch = |p: usize| if p == 0 { c.width } else { p };
    let (from, to) = (pitch(c.src.pitch), pitch(c.dst.pitch));
    if c.width > from || c.width > to {
        return Err(INVALID_VALUE);
    }
    let shape = Shape {
        width: c.width,
        height: c.height,
        depth: 1,
        src: Stride { row: from, slice: 0 },
        dst: Stride { row: to, slice: 0 },
    };
    let ends = Ends {
        src: offset(src, &[(c.src.y, from), (c.src.x, 1)])?,
        dst: offset(dst, &[(c.dst.y, to), (c.dst.x, 1)])?,
        device: (dst_device, src_device),
    };
    copy(site, ends, shape, stream)
}

fn copy_3d(site: &Site, c: Memcpy3D, stream: Option<Handle>) -> Res {
    let (ends, shape) = resolve_3d(&c)?;
    copy(site, ends, shape, stream)
}

fn resolve_3d(c: &Memcpy3D) -> Res<(Ends, Shape)> {
    let (src, src_device) = address(c.src.kind, c.src.host, c.src.device)?;
    let (dst, dst_device) = address(c.dst.kind, c.dst.host, c.dst.device)?;
    let stride = |side: &Side3D| {
        let row = if side.pitch == 0 { c.width } else { side.pitch };
        let rows = if side.height == 0 { c.height } else { side.height };
        Stride { row, slice: row.saturating_mul(rows) }
    };
    let (from, to) = (stride(&c.src), stride(&c.dst));
    if c.width > from.row || c.width > to.row {
        return Err(INVALID_VALUE);
    }
    let at = |address, side: &Side3D, s: Stride| {
        offset(address, &[(side.z, s.slice), (side.y, s.row), (side.x, 1)])
    };
    let ends = Ends {
        src: at(src, &c.src, from)?,
        dst: at(dst, &c.dst, to)?,
        device: (dst_device, src_device),
    };
    Ok((ends, Shape { width: c.width, height: c.height, depth: c.depth, src: from, dst: to }))
}

/// What a copy is, once the memory at its ends is known.
#[derive(Clone, Copy)]
struct Plan {
    kind: Kind,
    engine: Option<Engine>,
    /// The host's side is pageable.
    pageable: bool,
    ends: Ends,
    shape: Shape,
}

impl Plan {
    fn new(sim: &Sim, ends: Ends, shape: Shape) -> Res<Plan> {
        let look = |at: u64, stride: Stride, required: bool| match sim
            .memory
            .find_range(at, shape.span(stride))?
        {
            Some(block) => Ok(Some(block.origin)),
            None if required || at == 0 => Err(INVALID_VALUE),
            None => Ok(None),
        };
        let dst = look(ends.dst, shape.dst, ends.device.0)?;
        let src = look(ends.src, shape.src, ends.device.1)?;
        let on_device = |o: Option<Origin>| o.is_some_and(Origin::on_device);
        let (kind, engine) = match (on_device(src), on_device(dst)) {
            (false, true) => (Kind::H2D, Some(Engine::H2D)),
            (true, false) => (Kind::D2H, Some(Engine::D2H)),
            (true, true) => (Kind::D2D, Some(Engine::D2D)),
            (false, false) => (Kind::H2H, None),
        };
        let pageable = match kind {
            Kind::H2D => src.is_none(),
            Kind::D2H => dst.is_none(),
            Kind::H2H => src.is_none() || dst.is_none(),
            _ => false,
        };
        Ok(Plan { kind, engine, pageable, ends, shape })
    }

    fn work(&self, effect: Option<Effect>) -> Work {
        let bytes = self.shape.bytes();
        Work {
            engine: self.engine,
            cost: Cost::Copy { bytes, pageable: self.pageable },
            bytes,
            pinned: !self.pageable && self.kind != Kind::D2D,
            effect,
            ..Work::marker(self.kind)
        }
    }

    fn effect(&self) -> Effect {
        Effect::Copy { dst: self.ends.dst, src: self.ends.src, shape: self.shape }
    }
}

/// Node of a graph for a copy.
pub fn node_work(sim: &Sim, c: &Memcpy3D) -> Res<Work> {
    let (ends, shape) = resolve_3d(c)?;
    let plan = Plan::new(sim, ends, shape)?;
    Ok(plan.work(Some(plan.effect())))
}

/// Every copy. Without a stream it is the synchronous form, on the default stream.
fn copy(site: &Site, ends: Ends, shape: Shape, stream: Option<Handle>) -> Res {
    let mut sim = lock();
    sim.current()?;
    let synchronous = stream.is_none();
    let stream = sim.stream(stream.unwrap_or(0), site.per_thread)?;
    if synchronous {
        capture::refuse_unsafe(&mut sim)?;
    }
    if shape.bytes() == 0 {
        return Ok(());
    }
    let plan = Plan::new(&sim, ends, shape)?;
    if capture::active(&mut sim, stream)? {
        // Nothing runs, so nothing is staged either: the node keeps the addresses.
        return capture::add(&mut sim, stream, plan.work(Some(plan.effect())));
    }
    let sim = admit(sim, stream)?;
    match plan.kind {
        Kind::H2H => on_host(sim, &plan, stream),
        Kind::H2D if plan.pageable && (synchronous || shape.bytes() > STAGED_AT_ONCE) => {
            through_staging(sim, &plan, stream)
        }
        Kind::H2D if plan.pageable => stage_at_once(sim, &plan, stream),
        Kind::D2D => start(sim, &plan, stream).map(drop),
        _ if !synchronous && !plan.pageable => start(sim, &plan, stream).map(drop),
        // Synchronous pinned copies, and every copy to pageable memory.
        _ => {
            let how = sim.waiting(sim.streams.get(stream)?.ctx);
            let ctx = sim.streams.get(stream)?.ctx;
            let after = start(sim, &plan, stream)?;
            wait(&after, how);
            lock().usable(ctx).map(drop)
        }
    }
}

/// Enqueues the copy as it is.
fn start(mut sim: Guard, plan: &Plan, stream: Handle) -> Res<After> {
    let mut after = After::default();
    if let Some(when) = sim.enqueue(stream, plan.work(Some(plan.effect())))? {
        after.add(&when);
    }
    Ok(after)
}

/// Fully synchronous: after the stream's work, by the calling thread.
fn on_host(mut sim: Guard, plan: &Plan, stream: Handle) -> Res {
    let how = sim.waiting(sim.streams.get(stream)?.ctx);
    let before = sim.order(stream)?;
    drop(sim);
    wait(&before, how);
    effects::copy(plan.ends.dst, plan.ends.src, &plan.shape);
    sim = lock();
    sim.enqueue(stream, plan.work(None)).map(drop)
}

/// The bytes are in the staging buffer when the call returns; nothing else has been waited for.
fn stage_at_once(sim: Guard, plan: &Plan, stream: Handle) -> Res {
    drop(sim);
    let data = effects::stage(plan.ends.src, &plan.shape);
    let staged = Effect::Staged { dst: plan.ends.dst, data, shape: plan.shape };
    lock().enqueue(stream, plan.work(Some(staged))).map(drop)
}

/// Waits for the stream, then feeds the copy through the staging buffers; returns when the last
/// bytes are staged, while the device may still be fetching them.
fn through_staging(sim: Guard, plan: &Plan, stream: Handle) -> Res {
    let ctx = sim.streams.get(stream)?.ctx;
    let how = sim.waiting(ctx);
    let before = sim.order(stream)?;
    drop(sim);
    wait(&before, how);
    let bytes = plan.shape.bytes();
    let mut after = After::default();
    if bytes > STAGED_AT_ONCE {
        // Transfer and staging overlap.
        let when = lock().enqueue(stream, plan.work(None))?;
        after.add(&when.unwrap_or_default());
    }
    effects::copy(plan.ends.dst, plan.ends.src, &plan.shape);
    if bytes > STAGED_AT_ONCE {
        let last = copy_ns(Engine::H2D, bytes.min(STAGING), false, 1.0);
        wait_until(known(&after, how).end.saturating_sub(last), how);
    } else {
        lock().enqueue(stream, plan.work(None))?;
    }
    lock().usable(ctx).map(drop)
}
