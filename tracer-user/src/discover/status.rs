//! What `/proc/<pid>/status` says that decides what may be done with a process.

use std::{fs, io};

/// Threads of a process that are looked at.
const MAX_THREADS: usize = 4_096;

/// A process's or a thread's rights and protections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Effective user id.
    pub euid: u32,
    /// Effective capabilities, one bit each as in `linux/capability.h`.
    pub capabilities: u64,
    /// Its system calls pass through a seccomp filter.
    pub seccomp_filter: bool,
    /// It runs on a user shadow stack (x86).
    pub shadow_stack: bool,
    /// It has ended and waits to be collected.
    pub zombie: bool,
    /// It has memory of its own; kernel threads have none.
    pub has_memory: bool,
}

/// Of this process.
///
/// # Errors
/// Where `/proc` is not mounted.
pub fn own() -> io::Result<Status> {
    Ok(parse(&fs::read_to_string("/proc/self/status")?))
}

/// Of a process: what holds for any of its threads. Filters and shadow stacks are each thread's
/// own.
///
/// # Errors
/// Where the process is gone.
pub fn of(pid: u32) -> io::Result<Status> {
    let mut status = parse(&fs::read_to_string(format!("/proc/{pid}/status"))?);
    // A thread that has ended meanwhile does not matter.
    for entry in fs::read_dir(format!("/proc/{pid}/task"))?.flatten().take(MAX_THREADS) {
        if let Ok(page) = fs::read_to_string(entry.path().join("status")) {
            let thread = parse(&page);
            status.seccomp_filter |= thread.seccomp_filter;
            status.shadow_stack |= thread.shadow_stack;
        }
    }
    Ok(status)
}

/// Reads the page: lines of a name, a colon and words.
fn parse(page: &str) -> Status {
    let mut status = Status::default();
    for line in page.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let mut words = value.split_whitespace();
        match name {
            "State" => status.zombie = matches!(words.next(), Some("Z" | "X")),
            // Real, effective, saved, file system.
            "Uid" => status.euid = words.nth(1).and_then(|id| id.parse().ok()).unwrap_or(u32::MAX),
            "VmSize" => status.has_memory = true,
            "CapEff" => {
                status.capabilities =
                    words.next().and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
            }
            // 0 none, 1 strict, 2 a filter.
            "Seccomp" => status.seccomp_filter = words.next() == Some("2"),
            // What is on; the line that ends in `_locked` lists what cannot be changed any more.
            "x86_Thread_features" => status.shadow_stack = words.any(|word| word == "shstk"),
            _ => {}
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages() {
        let page = "Name:\ta: Z\nState:\tS (sleeping)\nUid:\t0\t1000\t0\t0\nVmSize:\t  1 kB\n\
            CapEff:\t000001c000000000\nSeccomp:\t2\nSeccomp_filters:\t1\n\
            x86_Thread_features:\tshstk wrss\nx86_Thread_features_locked:\n";
        let wanted = Status {
            euid: 1000,
            capabilities: 0x1c0_0000_0000,
            seccomp_filter: true,
            shadow_stack: true,
            zombie: false,
            has_memory: true,
        };
        assert_eq!(parse(page), wanted);
        let locked = parse("State:\tZ\nSeccomp:\t1\nx86_Thread_features_locked:\tshstk\n");
        assert_eq!(
            (locked.zombie, locked.seccomp_filter, locked.shadow_stack),
            (true, false, false)
        );
    }

    #[test]
    fn ones_own() {
        let status = own().unwrap();
        assert!(status.has_memory);
        assert_eq!(of(std::process::id()).unwrap().euid, status.euid);
        assert!(of(u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn hostile_pages_are_survived(page in r"(?s)(State|Uid|CapEff|Seccomp|:|\s|[0-9a-fZ]|.){0,80}") {
            parse(&page);
        }
    }
}
