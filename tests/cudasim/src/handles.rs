//! Handles: numbers that look like addresses and carry a generation, so that a stale or foreign
//! one is recognised instead of dereferenced.

use crate::abi::Handle;
use crate::error::{CuError, INVALID_HANDLE, Res};

/// Kinds of object, part of the handle.
#[derive(Clone, Copy)]
pub enum Class {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Graph,
    GraphNode,
    GraphExec,
    Pool,
}

/// Handles lie in a part of the address space where nothing is mapped.
const BASE: u64 = 0x5000_0000_0000;
const GENERATIONS: u64 = 0xffff;
const INDEXES: u64 = 0xf_ffff;

/// All objects of one kind.
pub struct Table<T> {
    class: u64,
    error: CuError,
    slots: Vec<(u64, Option<T>)>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    /// An empty table; a wrong handle gives `INVALID_HANDLE`.
    pub const fn new(class: Class) -> Self {
        Self::with_error(class, INVALID_HANDLE)
    }

    /// An empty table whose wrong handles give `error`.
    pub const fn with_error(class: Class, error: CuError) -> Self {
        Table { class: class as u64, error, slots: Vec::new(), free: Vec::new() }
    }

    /// Adds an object.
    pub fn add(&mut self, value: T) -> Handle {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push((0, None));
                self.slots.len() - 1
            }
        };
        let Some(slot) = self.slots.get_mut(index) else { return 0 };
        slot.0 = (slot.0 + 1) & GENERATIONS;
        slot.1 = Some(value);
        let generation = slot.0;
        self.handle(index, generation)
    }

    fn handle(&self, index: usize, generation: u64) -> Handle {
        BASE | self.class << 40 | generation << 24 | (index as u64 & INDEXES) << 4
    }

    /// All objects with their handles.
    pub fn handles(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, (generation, value))| {
            Some((self.handle(index, *generation), value.as_ref()?))
        })
    }

    fn slot(&self, handle: Handle) -> Option<usize> {
        let index = (handle >> 4 & INDEXES) as usize;
        let generation = handle >> 24 & GENERATIONS;
        let fits = handle & !0xff_ffff_ffff == BASE | self.class << 40 && handle & 0xf == 0;
        let (current, _) = self.slots.get(index)?;
        (fits && *current == generation).then_some(index)
    }

    /// The object, if the handle is one of ours and still valid.
    pub fn get(&self, handle: Handle) -> Res<&T> {
        let slot = self.slot(handle).and_then(|i| self.slots.get(i));
        slot.and_then(|s| s.1.as_ref()).ok_or(self.error)
    }

    /// The object, to be changed.
    pub fn get_mut(&mut self, handle: Handle) -> Res<&mut T> {
        let index = self.slot(handle).ok_or(self.error)?;
        self.slots.get_mut(index).and_then(|s| s.1.as_mut()).ok_or(self.error)
    }

    /// Takes the object out; the handle is invalid from now on.
    pub fn remove(&mut self, handle: Handle) -> Res<T> {
        let index = self.slot(handle).ok_or(self.error)?;
        let value = self.slots.get_mut(index).and_then(|s| s.1.take()).ok_or(self.error)?;
        self.free.push(index);
        Ok(value)
    }

    /// Removes all objects for which `dead` holds.
    pub fn remove_where(&mut self, dead: impl Fn(&T) -> bool) {
        for (index, (_, value)) in self.slots.iter_mut().enumerate() {
            if value.as_ref().is_some_and(&dead) {
                *value = None;
                self.free.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_foreign_handles_are_refused() {
        let mut streams = Table::new(Class::Stream);
        let mut events = Table::new(Class::Event);
        let s = streams.add(1);
        let e = events.add(2);
        assert_eq!(streams.get(s), Ok(&1));
        assert_eq!(streams.get(e), Err(INVALID_HANDLE));
        assert_eq!(streams.get(s + 1), Err(INVALID_HANDLE));
        assert_eq!(streams.remove(s), Ok(1));
        assert_eq!(streams.remove(s), Err(INVALID_HANDLE));
        let again = streams.add(3);
        assert_ne!(again, s);
        assert_eq!(streams.get(s), Err(INVALID_HANDLE));
        for odd in [0, 1, 2, u64::MAX] {
            assert_eq!(streams.get(odd), Err(INVALID_HANDLE));
        }
    }
}
