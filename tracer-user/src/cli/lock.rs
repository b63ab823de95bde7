//! One set of probes per machine: a lock that dies with its holder.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _, Write as _},
    path::PathBuf,
};

use rustix::fs::{FlockOperation, flock};

/// What taking the lock came to.
pub enum Lock {
    /// It is ours until the file is closed.
    Held(#[expect(dead_code, reason = "held for its lock")] File),
    /// Another spanprobe has it; its process id, where it can be read.
    Taken(String),
    /// There is nowhere to put a lock file; tracing goes on without.
    Impossible(String),
}

fn path() -> PathBuf {
    let run = PathBuf::from("/run");
    if run.is_dir() {
        run.join("spanprobe.lock")
    } else {
        std::env::temp_dir().join("spanprobe.lock")
    }
}

/// Takes the lock, without waiting.
pub fn take() -> Lock {
    let path = path();
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    let mut file = match how.open(&path) {
        Ok(file) => file,
        Err(error) => return Lock::Impossible(format!("{}: {error}", path.display())),
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut pid = String::new();
        // The number is a courtesy.
        let _ = (&file).take(32).read_to_string(&mut pid);
        return Lock::Taken(pid.trim().to_owned());
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| write!(file, "{}", std::process::id()));
    match written {
        Ok(()) => Lock::Held(file),
        Err(error) => Lock::Impossible(format!("{}: {error}", path.display())),
    }
}
