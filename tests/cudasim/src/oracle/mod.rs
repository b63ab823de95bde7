//! The oracle: what really ran on the simulated device, when and for whom, as JSON lines.
//!
//! Calling threads only append to a buffer of their own; a thread of the driver formats and
//! writes. A forked child has its own oracle, made at its first record.

mod buffer;
mod record;
mod writer;

use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use buffer::{Buffer, Spare, lock};
use record::Record;
pub use record::{Kind, Op};
use writer::Writer;

/// A thread's buffer, shared with the writer.
type Shared = Arc<Mutex<Buffer>>;

/// The oracle of one process.
struct Oracle {
    buffers: Mutex<Vec<Shared>>,
    spare: Spare,
    writer: Mutex<Writer>,
}

/// Null until the first record in this process.
static ORACLE: AtomicPtr<Oracle> = AtomicPtr::new(std::ptr::null_mut());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// This thread's buffer and the oracle (by address) that it belongs to.
    static BUFFER: RefCell<Option<(usize, Shared)>> = const { RefCell::new(None) };
}

/// `CUDASIM_ORACLE`, if set.
fn path() -> Option<&'static str> {
    static PATH: OnceLock<Option<String>> = OnceLock::new();
    PATH.get_or_init(|| std::env::var("CUDASIM_ORACLE").ok().filter(|p| !p.is_empty())).as_deref()
}

/// Whether operations are recorded.
pub fn wanted() -> bool {
    path().is_some()
}

/// Whether calls are recorded too.
pub fn wants_calls() -> bool {
    wanted() && std::env::var("CUDASIM_ORACLE_CALLS").as_deref() != Ok("0")
}

/// A number for an operation, unique in this process.
pub fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Records an operation whose times are known.
pub fn op(op: Op) {
    if wanted() {
        push(Record::Op(op));
    }
}

/// Records how much memory of a device this process holds now.
pub fn memory(device: i32, used: u64) {
    if wanted() {
        push(Record::Memory { device, used, at: crate::clock::now() });
    }
}

/// Records a call of an exported function.
pub fn call(api: &'static str, enter: u64, exit: u64, ret: i32) {
    push(Record::Call { api, tid: crate::process::tid(), enter, exit, ret });
}

fn push(record: Record) {
    let Some(oracle) = oracle() else { return };
    let key = std::ptr::from_ref(oracle) as usize;
    let kept = BUFFER.try_with(|slot| {
        let mut slot = slot.borrow_mut();
        match &*slot {
            Some((owner, buffer)) if *owner == key => lock(buffer).push(record, &oracle.spare),
            _ => *slot = Some((key, oracle.new_buffer(record))),
        }
    });
    if kept.is_err() {
        // The thread is past its locals' end: a buffer of one record.
        oracle.new_buffer(record);
    }
}

impl Oracle {
    /// A buffer that the writer knows of, with its first record.
    fn new_buffer(&self, record: Record) -> Shared {
        let mut buffer = Buffer::default();
        buffer.push(record, &self.spare);
        let shared = Arc::new(Mutex::new(buffer));
        lock(&self.buffers).push(Arc::clone(&shared));
        shared
    }
}

/// This process's oracle, started if need be.
fn oracle() -> Option<&'static Oracle> {
    let mut found = ORACLE.load(Ordering::Acquire);
    if found.is_null() {
        found = start(path()?);
    }
    // SAFETY: oracles are leaked, so a non-null pointer stays valid.
    unsafe { found.as_ref() }
}

fn start(path: &str) -> *mut Oracle {
    static STARTING: Mutex<()> = Mutex::new(());
    // After a fork the lock may be held by a thread that is not here: do without.
    let _guard = STARTING.try_lock();
    let found = ORACLE.load(Ordering::Acquire);
    if !found.is_null() {
        return found;
    }
    let fresh = Box::into_raw(Box::new(Oracle {
        buffers: Mutex::new(Vec::new()),
        spare: Spare::default(),
        writer: Mutex::new(Writer::open(path)),
    }));
    let won =
        ORACLE.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
    match won {
        Ok(_) => {
            crate::process::spawn("cudasim-oracle", write_for_ever);
            fresh
        }
        Err(other) => {
            // SAFETY: `fresh` lost the race and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
            other
        }
    }
}

/// The background writer: often while there is much, seldom while there is nothing.
fn write_for_ever() {
    let mut pause = 10;
    loop {
        std::thread::sleep(std::time::Duration::from_millis(pause));
        let wrote = oracle().is_some_and(flush);
        pause = if wrote { 10 } else { (pause * 2).min(100) };
    }
}

/// Writes what is buffered; false if there was nothing.
fn flush(oracle: &Oracle) -> bool {
    // One flush at a time; it holds the buffers' list only to copy it.
    let mut writer = lock(&oracle.writer);
    let buffers: Vec<Shared> = lock(&oracle.buffers).clone();
    let mut wrote = false;
    for buffer in &buffers {
        let chunks = lock(buffer).drain();
        for chunk in chunks {
            wrote = true;
            for record in &chunk {
                writer.put(record);
            }
            oracle.spare.give(chunk);
        }
    }
    writer.flush();
    drop(buffers);
    // Buffers of threads that ended: held only here, and empty.
    lock(&oracle.buffers).retain(|b| Arc::strong_count(b) > 1 || !lock(b).is_empty());
    wrote
}

/// In the child of a fork: the parent's oracle, its buffers and its file are not ours.
pub fn after_fork() {
    ORACLE.store(std::ptr::null_mut(), Ordering::Release);
}

/// At exit: everything recorded so far goes to the file.
pub fn at_exit() {
    let found = ORACLE.load(Ordering::Acquire);
    // SAFETY: oracles are leaked, so a non-null pointer stays valid.
    if let Some(oracle) = unsafe { found.as_ref() } {
        push(Record::Exit { at: crate::clock::now() });
        flush(oracle);
    }
}
