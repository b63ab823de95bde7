//! Memory: what is allocated, registered, how much of the simulated device it takes.
//!
//! Device memory is host memory mapped for the purpose, so a device pointer is an ordinary
//! address and copies are real; pages are only taken when touched.

use std::collections::BTreeMap;

use crate::abi::{DevPtr, Handle};
use crate::error::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY, Res,
};

/// How a range of addresses came to be known to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Memory of the device.
    Device,
    /// Managed memory: of the device, and the host may touch it.
    Managed,
    /// Page-locked host memory that the driver allocated.
    Host,
    /// The program's memory, page-locked by `cuMemHostRegister`.
    Registered,
}

impl Origin {
    /// Whether copies treat it as the device's.
    pub fn on_device(self) -> bool {
        matches!(self, Origin::Device | Origin::Managed)
    }
}

/// A known range.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub base: u64,
    pub size: u64,
    pub origin: Origin,
    pub ctx: Handle,
    pub device: i32,
    pub flags: u32,
    /// `cuMemFreeAsync` was called: only stream-ordered work may still use it.
    pub freed: bool,
}

/// All known ranges of this process.
pub struct Memory {
    blocks: BTreeMap<u64, Block>,
    used: Vec<u64>,
}

const PAGE: u64 = 4096;
/// From this size on, huge pages are asked for.
const HUGE: u64 = 4 << 20;

impl Memory {
    pub const fn new() -> Self {
        Memory { blocks: BTreeMap::new(), used: Vec::new() }
    }

    /// Bytes of the device in use.
    pub fn used(&self, device: i32) -> u64 {
        self.used.get(device as usize).copied().unwrap_or(0)
    }

    fn used_mut(&mut self, device: i32) -> Option<&mut u64> {
        let index = device as usize;
        if self.used.len() <= index {
            self.used.resize(index + 1, 0);
        }
        self.used.get_mut(index)
    }

    /// Allocates; device and managed memory count against `capacity`.
    pub fn allocate(&mut self, mut block: Block, capacity: u64) -> Res<DevPtr> {
        if block.size == 0 {
            return Err(INVALID_VALUE);
        }
        if block.origin.on_device() {
            // The smallest piece of memory that a device hands out is 512 bytes.
            let size = block.size.next_multiple_of(512);
            let used = self.used_mut(block.device).ok_or(INVALID_VALUE)?;
            if size > capacity.saturating_sub(*used) {
                return Err(OUT_OF_MEMORY);
            }
            *used += size;
            crate::oracle::memory(block.device, *used);
        }
        match map(block.size) {
            Some(base) => {
                block.base = base;
                self.blocks.insert(base, block);
                Ok(base)
            }
            None => {
                self.account_for_release(&block);
                Err(OUT_OF_MEMORY)
            }
        }
    }

    fn account_for_release(&mut self, block: &Block) {
        if block.origin.on_device() {
            let size = block.size.next_multiple_of(512);
            if let Some(used) = self.used_mut(block.device) {
                *used = used.saturating_sub(size);
                crate::oracle::memory(block.device, *used);
            }
        }
    }

    /// Page-locks memory of the program.
    pub fn register(&mut self, block: Block) -> Res {
        let end = block.base.checked_add(block.size).ok_or(INVALID_VALUE)?;
        if block.size == 0 || block.base == 0 {
            return Err(INVALID_VALUE);
        }
        let before = self.blocks.range(..end).next_back();
        if before.is_some_and(|(_, b)| b.base + b.size > block.base) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.blocks.insert(block.base, block);
        Ok(())
    }

    /// Undoes `register`.
    pub fn unregister(&mut self, base: u64) -> Res {
        match self.blocks.get(&base) {
            Some(b) if b.origin == Origin::Registered => {
                self.blocks.remove(&base);
                Ok(())
            }
            _ => Err(HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// The block that starts at `base` and may be freed by a call for `origins`.
    pub fn freeable(&self, base: u64, origins: &[Origin]) -> Res<Block> {
        match self.blocks.get(&base) {
            Some(b) if origins.contains(&b.origin) && !b.freed => Ok(*b),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Marks a block as freed in stream order; the memory itself goes with `release`.
    pub fn mark_freed(&mut self, base: u64) {
        if let Some(b) = self.blocks.get_mut(&base) {
            b.freed = true;
        }
    }

    /// Gives a block back.
    pub fn release(&mut self, base: u64) {
        if let Some(block) = self.blocks.remove(&base) {
            self.account_for_release(&block);
            if block.origin != Origin::Registered {
                unmap(base, block.size);
            }
        }
    }

    /// Gives back everything that belongs to a context.
    pub fn release_context(&mut self, ctx: Handle) {
        let bases: Vec<u64> =
            self.blocks.values().filter(|b| b.ctx == ctx).map(|b| b.base).collect();
        for base in bases {
            self.release(base);
        }
    }

    /// The block that contains `address`.
    pub fn find(&self, address: u64) -> Option<&Block> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        (address < block.base + block.size).then_some(block)
    }

    /// The block that contains `bytes` bytes from `address` on; an error if they do not fit in it.
    pub fn find_range(&self, address: u64, bytes: u64) -> Res<Option<Block>> {
        let Some(block) = self.find(address) else { return Ok(None) };
        let fits = bytes <= block.base + block.size - address;
        if fits { Ok(Some(*block)) } else { Err(INVALID_VALUE) }
    }
}

/// Maps zeroed memory that takes no room until touched.
fn map(size: u64) -> Option<u64> {
    let length = size.checked_next_multiple_of(PAGE)?;
    // SAFETY: a fresh private mapping at an address of the kernel's choice affects nothing else.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    if length >= HUGE {
        // First touch would otherwise be the slowest part of a large copy. A wish, not a need.
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(at, length as usize, libc::MADV_HUGEPAGE) };
    }
    Some(at as u64)
}

fn unmap(base: u64, size: u64) {
    // SAFETY: the range is one that `map` gave and that no block covers any more.
    unsafe {
        libc::munmap(base as *mut libc::c_void, size.next_multiple_of(PAGE) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(origin: Origin, size: u64) -> Block {
        Block { base: 0, size, origin, ctx: 1, device: 0, flags: 0, freed: false }
    }

    #[test]
    fn counts_against_the_capacity_and_gives_back() {
        let mut m = Memory::new();
        let a = m.allocate(block(Origin::Device, 1000), 4096).unwrap();
        assert_eq!(m.used(0), 1024);
        assert_eq!(m.allocate(block(Origin::Device, 3073), 4096), Err(OUT_OF_MEMORY));
        let b = m.allocate(block(Origin::Device, 3072), 4096).unwrap();
        assert_eq!(m.used(0), 4096);
        assert!(m.find(a + 999).is_some());
        assert!(m.find_range(a + 1, 1000).is_err());
        m.release(a);
        m.release(b);
        assert_eq!(m.used(0), 0);
        assert!(m.find(a).is_none());
    }

    #[test]
    fn registration_refuses_overlap() {
        let mut m = Memory::new();
        let range = |base, size| Block { base, ..block(Origin::Registered, size) };
        m.register(range(0x1000, 0x1000)).unwrap();
        assert_eq!(m.register(range(0x1fff, 1)), Err(HOST_MEMORY_ALREADY_REGISTERED));
        assert_eq!(m.register(range(0x800, 0x900)), Err(HOST_MEMORY_ALREADY_REGISTERED));
        m.register(range(0x2000, 1)).unwrap();
        assert_eq!(m.unregister(0x1800), Err(HOST_MEMORY_NOT_REGISTERED));
        m.unregister(0x1000).unwrap();
    }
}
