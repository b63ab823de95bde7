//! Whom a return probe would end.
//!
//! A return probe changes the return address of a call. Two protections of a process stand against
//! that on some kernels, and the kernel then ends the process instead. Probes sit in files, and
//! every process that maps the file meets them, traced or not: so each of those has to be asked.

use std::fmt;

use super::{
    kernel::Version,
    process,
    status::{self, Status},
};

/// Why a process must not meet a return probe: the kernel would end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnRefusal {
    /// Linux 6.11 to 6.13 return from a probed function by a system call, which a seccomp filter
    /// does not know and refuses. Since 6.14 filters do not see it.
    SeccompFilter,
    /// Linux 6.6 to 6.10 do not change the return address on the shadow stack, so that the
    /// processor finds two that differ.
    ShadowStack,
}

impl fmt::Display for ReturnRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SeccompFilter => {
                "return probes would end a process with a seccomp filter on Linux 6.11 to 6.13"
            }
            Self::ShadowStack => {
                "return probes would end a process with a user shadow stack on Linux 6.6 to 6.10"
            }
        })
    }
}

impl ReturnRefusal {
    /// Whether any process can be in danger on this kernel.
    pub fn possible(kernel: Version) -> bool {
        (Version(6, 6)..=Version(6, 13)).contains(&kernel)
    }

    /// Whether a process with these protections is in danger on this kernel. Kernels that took the
    /// repairs over into an older version are not told apart: refusing costs less than a crash.
    pub fn of(kernel: Version, status: &Status) -> Option<Self> {
        match kernel {
            Version(6, 11..=13) if status.seccomp_filter => Some(Self::SeccompFilter),
            Version(6, 6..=10) if status.shadow_stack => Some(Self::ShadowStack),
            _ => None,
        }
    }
}

/// A process that maps the file, by device and inode, under a `wanted` name, and that return probes
/// in it would end on this kernel. A process that maps it later is not asked.
pub fn in_danger(
    kernel: Version,
    (device, inode): (u64, u64),
    wanted: fn(&str) -> bool,
) -> Option<(u32, ReturnRefusal)> {
    if !ReturnRefusal::possible(kernel) {
        return None;
    }
    process::all_pids().into_iter().find_map(|pid| {
        // One that cannot be asked is gone, or nobody may see it.
        let refusal = ReturnRefusal::of(kernel, &status::of(pid).ok()?)?;
        let files = process::mapped(pid, wanted).ok()?;
        let maps = files.iter().any(|file| (file.device, file.inode) == (device, inode));
        maps.then_some((pid, refusal))
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn who_may_not_meet_a_return_probe() {
        let filtered = Status { seccomp_filter: true, ..Status::default() };
        let shadowed = Status { shadow_stack: true, ..Status::default() };
        let refused = |minor, status| ReturnRefusal::of(Version(6, minor), status);
        assert_eq!(refused(10, &filtered), None);
        assert_eq!(refused(11, &filtered), Some(ReturnRefusal::SeccompFilter));
        assert_eq!(refused(13, &filtered), Some(ReturnRefusal::SeccompFilter));
        assert_eq!(refused(14, &filtered), None);
        assert_eq!(refused(5, &shadowed), None);
        assert_eq!(refused(6, &shadowed), Some(ReturnRefusal::ShadowStack));
        assert_eq!(refused(11, &shadowed), None);
        for minor in 0..30 {
            let any = refused(minor, &filtered).or(refused(minor, &shadowed)).is_some();
            assert_eq!(any, ReturnRefusal::possible(Version(6, minor)), "6.{minor}");
        }
    }

    #[test]
    fn whoever_maps_the_file_is_asked() {
        let script = include_str!("../../../tests/servers/python/behind_a_filter.py");
        let mut child = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let wanted: fn(&str) -> bool = |name| name.starts_with("libc.so");
        let file = process::mapped(child.id(), wanted).unwrap().remove(0);
        let file = (file.device, file.inode);
        let found = in_danger(Version(6, 12), file, wanted);
        let later = in_danger(Version(6, 14), file, wanted);
        let other = in_danger(Version(6, 12), (file.0, file.1 ^ 1), wanted);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(line.trim(), "ready");
        // Another process of the machine may have a filter too.
        assert!(matches!(found, Some((_, ReturnRefusal::SeccompFilter))), "{found:?}");
        assert_eq!((later, other), (None, None));
    }
}
