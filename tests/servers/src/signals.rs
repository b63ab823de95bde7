//! The signals that end a server, waited for by one thread.

use std::io::{self, Read};

/// The signals that end the server; blocked, so that no call of any thread is interrupted.
fn ending() -> libc::sigset_t {
    // SAFETY: a set of zeros is valid and is emptied before use; the pointers are to it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        set
    }
}

/// Blocks SIGTERM and SIGINT in this thread and those it starts, so that [`wait`] can wait for
/// them. To be called before any thread is started.
pub fn block() {
    let set = ending();
    // SAFETY: the set is valid; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// Waits for SIGTERM or SIGINT.
pub fn wait() {
    let set = ending();
    let mut signal = 0;
    // SAFETY: both pointers are valid for the call.
    unsafe { libc::sigwait(&set, &mut signal) };
}

/// Makes the end of standard input the same as SIGTERM.
pub fn end_with_stdin() -> io::Result<()> {
    std::thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        let mut byte = [0];
        while matches!(io::stdin().read(&mut byte), Ok(1)) {}
        // SAFETY: kill takes no pointers; the signal goes to this very process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    })?;
    Ok(())
}
