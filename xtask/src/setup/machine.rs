//! What the kernel must offer before anything can be attached: file systems and rights.

use std::fs;
use std::path::Path;

use super::Report;
use crate::cmd;

/// Capabilities by number, each with what needs it. `CAP_SYS_ADMIN` includes the first two.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (39, "CAP_BPF", "loading programs and maps"),
    (38, "CAP_PERFMON", "attaching to uprobes and tracepoints"),
    (19, "CAP_SYS_PTRACE", "looking into the processes that are traced"),
    (2, "CAP_DAC_READ_SEARCH", "reading the libraries that they map"),
];
const SYS_ADMIN: u32 = 21;

const UNTRACED: &str = "spanprobe attaches to nothing; building, replay and most tests still work";

/// Mounts what a container or a small image may lack.
pub(super) fn mounts(report: &mut Report) {
    mount(report, "tracefs", "/sys/kernel/tracing", "tracepoints cannot be attached");
    mount(report, "bpf", "/sys/fs/bpf", "links and maps cannot be pinned");
}

fn mount(report: &mut Report, kind: &str, folder: &str, without: &str) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    if is_mounted(&mounts, kind, folder) {
        return report.have(format!("{folder} ({kind})"));
    }
    let by_hand = format!("mount -t {kind} none {folder}");
    report.doing(&by_hand);
    // On kernels without this file system the folder is not there and cannot be made.
    let _ = fs::create_dir_all(folder);
    if !cmd::succeeds(cmd::clean("mount").args(["-t", kind, "none", folder])) {
        report.missing(
            format!("{kind} at {folder}"),
            format!("as root: {by_hand} (in a container, on its host)"),
            without,
        );
    }
}

fn is_mounted(mounts: &str, kind: &str, folder: &str) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some(folder) && fields.next() == Some(kind)
    })
}

/// Names the rights that this process lacks.
pub(super) fn rights(report: &mut Report) {
    let missing = missing_capabilities(effective_capabilities());
    if missing.is_empty() {
        report.have("the rights to trace");
    } else {
        let named: Vec<_> = missing.iter().map(|(name, need)| format!("{name} ({need})")).collect();
        report.missing(
            format!("the rights to trace: {}", named.join(", ")),
            "run as root, for example by sudo -E; in a container, add these capabilities",
            UNTRACED,
        );
    }
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        report.missing(
            "reading memory from BPF, which this kernel's lockdown forbids",
            "boot with lockdown=integrity, or without lockdown",
            UNTRACED,
        );
    }
}

fn missing_capabilities(effective: u64) -> Vec<(&'static str, &'static str)> {
    let has = |bit: u32| effective & (1 << bit) != 0;
    CAPABILITIES
        .iter()
        .filter(|(bit, ..)| !(has(*bit) || (*bit >= 38 && has(SYS_ADMIN))))
        .map(|(_, name, need)| (*name, *need))
        .collect()
}

fn effective_capabilities() -> u64 {
    status_field("CapEff:").and_then(|value| u64::from_str_radix(&value, 16).ok()).unwrap_or(0)
}

/// Whether this process may change the machine.
pub(super) fn is_root() -> bool {
    // Real, effective, saved, file system.
    status_field("Uid:").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"))
}

fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_known_by_kind_and_folder() {
        let mounts = "none /sys/kernel/tracing tracefs rw 0 0\nsys /sys sysfs rw 0 0\n";
        assert!(is_mounted(mounts, "tracefs", "/sys/kernel/tracing"));
        assert!(!is_mounted(mounts, "bpf", "/sys/fs/bpf"));
        assert!(!is_mounted(mounts, "bpf", "/sys/kernel/tracing"));
    }

    #[test]
    fn rights_are_named() {
        assert!(missing_capabilities(u64::MAX).is_empty());
        let old_kernel_root = (1 << SYS_ADMIN) | (1 << 19) | (1 << 2);
        assert!(missing_capabilities(old_kernel_root).is_empty());
        let names: Vec<_> = missing_capabilities(1 << 39).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]);
    }
}
