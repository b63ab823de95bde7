//! Everything that holds whatever the target.

use std::fs;

use super::{Finding, Group, Holder, State, kernel, kernel::is_there, rights};
use crate::probe::{self, Survey, Tracepoint};

/// Where distributions and container toolkits put NVML.
const NVML: &str = "libnvidia-ml.so.1";
const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
];

/// Findings about the machine.
pub(super) fn examine(release: &str, lock: &Holder) -> Vec<Group> {
    let features = probe::features();
    let survey = probe::survey();
    vec![
        kernel::examine(release, &features, &survey),
        rights::examine(release, &features),
        tracepoints(&survey),
        gpu(driver().as_deref(), nvml().as_deref()),
        Group { name: "agent", findings: vec![others(lock)] },
    ]
}

fn tracepoints(survey: &Survey) -> Group {
    let mut findings = vec![match &survey.root {
        Ok(root) => Finding::ok("tracefs", format!("mounted at {root}, readable")),
        Err(why) => Finding::gap(
            State::Missing,
            "tracefs",
            why.clone(),
            "where the fields of the kernel's records lie is not known: nothing can be traced",
            "mount -t tracefs none /sys/kernel/tracing, and run with the rights to read it",
        ),
    }];
    findings.extend(survey.tracepoints.iter().map(tracepoint));
    Group { name: "tracepoints", findings }
}

fn tracepoint(Tracepoint { category, event, problem }: &Tracepoint) -> Finding {
    let check = format!("tracepoint.{category}.{event}");
    let Some(problem) = problem else {
        return Finding::ok(check, format!("{category}:{event}"));
    };
    let scheduling = *category == "sched" && !event.starts_with("sched_process");
    let (state, means) = match *category {
        "tcp" | "sock" => (
            State::Degraded,
            "arrivals are not seen: requests begin at the server's read, and waiting before it is \
             not told",
        ),
        _ if scheduling => {
            (State::Degraded, "when threads ran, and who woke them, is not seen: no causes")
        }
        "raw_syscalls" => (State::Missing, "system calls are not seen, and with them no request"),
        _ => (State::Missing, "processes and threads are not seen to begin and end"),
    };
    let remedy = "use a kernel with this tracepoint (CONFIG_FTRACE_SYSCALLS for raw_syscalls)";
    Finding::gap(state, check, problem.clone(), means, remedy)
}

/// Version of NVIDIA's kernel driver, where it is loaded.
fn driver() -> Option<String> {
    let page = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    Some(page.lines().next().unwrap_or_default().trim().to_owned())
}

/// Where NVML's library is.
fn nvml() -> Option<String> {
    let places = LIBRARY_FOLDERS.map(|folder| format!("{folder}/{NVML}"));
    places.into_iter().find(|place| is_there(place))
}

fn gpu(driver: Option<&str>, nvml: Option<&str>) -> Group {
    let mut findings = vec![match driver {
        Some(version) => Finding::ok("gpu.driver", version),
        None => Finding::noted(
            "gpu.driver",
            "NVIDIA's kernel driver is not loaded",
            "there is no GPU of NVIDIA's to use here, but perhaps a simulated one",
        ),
    }];
    findings.push(match (nvml, driver) {
        (Some(place), _) => Finding::ok("gpu.nvml", place),
        (None, None) => Finding::ok("gpu.nvml", format!("no {NVML}, and no GPU to read")),
        (None, Some(_)) => Finding::gap(
            State::Degraded,
            "gpu.nvml",
            format!("{NVML} is not found"),
            "clocks, temperature, power, memory and errors of the GPU are not read",
            "install the driver's user-space library (libnvidia-ml1), or mount it into the \
             container",
        ),
    });
    Group { name: "gpu", findings }
}

fn others(lock: &Holder) -> Finding {
    const CHECK: &str = "agent.others";
    let gap = |state, found: String, means: &str| {
        Finding::gap(state, CHECK, found, means, "end it first, ask it, or trace --beside it")
    };
    match lock {
        Holder::Nobody => Finding::ok(CHECK, "no other spanprobe is tracing"),
        Holder::Process(pid) => {
            let who =
                pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            gap(
                State::Degraded,
                format!("{who} is tracing already"),
                "a second one has to be asked for with --beside, at twice the cost",
            )
        }
        Holder::Unknown(why) => gap(
            State::Degraded,
            format!("whether another spanprobe is tracing is not known: {why}"),
            "if there is one, tracing costs twice",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(category: &'static str, event: &'static str) -> State {
        tracepoint(&Tracepoint { category, event, problem: Some("gone".into()) }).state
    }

    #[test]
    fn what_a_tracepoint_is_for_decides() {
        assert_eq!(state("raw_syscalls", "sys_enter"), State::Missing);
        assert_eq!(state("sched", "sched_process_exit"), State::Missing);
        assert_eq!(state("sched", "sched_switch"), State::Degraded);
        assert_eq!(state("tcp", "tcp_probe"), State::Degraded);
        assert_eq!(state("task", "task_newtask"), State::Missing);
    }

    #[test]
    fn nvml_is_missed_where_there_is_something_to_read() {
        let state = |driver, nvml| gpu(driver, nvml).findings.iter().map(|f| f.state).max();
        assert_eq!(state(None, None), Some(State::Ok));
        assert_eq!(state(Some("550"), None), Some(State::Degraded));
        assert_eq!(state(Some("550"), Some("/usr/lib/x")), Some(State::Ok));
    }

    #[test]
    fn without_tracefs_there_are_no_tracepoints_to_look_at() {
        let survey = Survey { root: Err("not mounted".into()), tracepoints: Vec::new() };
        let group = tracepoints(&survey);
        assert_eq!(group.findings.len(), 1);
        assert_eq!(group.findings[0].state, State::Missing);
    }
}
