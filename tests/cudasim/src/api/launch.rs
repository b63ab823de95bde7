//! Kernel launches, the calls that everything else is measured against.

use std::ffi::c_uint;

use super::module::needs_loading;
use crate::abi::{Extra, Handle, In, KernelNodeParams, LaunchConfig, Params};
use crate::capture;
use crate::clock::{now, sleep_us};
use crate::config::config;
use crate::engine::{Cost, Engine};
use crate::error::{INVALID_HANDLE, INVALID_VALUE, Res};
use crate::fault;
use crate::oracle::Kind;
use crate::schedule::{When, Work};
use crate::sim::{Sim, lock};
use crate::stream::admit;
use crate::stubs::{Site, exports};

exports! {
    cuLaunchKernel@4000, cuLaunchKernel_ptsz@7000
        fn(s, func: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
         shared: c_uint, stream: Handle, params: Params, extra: Extra) => {
        let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
        launch(s, KernelNodeParams { func, grid, block, shared, params, extra }, stream)
    };
    cuLaunchKernelEx@11060, cuLaunchKernelEx_ptsz@11060
        fn(s, config: In<LaunchConfig>, func: Handle, params: Params, extra: Extra) => {
        let LaunchConfig { grid, block, shared, stream, .. } = config.get()?;
        launch(s, KernelNodeParams { func, grid, block, shared, params, extra }, stream)
    };
    cuLaunchCooperativeKernel@9000, cuLaunchCooperativeKernel_ptsz@9000
        fn(s, func: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
         shared: c_uint, stream: Handle, params: Params) => {
        let (grid, block, extra) = ([gx, gy, gz], [bx, by, bz], Extra::null());
        // All blocks have to be resident at once.
        if u64::from(gx) * u64::from(gy) * u64::from(gz) > 132 * 32 {
            return Err(crate::error::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        launch(s, KernelNodeParams { func, grid, block, shared, params, extra }, stream)
    };
}

/// Tags of the `extra` list.
const END: u64 = 0;
const BUFFER: u64 = 1;
const BUFFER_SIZE: u64 = 2;

/// The first argument of a kernel, as 8 bytes.
fn first_argument(params: Params, extra: Extra) -> Res<u64> {
    if params.addr() != 0 {
        return params.get()?.get();
    }
    let mut buffer = None;
    for i in (0..16).step_by(2) {
        match extra.at(i)? {
            END => break,
            BUFFER => buffer = Some(extra.at(i + 1)?),
            BUFFER_SIZE => {}
            _ => return Err(INVALID_VALUE),
        }
    }
    In::<u64>::at_address(buffer.ok_or(INVALID_VALUE)?).get()
}

/// How long the kernel will run.
fn duration(busy: bool, p: &KernelNodeParams) -> Res<u64> {
    if busy {
        return first_argument(p.params, p.extra);
    }
    let blocks = p.grid.iter().map(|&d| u64::from(d)).product::<u64>();
    let c = config();
    Ok(c.kernel_base_ns.saturating_add(blocks.saturating_mul(c.kernel_block_ns)))
}

fn check_shape(p: &KernelNodeParams) -> Res {
    let [_, gy, gz] = p.grid;
    let [_, _, bz] = p.block;
    let threads = p.block.iter().map(|&d| u64::from(d)).product::<u64>();
    if gy > 65_535 || gz > 65_535 || bz > 64 || threads > 1024 || p.shared > 232_448 {
        return Err(INVALID_VALUE);
    }
    // Arguments are given in one way or the other.
    if p.params.addr() != 0 && p.extra.addr() != 0 {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

/// The operation that a launch enqueues, or a kernel node stands for.
///
/// The documents say what a node's grid means "when the graph is launched", not that a node without
/// blocks may not be added. tinygrad adds such nodes on real drivers, where a dimension is to be
/// set before each launch, so only launching them is refused.
pub fn work(sim: &Sim, p: &KernelNodeParams) -> Res<Work> {
    let f = sim.functions.get(p.func)?;
    check_shape(p)?;
    Ok(Work {
        engine: Some(Engine::Compute),
        cost: Cost::Fixed(duration(f.busy, p)?),
        func: f.text,
        empty: p.grid.contains(&0) || p.block.contains(&0),
        ..Work::marker(Kind::Kernel)
    })
}

fn launch(site: &Site, p: KernelNodeParams, stream: Handle) -> Res {
    let mut sim = lock();
    let ctx = sim.current()?;
    let stream = sim.stream(stream, site.per_thread)?;
    if sim.streams.get(stream)?.ctx != ctx {
        return Err(INVALID_HANDLE);
    }
    let work = work(&sim, &p)?;
    if work.empty {
        return Err(INVALID_VALUE);
    }
    if needs_loading(&mut sim, p.func)? && config().lazy_load_us > 0 {
        drop(sim);
        sleep_us(config().lazy_load_us);
        sim = lock();
    }
    if capture::active(&mut sim, stream)? {
        return capture::add(&mut sim, stream, work);
    }
    let mut sim = admit(sim, stream)?;
    let when = sim.enqueue(stream, work)?;
    match when {
        Some(when) => lose_if_told(&mut sim, ctx, &when),
        None => Ok(()),
    }
}

/// An injected failure of the kernel itself: the context is lost when the kernel ends.
pub fn lose_if_told(sim: &mut Sim, ctx: Handle, when: &When) -> Res {
    if let Some(error) = fault::lost_by_launch() {
        let since = when.known().map_or_else(now, |d| d.end);
        sim.contexts.get_mut(ctx)?.lost.get_or_insert((error, since));
    }
    Ok(())
}
