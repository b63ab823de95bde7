//! One set of probes per machine: a lock that dies with its holder.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
};

use rustix::fs::{FlockOperation, flock};

use crate::doctor::Holder;

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

/// Who holds the lock, without touching it: whoever tried it, even for a moment, would keep a tracer
/// from starting.
pub fn holder() -> Holder {
    let file = match fs::metadata(path()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Holder::Nobody,
        Err(error) => return Holder::Unknown(format!("{}: {error}", path().display())),
    };
    match fs::read_to_string("/proc/locks") {
        Ok(locks) => locked(&locks, file.ino()).map_or(Holder::Nobody, Holder::Process),
        Err(error) => Holder::Unknown(format!("/proc/locks: {error}")),
    }
}

/// The process that has a lock on the file: lines like
/// `1: FLOCK  ADVISORY  WRITE 708 00:16:1032 0 EOF`, with a pid of 0 or less where it is not ours to
/// know. The device is left out: some file systems show another one here than elsewhere.
fn locked(locks: &str, inode: u64) -> Option<Option<u32>> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = words.as_slice() else { return None };
        let held = place.rsplit(':').next()?.parse() == Ok(inode);
        held.then(|| pid.parse().ok().filter(|pid| *pid > 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 700 00:16:1032 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 708 00:16:1032 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 709 00:16:1033 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE -1 00:16:7 0 EOF\n";
        assert_eq!(locked(locks, 1032), Some(Some(708)));
        assert_eq!(locked(locks, 7), Some(None));
        assert_eq!(locked(locks, 1033), None, "that one waits");
        assert_eq!(locked("", 1), None);
    }

    #[test]
    fn a_lock_is_seen_where_the_kernel_shows_it() {
        let file = tempfile::tempfile().unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let inode = file.metadata().unwrap().ino();
        assert_eq!(locked(&locks, inode), Some(Some(std::process::id())));
    }
}
