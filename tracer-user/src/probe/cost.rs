//! What the kernel half's programs cost. The kernel keeps time only where it is asked to, and that
//! costs itself: so it is asked for a moment now and then.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use aya::{
    Ebpf,
    programs::ProgramFd,
    sys::{Stats, enable_stats},
};

/// Reads the time spent in programs.
pub struct CostReader {
    programs: Vec<(&'static str, ProgramFd)>,
}

/// While it lives the kernel keeps statistics of every program on the machine.
pub struct Keeping(#[expect(dead_code, reason = "held for what the kernel does")] OwnedFd);

/// The family that a program's cost is counted under.
fn family(program: &str) -> &'static str {
    match program {
        "sys_enter" | "sys_exit" => "syscall",
        "tcp_probe" | "inet_sock_set_state" | "tcp_retransmit_skb" => "tcp",
        "sched_switch" | "sched_waking" | "sched_wakeup_new" => "sched",
        name if name.starts_with("cuda_") => "cuda",
        _ => "process",
    }
}

impl CostReader {
    pub(super) fn new(ebpf: &Ebpf) -> Self {
        let programs = ebpf.programs().filter_map(|(name, program)| {
            // One that is not loaded costs nothing.
            Some((family(name), program.fd().ok()?.try_clone().ok()?))
        });
        Self { programs: programs.collect() }
    }

    /// Has the kernel keep statistics.
    ///
    /// # Errors
    /// Before Linux 5.8, and without the rights.
    pub fn keep(&self) -> io::Result<Keeping> {
        enable_stats(Stats::RunTime).map(Keeping).map_err(|error| error.io_error)
    }

    /// Time spent in programs of each family since they were loaded, as far as it was kept, ns.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for (family, fd) in &self.programs {
            let ns = run_time(fd);
            match sums.iter_mut().find(|(known, _)| known == family) {
                Some((_, sum)) => *sum = sum.saturating_add(ns),
                None => sums.push((family, ns)),
            }
        }
        sums
    }
}

fn run_time(fd: &ProgramFd) -> u64 {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("run_time_ns:"));
    line.and_then(|ns| ns.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::family;

    #[test]
    fn every_program_has_a_family() {
        for (program, wanted) in [
            ("sys_exit", "syscall"),
            ("sched_waking", "sched"),
            ("sched_process_exec", "process"),
            ("task_newtask", "process"),
            ("tcp_probe", "tcp"),
            ("cuda_launch_perf", "cuda"),
        ] {
            assert_eq!(family(program), wanted, "{program}");
        }
    }
}
