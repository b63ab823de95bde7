//! Where records wait for the writer: chunks that are filled by one thread, written by another
//! and used again, so that appending neither copies nor asks the system for memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::record::Record;

/// Records in a chunk: small enough for the allocator to keep it (well below 128 KiB).
const CHUNK: usize = 512;
/// Empty chunks kept.
const SPARE: usize = 4096;

/// A chunk of records.
pub type Chunk = Vec<Record>;

/// Takes a lock whatever happened to its last holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Empty chunks.
#[derive(Default)]
pub struct Spare(Mutex<Vec<Chunk>>);

impl Spare {
    fn take(&self) -> Chunk {
        lock(&self.0).pop().unwrap_or_else(|| Vec::with_capacity(CHUNK))
    }

    /// Takes a written chunk back.
    pub fn give(&self, mut chunk: Chunk) {
        chunk.clear();
        let mut kept = lock(&self.0);
        if kept.len() < SPARE {
            kept.push(chunk);
        }
    }
}

/// Records of one thread.
#[derive(Default)]
pub struct Buffer {
    current: Chunk,
    full: Vec<Chunk>,
}

impl Buffer {
    /// Appends a record.
    pub fn push(&mut self, record: Record, spare: &Spare) {
        if self.current.len() == self.current.capacity() {
            let full = std::mem::replace(&mut self.current, spare.take());
            if !full.is_empty() {
                self.full.push(full);
            }
        }
        self.current.push(record);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.current.is_empty()
    }

    /// Takes everything, in order.
    pub fn drain(&mut self) -> Vec<Chunk> {
        let mut all = std::mem::take(&mut self.full);
        if !self.current.is_empty() {
            all.push(std::mem::take(&mut self.current));
        }
        all
    }
}
