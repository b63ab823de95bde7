//! What operations do to memory, done in the order in which the device would.
//!
//! The times of an operation are computed; its bytes have to be moved by somebody. Small moves
//! are made at once, large ones by a thread of the driver, in the order of enqueueing: every
//! dependency points backwards in that order, so it is always a legal one. No operation is
//! reported complete before its bytes are where they belong; a thread that cannot wait helps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};

/// A block of bytes in up to three dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub src: Stride,
    pub dst: Stride,
}

/// Distances between the rows and the slices of one side.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stride {
    pub row: usize,
    pub slice: usize,
}

impl Shape {
    /// Plain bytes.
    pub fn linear(bytes: usize) -> Self {
        let none = Stride::default();
        Shape { width: bytes, height: 1, depth: 1, src: none, dst: none }
    }

    /// Bytes moved.
    pub fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth) as u64
    }

    /// Bytes from the first to the last that one side touches.
    pub fn span(&self, side: Stride) -> u64 {
        // Saturating: what overflows fits into no block and is refused.
        let rows = self.height.saturating_sub(1).saturating_mul(side.row);
        let slices = self.depth.saturating_sub(1).saturating_mul(side.slice);
        slices.saturating_add(rows).saturating_add(self.width) as u64
    }
}

/// Something done to memory.
#[derive(Clone, Debug)]
pub enum Effect {
    Copy {
        dst: u64,
        src: u64,
        shape: Shape,
    },
    /// A copy whose source was staged.
    Staged {
        dst: u64,
        data: Box<[u8]>,
        shape: Shape,
    },
    /// `width` elements of `size` bytes in each of `height` rows.
    Set {
        dst: u64,
        value: u32,
        size: usize,
        width: usize,
        height: usize,
        pitch: usize,
    },
    /// Memory freed in stream order.
    Release {
        base: u64,
    },
}

impl Effect {
    fn bytes(&self) -> u64 {
        match self {
            Effect::Copy { shape, .. } | Effect::Staged { shape, .. } => shape.bytes(),
            Effect::Set { size, width, height, .. } => (size * width * height) as u64,
            // Needs the driver's lock: never at once.
            Effect::Release { .. } => u64::MAX,
        }
    }

    /// Does it.
    pub fn run(&self) {
        match self {
            Effect::Copy { dst, src, shape } => copy(*dst, *src, shape),
            Effect::Staged { dst, data, shape } => {
                // Staging packs the rows.
                let packed = Stride { row: shape.width, slice: shape.width * shape.height };
                copy(*dst, data.as_ptr() as u64, &Shape { src: packed, ..*shape });
            }
            Effect::Set { dst, value, size, width, height, pitch } => {
                for row in 0..*height {
                    set(*dst + (row * pitch) as u64, *value, *size, *width);
                }
            }
            Effect::Release { base } => crate::sim::lock().memory.release(*base),
        }
    }
}

/// Copies a block.
pub fn copy(dst: u64, src: u64, shape: &Shape) {
    for z in 0..shape.depth {
        for y in 0..shape.height {
            let from = src + (z * shape.src.slice + y * shape.src.row) as u64;
            let to = dst + (z * shape.dst.slice + y * shape.dst.row) as u64;
            // SAFETY: device and pinned ranges were checked against live blocks, and freeing
            // waits for the work that uses them; pageable ranges are the caller's, as in C.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, shape.width) };
        }
    }
}

/// Packs a block of pageable memory into a staging buffer.
pub fn stage(src: u64, shape: &Shape) -> Box<[u8]> {
    let mut data = vec![0u8; shape.bytes() as usize].into_boxed_slice();
    let packed = Stride { row: shape.width, slice: shape.width * shape.height };
    copy(data.as_mut_ptr() as u64, src, &Shape { dst: packed, ..*shape });
    data
}

fn set(dst: u64, value: u32, size: usize, width: usize) {
    let bytes = value.to_ne_bytes();
    let pattern = bytes.get(..size.clamp(1, 4)).unwrap_or(&bytes);
    if let [byte] = pattern {
        // SAFETY: the range was checked against a live block.
        unsafe { std::ptr::write_bytes(dst as *mut u8, *byte, width) };
        return;
    }
    for i in 0..width {
        let at = (dst + (i * size) as u64) as *mut u8;
        // SAFETY: the range was checked against a live block; `pattern` has `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), at, pattern.len()) };
    }
}

/// Moves up to this size are made by the thread that enqueues them.
const AT_ONCE: u64 = 16 << 10;

static QUEUE: Mutex<VecDeque<Effect>> = Mutex::new(VecDeque::new());
static WORK: Condvar = Condvar::new();
/// Held by whoever runs queued effects, so that they keep their order.
static RUNNING: Mutex<()> = Mutex::new(());
static PUSHED: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);

fn queue() -> MutexGuard<'static, VecDeque<Effect>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes an effect on. The number given is reached by `done` when it and all before it are done.
/// Called under the driver's lock, which is what orders effects.
pub fn submit(effect: Effect) -> u64 {
    let pushed = PUSHED.load(Ordering::Relaxed);
    if effect.bytes() <= AT_ONCE && DONE.load(Ordering::Acquire) == pushed {
        effect.run();
        return pushed;
    }
    static MOVER: Once = Once::new();
    MOVER.call_once(|| crate::process::spawn("cudasim-dma", move_for_ever));
    queue().push_back(effect);
    PUSHED.store(pushed + 1, Ordering::Release);
    WORK.notify_one();
    pushed + 1
}

/// Whether the effects up to `number` are done.
pub fn done(number: u64) -> bool {
    DONE.load(Ordering::Acquire) >= number
}

/// Makes sure that the effects up to `number` are done, helping if the driver's thread is late.
/// Not to be called under the driver's lock.
pub fn finish(number: u64) {
    while !done(number) {
        run_next();
    }
}

/// Runs the oldest queued effect, if there is one.
fn run_next() {
    let _turn = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    // Taken in a statement of its own: the queue must not stay locked while it runs.
    let next = queue().pop_front();
    if let Some(effect) = next {
        effect.run();
        DONE.fetch_add(1, Ordering::AcqRel);
    }
}

fn move_for_ever() {
    loop {
        let mut waiting = queue();
        while waiting.is_empty() {
            waiting = WORK.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        drop(waiting);
        run_next();
    }
}
