//! What the kernel half and the agent use: per system-call pair, per launch, per event; and whether
//! every event that is offered is seen or counted as lost.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::json;

use super::bare::BareLoop;
use super::{Args, Results};
use crate::client::Client;
use crate::env::Env;
use crate::judge::calls::{driver_calls, launches, socket_calls};
use crate::scenarios::plans::arguments;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tracer::Tracer;

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// `BPF_PROG_TYPE_*` of the programs at uprobes and at `sys_enter` and `sys_exit`.
const UPROBE: u64 = 2;
const RAW_TRACEPOINT: u64 = 17;
/// Clock ticks per second in `/proc` on every architecture that spanprobe runs on.
const TICKS: f64 = 100.0;

/// As much as the machine can do, without long waits.
const LOAD: &[(u64, &str)] = &[
    (4, "h2d:65536:pinned,k:20:1000,d2h:4096:pinned,sync:stream"),
    (2, "k:100:100,sync:stream,resp:2000"),
    (4, "echo"),
];

/// The kernel's statistics of eBPF programs, on while this lives.
struct Statistics(String);

impl Statistics {
    fn on() -> Result<Self> {
        let before = fs::read_to_string(STATISTICS).context("kernel.bpf_stats_enabled")?;
        fs::write(STATISTICS, "1")?;
        Ok(Self(before))
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // As it was; where that fails the kernel keeps counting, which costs little.
        let _ = fs::write(STATISTICS, self.0.trim());
    }
}

/// ns and runs of a process's programs of one type.
fn run_time(pid: u32, program_type: u64) -> Result<(u64, u64)> {
    let (mut ns, mut runs) = (0, 0);
    let mut seen = std::collections::HashSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may have been closed meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let field = |name: &str| -> Option<u64> {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|value| value.trim().parse().ok())
        };
        let program = field("prog_id:").filter(|id| seen.insert(*id));
        if program.is_some() && field("prog_type:") == Some(program_type) {
            ns += field("run_time_ns:").unwrap_or(0);
            runs += field("run_cnt:").unwrap_or(0);
        }
    }
    Ok((ns, runs))
}

fn load(seconds: &str) -> Vec<String> {
    let mut args = arguments(LOAD);
    let more = ["--connections", "8", "--body-bytes", "300", "--for", seconds];
    args.extend(more.map(str::to_owned));
    args
}

/// CPU time that a process has used, s.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit(')').next().context("an odd /proc/PID/stat")?;
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(ticks as f64 / TICKS)
}

/// A line of `/proc/PID/status`, in MiB.
fn status_mib(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib: f64 = line
        .and_then(|line| line.trim_start_matches(':').split_whitespace().next()?.parse().ok())
        .with_context(|| name.to_owned())?;
    Ok(kib / 1024.0)
}

/// The number before `word` in the summary.
fn number_before(text: &str, word: &str) -> Option<u64> {
    let before = text.get(..text.find(word)?)?;
    let digits: String = before.split_whitespace().last()?.chars().filter(|c| *c != ',').collect();
    digits.parse().ok()
}

/// ns in the programs at the driver's functions, per launch of the bare loop.
fn per_launch(env: &Env, scratch: &Scratch, plain: bool) -> Result<f64> {
    let mut bare = BareLoop::start(env, plain)?;
    let tracer = Tracer::run(env, scratch, &["--pid", &bare.pid().to_string()])?;
    let (launched, _) = bare.round()?;
    let (ns, _) = run_time(tracer.pid(), UPROBE)?;
    tracer.stop()?;
    Ok(ns as f64 / launched.max(1) as f64)
}

/// Kernel half, and whether everything is accounted for.
fn kernel_half(env: &Env, results: &mut Results) -> Result<()> {
    let statistics = Statistics::on()?;
    let scratch = Scratch::new("cost")?;
    let server = Server::threaded(env, &scratch, true, &[])?;
    let tracer = Tracer::record(env, &scratch, &["--pid", &server.pid().to_string()])?;
    let args = load("4");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Client::run(env, &scratch, &server.addr(), &args)?.all_right()?;
    let (pair_ns, runs) = run_time(tracer.pid(), RAW_TRACEPOINT)?;
    let traced = tracer.stop()?;
    let records = server.finish()?;
    let session = traced.session()?;
    let recorded = session.socket.len() as u64;

    let coalesced = per_launch(env, &scratch, false)?;
    let plain = per_launch(env, &scratch, true)?;
    drop(statistics);
    results.set(
        "bpf_ns",
        json!({
            "syscall_pair": pair_ns as f64 / recorded.max(1) as f64,
            "launch": plain,
            "launch_coalesced": coalesced,
            "syscall_pairs_recorded": recorded,
            "syscall_program_runs": runs,
            "syscall_program_ns_per_run": pair_ns as f64 / runs.max(1) as f64,
        }),
    );

    let from_ns = traced.ready_ns;
    let socket = socket_calls(session, &records.lines, from_ns).inside;
    let driver = driver_calls(session, &records.lines, from_ns).inside;
    let launches = launches(session, &records.lines, from_ns);
    let offered = socket.all + driver.all + launches.made;
    let seen = socket.good + driver.good + launches.seen;
    let lost = session.lost();
    let unaccounted = offered.saturating_sub(seen).saturating_sub(lost);
    results.set("events_offered", offered);
    results.set("events_seen", seen);
    results.set("events_lost", lost);
    results.set("events_lost_unaccounted", unaccounted);
    if unaccounted > 0 {
        results.failures.push(format!("{unaccounted} events lost and not counted"));
    }
    Ok(())
}

/// The agent, without a recording.
fn agent(env: &Env, results: &mut Results) -> Result<()> {
    let scratch = Scratch::new("agent")?;
    let server = Server::threaded(env, &scratch, true, &[])?;
    let mut tracer = Tracer::run(env, &scratch, &["--pid", &server.pid().to_string()])?;
    let pid = tracer.pid();
    let before = cpu_seconds(pid)?;
    let args = load("6");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Client::run(env, &scratch, &server.addr(), &args)?.all_right()?;
    let used = cpu_seconds(pid)? - before;
    let (all, anonymous) = (status_mib(pid, "VmRSS")?, status_mib(pid, "RssAnon")?);
    tracer.guard().signal(Signal::INT);
    tracer.guard().wait(Duration::from_secs(120))?;
    let out = tracer.guard().out();
    let events = number_before(&out, " seen").context("the summary names no events")?;
    results.set("agent_cpu_us_per_event", used * 1e6 / events.max(1) as f64);
    results.set("agent_rss_mib", all);
    results.set("agent_rss_anonymous_mib", anonymous);
    results.set("agent_events", events);
    Ok(())
}

/// The part `cost`.
pub fn run(env: &Env, _args: &Args, results: &mut Results) -> Result<()> {
    if Path::new(STATISTICS).exists() {
        kernel_half(env, results)?;
    } else {
        results.note("bpf_ns: left out, this kernel has no kernel.bpf_stats_enabled".into());
    }
    agent(env, results)
}
