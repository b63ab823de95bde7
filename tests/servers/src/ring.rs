//! Memory that two processes share: one leaves plans there, the other carries them out. Neither wakes
//! the other, both poll.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::clock::{now_ns, sleep, thread_id};
use crate::oracle::{Hand, Record};
use crate::plan::Plan;
use crate::work::Worker;

/// Plans that may lie there at a time.
const SLOTS: usize = 8;
/// Bytes of a plan, and of what is told of its work.
const ROOM: usize = 256 * 1024;
/// How long a thread gives the processor away between looks, ns; then it sleeps for a little.
const YIELDS_NS: u64 = 100_000_000;
const NAP_NS: u64 = 200_000;
/// How long an answer may take, ns.
const PATIENCE_NS: u64 = 300_000_000_000;

const EMPTY: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;

/// A plan on its way there, or what came of it on its way back. The state says whose it is.
#[repr(C)]
struct Slot {
    state: AtomicU32,
    tid: AtomicU32,
    begin: AtomicU64,
    end: AtomicU64,
    /// Bytes of why it failed, 0 where it did not; what is told of the work follows.
    why: AtomicU32,
    len: AtomicU32,
    bytes: [AtomicU8; ROOM],
}

#[repr(C)]
struct Memory {
    /// 1: the process that carries plans out is ready.
    ready: AtomicU32,
    /// 1: it is to end.
    closed: AtomicU32,
    slots: [Slot; SLOTS],
}

/// One process's end of it.
#[derive(Clone, Copy)]
pub struct Ring {
    memory: &'static Memory,
    next: usize,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({})", self.next)
    }
}

/// Polls until it is found, at most for so long; whether it was.
fn poll(patience_ns: u64, mut found: impl FnMut() -> bool) -> bool {
    let begun = now_ns();
    while !found() {
        match now_ns() - begun {
            // SAFETY: it takes no arguments.
            waited if waited < YIELDS_NS => drop(unsafe { libc::sched_yield() }),
            waited if waited < patience_ns => sleep(NAP_NS),
            _ => return false,
        }
    }
    true
}

impl Slot {
    fn put(&self, at: usize, text: &str) -> usize {
        let room = self.bytes.get(at..).unwrap_or_default();
        room.iter().zip(text.bytes()).for_each(|(to, byte)| to.store(byte, Relaxed));
        text.len().min(room.len())
    }

    fn text(&self, from: usize, to: usize) -> String {
        let bytes = self.bytes.get(from..to).unwrap_or_default();
        let bytes: Vec<u8> = bytes.iter().map(|byte| byte.load(Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Ring {
    /// Memory that a child process inherits by this descriptor.
    pub fn new() -> io::Result<(Ring, File)> {
        // SAFETY: the name is a C string; without MFD_CLOEXEC a child has the descriptor too.
        let fd = unsafe { libc::memfd_create(c"ring".as_ptr(), 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: memfd_create returned this descriptor; nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size_of::<Memory>() as u64)?;
        Ok((Ring::of(file.as_raw_fd())?, file))
    }

    /// The same memory in the child.
    pub fn of(fd: RawFd) -> io::Result<Ring> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Memory>(),
                rights,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is large and aligned enough, is never undone, begins as zeros, which
        // is a valid value, and all of it is atomic.
        let memory = unsafe { &*at.cast::<Memory>() };
        Ok(Ring { memory, next: 0 })
    }

    /// Waits for the other process to be ready; whether it is.
    pub fn wait_ready(&self) -> bool {
        poll(PATIENCE_NS, || self.memory.ready.load(Acquire) == 1)
    }

    /// Ends the other process.
    pub fn close(&self) {
        self.memory.closed.store(1, Release);
    }

    /// Has a plan carried out by the other process, and polls until that is done.
    pub fn ask(&mut self, plan: &Plan, record: &mut Record) -> Result<(), String> {
        let Some(slot) = self.memory.slots.get(self.next % SLOTS) else {
            return Err("no room".to_owned());
        };
        self.next += 1;
        let len = slot.put(0, &plan.to_string());
        slot.len.store(len as u32, Relaxed);
        let handed = now_ns();
        slot.state.store(ASKED, Release);
        if !poll(PATIENCE_NS, || slot.state.load(Acquire) == ANSWERED) {
            return Err("the other process does not answer".to_owned());
        }
        let (why, len) = (slot.why.load(Relaxed) as usize, slot.len.load(Relaxed) as usize);
        let why = slot.text(0, why);
        record.elsewhere = slot.text(why.len(), len);
        record.tid = slot.tid.load(Relaxed) as i32;
        let (begin, end) = (slot.begin.load(Relaxed), slot.end.load(Relaxed));
        record.hands.push(Hand { handed, worker: record.tid, begin, end });
        slot.state.store(EMPTY, Release);
        if why.is_empty() { Ok(()) } else { Err(why) }
    }

    /// Carries out what the other process leaves there, until it says that this is the end.
    pub fn serve(&mut self, worker: &mut Worker, record: &mut Record) {
        let memory = self.memory;
        memory.ready.store(1, Release);
        loop {
            let Some(slot) = memory.slots.get(self.next % SLOTS) else { return };
            let closed = || memory.closed.load(Acquire) == 1;
            poll(u64::MAX, || slot.state.load(Acquire) == ASKED || closed());
            if closed() {
                return;
            }
            slot.begin.store(now_ns(), Relaxed);
            self.next += 1;
            let plan = slot.text(0, slot.len.load(Relaxed) as usize);
            let done = plan.parse().map_err(|bad| format!("{bad}"));
            let done = done.and_then(|plan: Plan| worker.carry_out(&plan, record));
            let mut told = String::new();
            record.format_elsewhere(std::process::id(), &mut told);
            record.clear();
            let why = done.err().unwrap_or_default();
            let why = slot.put(0, &why);
            slot.why.store(why as u32, Relaxed);
            slot.len.store((why + slot.put(why, &told)) as u32, Relaxed);
            slot.tid.store(thread_id() as u32, Relaxed);
            slot.end.store(now_ns(), Relaxed);
            slot.state.store(ANSWERED, Release);
        }
    }
}
