//! What the kernel has of what the kernel half is made of.

use std::fs;

use super::{Finding, Group, State};
use crate::{
    discover::{kernel::Version, refusal::ReturnRefusal, sockets::Sockets},
    probe::{Features, Support, Survey},
};

/// The oldest kernel on which everything that is needed exists.
pub(super) const OLDEST: Version = Version(5, 15);
const NEWER_KERNEL: &str = "use a newer kernel";

/// Findings about the kernel.
pub(super) fn examine(release: &str, features: &Features, survey: &Survey) -> Group {
    let version = Version::parse(release);
    let mut findings = vec![version_of(release, version), machine(std::env::consts::ARCH)];
    findings.extend(programs(version, features));
    findings.push(btf(&features.btf));
    let lock = fs::read_to_string("/sys/kernel/security/lockdown").ok();
    findings.push(lockdown(lock.as_deref(), survey.root.is_ok()));
    findings.extend(version.and_then(returns));
    findings.push(unix_peers(Sockets::of(std::process::id()).peers_unknown()));
    Group { name: "kernel", findings }
}

fn version_of(release: &str, version: Option<Version>) -> Finding {
    const CHECK: &str = "kernel.version";
    match version {
        Some(version) if version >= OLDEST => {
            Finding::ok(CHECK, format!("{release} ({OLDEST} or later is needed)"))
        }
        Some(_) => Finding::gap(
            State::Missing,
            CHECK,
            format!("{release}; {OLDEST} or later is needed"),
            "the kernel half cannot be loaded",
            NEWER_KERNEL,
        ),
        None => Finding::noted(
            CHECK,
            format!("{release:?} is not understood"),
            "only what the kernel says itself is known of it",
        ),
    }
}

fn machine(arch: &str) -> Finding {
    const CHECK: &str = "kernel.architecture";
    if arch == "x86_64" {
        return Finding::ok(CHECK, arch);
    }
    Finding::gap(
        State::Missing,
        CHECK,
        format!("{arch}; only x86_64 is known"),
        "arguments of calls would be read from the wrong places",
        "trace on an x86-64 machine",
    )
}

/// A feature, and what it is for.
struct Need {
    check: &'static str,
    words: &'static str,
    since: Version,
    without: (State, &'static str, &'static str),
}

fn programs(version: Option<Version>, features: &Features) -> Vec<Finding> {
    let needed = |means| (State::Missing, means, NEWER_KERNEL);
    let needs = [
        (
            &features.ring_buffer,
            Need {
                check: "kernel.ring_buffer",
                words: "ring buffer",
                since: Version(5, 8),
                without: needed("events cannot reach the agent"),
            },
        ),
        (
            &features.raw_tracepoint,
            Need {
                check: "kernel.raw_tracepoint",
                words: "raw tracepoints",
                since: Version(4, 17),
                without: needed("system calls are not seen, and with them no request"),
            },
        ),
        (
            &features.tracepoint,
            Need {
                check: "kernel.tracepoint",
                words: "tracepoints",
                since: Version(4, 7),
                without: needed("processes and threads are not seen to begin and end"),
            },
        ),
        (
            &features.uprobe,
            Need {
                check: "kernel.uprobe",
                words: "programs at functions of libraries (uprobes)",
                since: Version(4, 3),
                without: (State::Degraded, "the CUDA driver is not seen", NEWER_KERNEL),
            },
        ),
        (
            &features.attach_cookie,
            Need {
                check: "kernel.attach_cookie",
                words: "attach cookies",
                since: Version(5, 15),
                without: (State::Degraded, "the CUDA driver is not seen", NEWER_KERNEL),
            },
        ),
        (
            &features.uprobe_multi,
            Need {
                check: "kernel.uprobe_multi",
                words: "uprobe.multi",
                since: Version(6, 6),
                without: (
                    State::Degraded,
                    "uprobes are attached one by one: it takes the kernel up to a minute to let \
                     go of them after the agent has ended",
                    "use Linux 6.6 or later, or wait at the end",
                ),
            },
        ),
    ];
    needs.into_iter().map(|(support, need)| feature(version, support, &need)).collect()
}

fn feature(version: Option<Version>, support: &Support, need: &Need) -> Finding {
    let Need { check, words, since, without: (state, means, remedy) } = *need;
    let by_version = match version {
        Some(version) if version >= since => Some(true),
        Some(_) => Some(false),
        None => None,
    };
    match (support, by_version) {
        (Support::Yes, _) => Finding::ok(check, format!("{words}: the kernel has it")),
        (Support::No, _) | (_, Some(false)) => {
            let found = format!("{words}: this kernel does not have it (Linux {since} does)");
            Finding::gap(state, check, found, means, remedy)
        }
        (Support::Denied, Some(true)) => {
            let found = format!("{words}: should be there since Linux {since}");
            Finding::noted(check, found, "without rights the kernel does not say")
        }
        (Support::Denied, None) => {
            let found = format!("{words}: not known");
            Finding::noted(check, found, "without rights the kernel does not say")
        }
        (Support::Unknown(why), _) => {
            let found = format!("{words}: not known: {why}");
            Finding::gap(
                State::Degraded,
                check,
                found,
                format!("if it is not there: {means}"),
                remedy,
            )
        }
    }
}

fn btf(support: &Support) -> Finding {
    let found = match support {
        Support::Yes => "the kernel takes type information (BTF); none of its own is needed",
        _ => "no type information (BTF); it is not needed",
    };
    Finding::ok("kernel.btf", found)
}

/// `page` is like `none [integrity] confidentiality`.
fn lockdown(page: Option<&str>, tracefs: bool) -> Finding {
    const CHECK: &str = "kernel.lockdown";
    let mode = page.and_then(|page| page.split_once('[')?.1.split_once(']').map(|(mode, _)| mode));
    match mode {
        Some("confidentiality") => Finding::gap(
            State::Missing,
            CHECK,
            "confidentiality",
            "the kernel lets no program read its memory, and nobody read tracefs",
            "boot with lockdown=integrity, or without lockdown",
        ),
        Some(mode) => Finding::ok(CHECK, format!("{mode}; it does not stand in the way")),
        None if tracefs => Finding::noted(
            CHECK,
            "not told: securityfs is not mounted, or the kernel has no lockdown",
            "in confidentiality mode tracefs would be shut, and it is not",
        ),
        None => Finding::ok(CHECK, "not told: securityfs is not mounted"),
    }
}

/// Where return probes are a danger, that is said even before a target is known.
fn returns(version: Version) -> Option<Finding> {
    ReturnRefusal::possible(version).then(|| {
        let who = match version {
            Version(6, 11..) => "a seccomp filter (most containers)",
            _ => "a user shadow stack",
        };
        Finding::gap(
            State::Degraded,
            "kernel.return_probes",
            format!("on Linux {version} a return probe ends a process with {who}"),
            "a driver library that such a process maps is not hooked: its GPU work is not seen",
            "use Linux 6.14 or later; --pid tells whether a process is concerned",
        )
    })
}

fn unix_peers(unknown: Option<&str>) -> Finding {
    const CHECK: &str = "kernel.unix_diag";
    match unknown {
        None => Finding::ok(CHECK, "it tells which Unix socket is connected to which"),
        Some(why) => Finding::gap(
            State::Degraded,
            CHECK,
            format!("it does not tell which Unix socket is connected to which: {why}"),
            "wakes between processes through Unix sockets are not followed",
            "a kernel with CONFIG_UNIX_DIAG (modprobe unix_diag, where it is a module)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: Need = Need {
        check: "kernel.x",
        words: "x",
        since: Version(6, 6),
        without: (State::Degraded, "less", "more"),
    };

    #[test]
    fn the_kernel_s_word_goes_before_its_version() {
        let state = |version, support: Support| feature(version, &support, &NEED).state;
        assert_eq!(state(Some(Version(5, 15)), Support::Yes), State::Ok);
        assert_eq!(state(Some(Version(6, 8)), Support::No), State::Degraded);
        assert_eq!(state(Some(Version(6, 8)), Support::Denied), State::Ok);
        assert_eq!(state(Some(Version(5, 15)), Support::Denied), State::Degraded);
        assert_eq!(state(None, Support::Denied), State::Ok);
        assert_eq!(state(Some(Version(6, 8)), Support::Unknown("?".into())), State::Degraded);
    }

    #[test]
    fn lockdown_has_three_modes() {
        let state = |page| lockdown(page, true).state;
        assert_eq!(state(Some("none [integrity] confidentiality\n")), State::Ok);
        assert_eq!(state(Some("[none] integrity confidentiality\n")), State::Ok);
        assert_eq!(state(Some("none integrity [confidentiality]\n")), State::Missing);
        assert_eq!(state(None), State::Ok);
        assert_eq!(state(Some("")), State::Ok);
    }

    #[test]
    fn old_kernels_and_other_machines() {
        assert_eq!(version_of("5.14.0-1", Version::parse("5.14.0-1")).state, State::Missing);
        assert_eq!(version_of("5.15.0", Version::parse("5.15.0")).state, State::Ok);
        assert_eq!(machine("aarch64").state, State::Missing);
        assert_eq!(returns(Version(6, 12)).unwrap().state, State::Degraded);
        assert_eq!(returns(Version(6, 14)), None);
    }
}
