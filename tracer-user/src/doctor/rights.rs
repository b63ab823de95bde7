//! Which rights are there, and which are missing, by name.

use std::fs;

use super::{Finding, Group, State, kernel::OLDEST};
use crate::{
    agent::session::in_first_pid_namespace,
    discover::{
        kernel::Version,
        status::{self, Status},
    },
    probe::{Features, Support},
};

/// Capabilities by their numbers in `linux/capability.h`.
const DAC_READ_SEARCH: u32 = 2;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const SYS_RESOURCE: u32 = 24;
const PERFMON: u32 = 38;
const BPF: u32 = 39;
const CHECKPOINT_RESTORE: u32 = 40;

/// Since then memory of programs and maps is counted by cgroup, not against a limit.
const NO_MEMLOCK: Version = Version(5, 11);
/// Locked memory that is asked for before that, bytes: the ring and the maps.
const MEMLOCK_WANTED: u64 = 256 << 20;
/// Descriptors that one driver library takes where its functions are hooked one by one.
const FILES_WANTED: u64 = 4_096;

/// A right, and what it is for.
struct Right {
    name: &'static str,
    bit: u32,
    /// Another that includes it.
    or: u32,
    without: (State, &'static str),
}

const RIGHTS: [Right; 6] = [
    Right {
        name: "CAP_BPF",
        bit: BPF,
        or: SYS_ADMIN,
        without: (State::Missing, "the kernel half cannot be loaded"),
    },
    Right {
        name: "CAP_PERFMON",
        bit: PERFMON,
        or: SYS_ADMIN,
        without: (State::Missing, "the kernel half cannot be attached, or read what it traces"),
    },
    Right {
        name: "CAP_SYS_PTRACE",
        bit: SYS_PTRACE,
        or: SYS_PTRACE,
        without: (
            State::Degraded,
            "other users' processes cannot be looked at: what their descriptors are and what they \
             map is not known",
        ),
    },
    Right {
        name: "CAP_DAC_READ_SEARCH",
        bit: DAC_READ_SEARCH,
        // Whoever may override may read.
        or: 1,
        without: (
            State::Degraded,
            "only files of one's own can be read: not the libraries of others, nor, unless one is \
             root, tracefs",
        ),
    },
    Right {
        name: "CAP_CHECKPOINT_RESTORE",
        bit: CHECKPOINT_RESTORE,
        or: SYS_ADMIN,
        without: (State::Degraded, "a driver library that was deleted or replaced is not hooked"),
    },
    Right {
        name: "CAP_SYS_ADMIN",
        bit: SYS_ADMIN,
        or: SYS_ADMIN,
        without: (
            State::Degraded,
            "which Unix sockets are connected is not known in other network namespaces (containers)",
        ),
    },
];

/// Findings about the rights of this process.
pub(super) fn examine(release: &str, features: &Features) -> Group {
    let own = status::own().unwrap_or_default();
    let mut findings = Vec::new();
    findings.extend(user_namespace(fs::read_to_string("/proc/self/uid_map").ok().as_deref()));
    findings.extend(RIGHTS.iter().map(|right| capability(right, own.capabilities)));
    findings.push(loading(&own, &features.ring_buffer, &features.uprobe));
    findings.extend(settings(&own));
    findings.push(memlock(Version::parse(release), own.capabilities));
    findings.extend(files(&features.uprobe_multi, own.capabilities));
    findings.push(pid_namespace(in_first_pid_namespace()));
    Group { name: "rights", findings }
}

fn has(capabilities: u64, bit: u32) -> bool {
    capabilities >> bit & 1 == 1
}

fn capability(right: &Right, capabilities: u64) -> Finding {
    let check = format!("rights.{}", right.name);
    if has(capabilities, right.bit) || has(capabilities, right.or) {
        return Finding::ok(check, format!("{} is there", right.name));
    }
    let (state, means) = right.without;
    Finding::gap(
        state,
        check,
        format!("{} is missing", right.name),
        means,
        format!("run as root, or give it {}", right.name),
    )
}

/// Rights inside a user namespace of one's own count for nothing outside.
fn user_namespace(map: Option<&str>) -> Option<Finding> {
    let words: Vec<&str> = map?.split_whitespace().collect();
    if words == ["0", "0", "4294967295"] {
        return None;
    }
    Some(Finding::gap(
        State::Missing,
        "rights.user_namespace",
        "this is a user namespace of its own",
        "its root is not the machine's: its rights count for nothing with the kernel half",
        "run outside it (without unshare -U, rootless containers, userns-remap)",
    ))
}

/// What the kernel does, whatever the capabilities say.
fn loading(own: &Status, ring: &Support, program: &Support) -> Finding {
    const CHECK: &str = "rights.load";
    if *ring != Support::Denied && *program != Support::Denied {
        return Finding::ok(CHECK, "the kernel takes maps and programs from this process");
    }
    let allowed = |bit| has(own.capabilities, bit) || has(own.capabilities, SYS_ADMIN);
    let remedy = match (allowed(BPF) && allowed(PERFMON), own.seccomp_filter) {
        (true, true) => {
            "this process runs under a seccomp filter, which seems to refuse bpf(): let it \
             (seccomp=unconfined, or privileged)"
        }
        (true, false) => {
            "the capabilities are there: look for a security module (SELinux, AppArmor) or a user \
             namespace that refuses"
        }
        (false, _) => "give it the capabilities that are missing above, or run as root",
    };
    Finding::gap(
        State::Missing,
        CHECK,
        "the kernel refuses maps or programs of this process (EPERM)",
        "nothing can be traced",
        remedy,
    )
}

/// What the administrator set for those without capabilities: said only where it matters.
fn settings(own: &Status) -> Vec<Finding> {
    let number = |name: &str| -> Option<i32> {
        fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
    };
    let rows = [
        (BPF, "unprivileged_bpf_disabled", 1, "CAP_BPF"),
        (PERFMON, "perf_event_paranoid", 2, "CAP_PERFMON"),
    ];
    let told = |(bit, name, shut, capability): (u32, &str, i32, &str)| {
        if has(own.capabilities, bit) || has(own.capabilities, SYS_ADMIN) {
            return None;
        }
        let value = number(name)?;
        let found = format!("kernel.{name} = {value}");
        let means = if value >= shut {
            format!("the kernel insists on {capability}")
        } else {
            format!("spanprobe needs {capability} all the same")
        };
        Some(Finding::noted(format!("rights.{name}"), found, means))
    };
    rows.into_iter().filter_map(told).collect()
}

fn memlock(version: Option<Version>, capabilities: u64) -> Finding {
    const CHECK: &str = "rights.memlock";
    if version.is_none_or(|version| version >= NO_MEMLOCK) {
        let found = format!("the limit on locked memory does not count since Linux {NO_MEMLOCK}");
        return Finding::ok(CHECK, found);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    if limit.is_none_or(|limit| limit >= MEMLOCK_WANTED) || has(capabilities, SYS_RESOURCE) {
        return Finding::ok(CHECK, "enough memory may be locked");
    }
    Finding::gap(
        State::Missing,
        CHECK,
        format!("at most {} KiB may be locked", limit.unwrap_or(0) >> 10),
        format!("the ring and the maps do not fit (before Linux {NO_MEMLOCK})"),
        format!("ulimit -l unlimited, or LimitMEMLOCK=infinity, or Linux {OLDEST}"),
    )
}

/// Only where functions are hooked one by one does each take descriptors.
fn files(multi: &Support, capabilities: u64) -> Option<Finding> {
    const CHECK: &str = "rights.files";
    if *multi == Support::Yes {
        return None;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if limit.is_none_or(|limit| limit >= FILES_WANTED) || has(capabilities, SYS_RESOURCE) {
        return Some(Finding::ok(CHECK, "enough descriptors may be open"));
    }
    Some(Finding::gap(
        State::Degraded,
        CHECK,
        format!("at most {} descriptors may be open", limit.unwrap_or(0)),
        "not every function of a driver library can be hooked",
        format!("ulimit -n {FILES_WANTED}, or LimitNOFILE={FILES_WANTED}"),
    ))
}

fn pid_namespace(first: bool) -> Finding {
    const CHECK: &str = "rights.pid_namespace";
    if first {
        return Finding::ok(CHECK, "this is the machine's own pid namespace");
    }
    Finding::gap(
        State::Missing,
        CHECK,
        "this is not the machine's own pid namespace",
        "the kernel's process ids match none of those that are seen here",
        "run with the host's pid namespace (hostPID: true, --pid=host)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(capabilities: u64) -> Vec<&'static str> {
        let gap = |right: &&Right| capability(right, capabilities).state != State::Ok;
        RIGHTS.iter().filter(gap).map(|right| right.name).collect()
    }

    #[test]
    fn capabilities_are_missed_by_name() {
        assert_eq!(missing(u64::MAX), [""; 0]);
        assert_eq!(missing(0).len(), RIGHTS.len());
        assert_eq!(missing(!(1 << BPF)), [""; 0], "CAP_SYS_ADMIN includes it");
        assert_eq!(missing(!(1 << BPF | 1 << SYS_ADMIN)), ["CAP_BPF", "CAP_SYS_ADMIN"]);
        assert_eq!(missing(!(1 << SYS_PTRACE)), ["CAP_SYS_PTRACE"]);
        let least = 1 << BPF | 1 << PERFMON | 1 << SYS_PTRACE | 1 << DAC_READ_SEARCH;
        assert_eq!(missing(least), ["CAP_CHECKPOINT_RESTORE", "CAP_SYS_ADMIN"]);
    }

    #[test]
    fn refusals_have_their_remedy() {
        let remedy = |capabilities, seccomp_filter| {
            let own = Status { capabilities, seccomp_filter, ..Status::default() };
            loading(&own, &Support::Denied, &Support::Yes).remedy.unwrap()
        };
        assert!(remedy(0, true).contains("missing above"));
        assert!(remedy(u64::MAX, true).contains("seccomp"));
        assert!(remedy(u64::MAX, false).contains("SELinux"));
        let own = Status::default();
        assert_eq!(loading(&own, &Support::Yes, &Support::No).state, State::Ok);
    }

    #[test]
    fn namespaces() {
        assert_eq!(user_namespace(Some("         0          0 4294967295\n")), None);
        assert!(user_namespace(Some("0 1000 1\n")).is_some());
        assert_eq!(pid_namespace(false).state, State::Missing);
    }

    #[test]
    fn locked_memory_mattered_once() {
        assert_eq!(memlock(Some(Version(5, 15)), 0).state, State::Ok);
        assert_eq!(memlock(Some(Version(5, 10)), 1 << SYS_RESOURCE).state, State::Ok);
    }
}
