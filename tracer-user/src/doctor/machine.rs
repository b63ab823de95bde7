//! Everything that holds whatever the target.

use std::{fs, time::Duration};

use super::{Finding, Group, Holder, State, kernel, rights};
use crate::{
    nvml::{
        self,
        library::{Answer, NoNvml},
    },
    probe::{self, Survey, Tracepoint},
};

/// How long NVML is given to answer.
const NVML_PATIENCE: Duration = Duration::from_secs(10);

/// Findings about the machine.
pub(super) fn examine(release: &str, lock: &Holder) -> Vec<Group> {
    let features = probe::features();
    let survey = probe::survey();
    vec![
        kernel::examine(release, &features, &survey),
        rights::examine(release, &features),
        tracepoints(&survey),
        gpu(driver().as_deref(), nvml::library::ask(NVML_PATIENCE)),
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

fn gpu(driver: Option<&str>, nvml: Option<Result<Answer, NoNvml>>) -> Group {
    let findings = vec![
        match driver {
            Some(version) => Finding::ok("gpu.driver", version),
            None => Finding::noted(
                "gpu.driver",
                "NVIDIA's kernel driver is not loaded",
                "there is no GPU of NVIDIA's to use here, but perhaps a simulated one",
            ),
        },
        readings(driver.is_some(), nvml),
    ];
    Group { name: "gpu", findings }
}

/// Whether the GPUs' own readings can be taken.
fn readings(has_driver: bool, nvml: Option<Result<Answer, NoNvml>>) -> Finding {
    const CHECK: &str = "gpu.nvml";
    const MEANS: &str = "clocks, temperature, power, memory and errors of the GPU are not read";
    let gap =
        |found: String, remedy: &str| Finding::gap(State::Degraded, CHECK, found, MEANS, remedy);
    match nvml {
        Some(Ok(Answer { version, devices })) => {
            Finding::ok(CHECK, format!("NVML {version}, {devices} devices"))
        }
        Some(Err(NoNvml::NotFound(_))) if !has_driver => {
            Finding::ok(CHECK, "no libnvidia-ml.so.1, and no GPU to read")
        }
        Some(Err(why)) if !has_driver => Finding::noted(CHECK, why.to_string(), MEANS),
        Some(Err(why @ NoNvml::NotFound(_))) => gap(
            why.to_string(),
            "install the driver's user-space library (libnvidia-ml1), or mount it into the \
             container",
        ),
        Some(Err(why)) => gap(
            why.to_string(),
            "use the library of the version of the driver that is loaded; nvidia-smi says which",
        ),
        None => gap(
            format!("NVML did not answer within {} s", NVML_PATIENCE.as_secs()),
            "look whether nvidia-smi answers, and for XIDs in the kernel's log: a GPU may be lost",
        ),
    }
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
        let driver = Some("550");
        let not_found = || Some(Err(NoNvml::NotFound(Vec::new())));
        let refused = || {
            let (library, why) = ("lib".to_owned(), "driver not loaded".to_owned());
            Some(Err(NoNvml::Refused { library, why }))
        };
        let two = Some(Ok(Answer { version: "12.550".to_owned(), devices: 2 }));
        assert_eq!(state(None, not_found()), Some(State::Ok));
        assert_eq!(state(None, refused()), Some(State::Ok));
        assert_eq!(state(driver, not_found()), Some(State::Degraded));
        assert_eq!(state(driver, refused()), Some(State::Degraded));
        assert_eq!(state(driver, None), Some(State::Degraded));
        assert_eq!(state(driver, two), Some(State::Ok));
    }

    #[test]
    fn without_tracefs_there_are_no_tracepoints_to_look_at() {
        let survey = Survey { root: Err("not mounted".into()), tracepoints: Vec::new() };
        let group = tracepoints(&survey);
        assert_eq!(group.findings.len(), 1);
        assert_eq!(group.findings[0].state, State::Missing);
    }
}
