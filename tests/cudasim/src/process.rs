//! What belongs to a process or a thread of it: ids, the stack of current contexts, life after
//! `fork`, the end of the process, and the driver's own threads.

use std::cell::{Cell, RefCell};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::Handle;
use crate::{oracle, stubs};

/// State of the calling thread.
pub struct Thread {
    tid: Cell<u32>,
    /// Contexts pushed, the last one current.
    pub contexts: RefCell<Vec<Handle>>,
    /// `CUstreamCaptureMode` for calls that capture may forbid.
    pub capture_mode: Cell<i32>,
    /// In a host function: no driver call is permitted there.
    pub in_callback: Cell<bool>,
}

thread_local! {
    static THREAD: Thread = const { Thread {
        tid: Cell::new(0),
        contexts: RefCell::new(Vec::new()),
        capture_mode: Cell::new(0),
        in_callback: Cell::new(false),
    } };
}

/// Runs `f` on the calling thread's state; nothing while the thread is being torn down.
pub fn thread<R>(f: impl FnOnce(&Thread) -> R) -> Option<R> {
    THREAD.try_with(f).ok()
}

/// The calling thread's kernel id.
pub fn tid() -> u32 {
    thread(|t| {
        if t.tid.get() == 0 {
            t.tid.set(kernel_tid());
        }
        t.tid.get()
    })
    .unwrap_or_else(kernel_tid)
}

fn kernel_tid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

static PID: AtomicU32 = AtomicU32::new(0);

/// This process's id.
pub fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => {
            let pid = std::process::id();
            PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// The context that driver calls of this thread act in; 0 for none.
pub fn current_context() -> Handle {
    thread(|t| t.contexts.borrow().last().copied()).flatten().unwrap_or(0)
}

/// Installs the fork and exit handlers, once per process image.
pub fn install_handlers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded (nodelete).
        unsafe {
            libc::pthread_atfork(None, None, Some(after_fork));
            libc::atexit(at_exit);
        }
    });
}

/// In the child of a fork: a new process, in which an initialised driver is unusable.
extern "C" fn after_fork() {
    PID.store(0, Ordering::Relaxed);
    thread(|t| t.tid.set(0));
    oracle::after_fork();
    stubs::after_fork();
}

/// At exit: nothing may run after the oracle's last line, so the driver is closed first.
extern "C" fn at_exit() {
    stubs::deinitialise();
    oracle::at_exit();
}

/// Starts a thread of the driver's own, deaf to the program's signals.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    // SAFETY: the sets are local and initialised by the calls; the old mask is put back.
    let old = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    };
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: `old` is what the first call gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    if let Err(e) = started {
        eprintln!("cudasim (simulated CUDA driver): no thread {name}: {e}");
    }
}
