//! Occupancy: plausible answers from threads per multiprocessor alone.

use std::ffi::{c_int, c_uint};

use crate::abi::{Handle, Out};
use crate::error::{INVALID_VALUE, Res};
use crate::sim::lock;
use crate::stubs::exports;

exports! {
    cuOccupancyMaxActiveBlocksPerMultiprocessor@6050
        fn(_s, out: Out<c_int>, function: Handle, block: c_int, _shared: usize) =>
        active_blocks(out, function, block);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags@7000
        fn(_s, out: Out<c_int>, function: Handle, block: c_int, _shared: usize, _flags: c_uint) =>
        active_blocks(out, function, block);
    cuOccupancyMaxPotentialBlockSize@6050
        fn(_s, grid: Out<c_int>, block: Out<c_int>, function: Handle, _size: *const u8,
         _shared: usize, limit: c_int) => potential(grid, block, function, limit);
    cuOccupancyMaxPotentialBlockSizeWithFlags@7000
        fn(_s, grid: Out<c_int>, block: Out<c_int>, function: Handle, _size: *const u8,
         _shared: usize, limit: c_int, _flags: c_uint) => potential(grid, block, function, limit);
    cuOccupancyAvailableDynamicSMemPerBlock@10020
        fn(_s, out: Out<usize>, function: Handle, blocks: c_int, _block: c_int) => {
        lock().functions.get(function)?;
        let blocks = usize::try_from(blocks).ok().filter(|&b| b > 0).ok_or(INVALID_VALUE)?;
        out.put(233_472 / blocks)
    };
}

fn active_blocks(out: Out<c_int>, function: Handle, block: c_int) -> Res {
    lock().functions.get(function)?;
    if block <= 0 {
        return Err(INVALID_VALUE);
    }
    out.put(if block > 1024 { 0 } else { (2048 / block).min(32) })
}

fn potential(grid: Out<c_int>, block: Out<c_int>, function: Handle, limit: c_int) -> Res {
    lock().functions.get(function)?;
    let size = if limit > 0 { limit.min(1024) } else { 1024 };
    block.put(size)?;
    grid.put(132 * (2048 / size).min(32))
}
