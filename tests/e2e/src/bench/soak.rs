//! Whether the agent stays as small as it is: its memory under full load, for many minutes.
//!
//! Nobody keeps a record here: at this length they would fill the disk. The client, which remembers
//! how long each request took, is started anew every half minute.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::cost::LOAD;
use super::weight::{Memory, cpu_seconds, number_before, settled_cpu_seconds};
use super::{Args, Results};
use crate::child::Guard;
use crate::env::Env;
use crate::measure::median;
use crate::oracles::client::Summary;
use crate::scenarios::plans::arguments;

/// Memory at the end ÷ memory when everything has been in use once, at most.
const LIMIT: f64 = 1.05;
/// When that is; in a shorter run, after a fifth of it.
const WARM: Duration = Duration::from_secs(120);
const EVERY: Duration = Duration::from_secs(5);
const CLIENT: Duration = Duration::from_secs(30);
/// Memory is the median of this long: an agent that fell behind for a moment holds what waits.
const WINDOW: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60);
/// Streams, besides what else a server does.
const STREAM: (u64, &str) = (1, "chunks:10:20000");

/// Starts the server; its port.
fn server(env: &Env) -> Result<(Guard, String)> {
    let mut command = Command::new(env.fixture("fixture-threaded"));
    env.with_driver(&mut command);
    let guard = Guard::spawn("the server", command.arg("--exit-on-stdin-eof"))?;
    let line = guard.wait_out("a port", PATIENCE, |line| line.starts_with("listening "))?;
    let port = line.trim_start_matches("listening ").trim().to_owned();
    Ok((guard, port))
}

fn client(env: &Env, port: &str, length: Duration) -> Result<Guard> {
    let mut command = Command::new(env.fixture("fixture-client"));
    let seconds = length.as_secs_f64().to_string();
    command.args(["--addr", &format!("127.0.0.1:{port}"), "--for", &seconds]);
    command.args(["--connections", "8", "--body-bytes", "300", "--oracle", "/dev/null"]);
    command.args(arguments(&[LOAD, &[STREAM]].concat()));
    Guard::spawn("the client", &mut command)
}

fn tracer(env: &Env, pid: u32) -> Result<Guard> {
    let mut command = Command::new(&env.spanprobe);
    command.args(["run", "--pid", &pid.to_string(), "--quiet", "--beside"]);
    command.args(["--budget", "0", "--no-control"]);
    let guard = Guard::spawn("spanprobe", command.args(["--jsonl", "/dev/null"]))?;
    guard.wait_err("that it traces", PATIENCE, |line| line.contains("tracing "))?;
    Ok(guard)
}

/// Seconds since the beginning, and the agent's memory then.
type Sample = (f64, Memory);

/// Median of what samples between two times say, MiB.
fn between(
    samples: &[Sample],
    from: Duration,
    to: Duration,
    of: impl Fn(&Memory) -> f64,
) -> Result<f64> {
    let within = |at: &f64| (from.as_secs_f64()..=to.as_secs_f64()).contains(at);
    let values = samples.iter().filter(|(at, _)| within(at)).map(|(_, memory)| of(memory));
    median(values).context("too short for a sample")
}

/// Loads the server for so long; samples of the agent, and requests answered.
fn load(env: &Env, port: &str, agent: u32, length: Duration) -> Result<(Vec<Sample>, u64)> {
    let begun = Instant::now();
    let mut samples: Vec<Sample> = Vec::new();
    let mut requests = 0;
    while begun.elapsed() < length {
        let mut client = client(env, port, CLIENT.min(length))?;
        while !client.has_ended() {
            std::thread::sleep(EVERY);
            samples.push((begun.elapsed().as_secs_f64(), Memory::of(agent)?));
        }
        client.succeed(PATIENCE)?;
        let line = client.out();
        let summary: Summary = serde_json::from_str(line.lines().last().unwrap_or_default())?;
        requests += summary.requests;
        if let Some((at, memory)) = samples.last() {
            eprintln!("bench: soak: {at:.0} s, {:.1} MiB", memory.rss_mib);
        }
    }
    Ok((samples, requests))
}

/// The part `soak`.
pub fn run(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    let length = Duration::from_secs_f64(args.minutes * 60.0);
    let warm = WARM.min(length / 5);
    let window = WINDOW.min(length / 5);
    let (server, port) = server(env)?;
    let mut tracer = tracer(env, server.pid())?;
    let pid = tracer.pid();
    let before = cpu_seconds(pid)?;
    let (samples, requests) = load(env, &port, pid, length)?;
    let cpu = settled_cpu_seconds(pid)? - before;
    tracer.signal(Signal::INT);
    tracer.succeed(Duration::from_secs(120))?;
    let out = tracer.out();
    let events = number_before(&out, " seen").context("the summary names no events")?;
    let compared = |of: fn(&Memory) -> f64| -> Result<Value> {
        let first = between(&samples, warm, warm + window, of)?;
        let last = between(&samples, length.saturating_sub(window), length, of)?;
        Ok(json!({ "warm": first, "end": last, "ratio": last / first }))
    };
    let resident = compared(|memory| memory.rss_mib)?;
    let ratio = resident.get("ratio").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
    if ratio > LIMIT {
        results.failures.push(format!("soak: resident MiB {resident}, wanted a ratio ≤ {LIMIT}"));
    }
    results.set(
        "soak",
        json!({
            "minutes": args.minutes,
            "warm_s": warm.as_secs_f64(),
            "rss_mib": resident,
            "anonymous_mib": compared(|memory| memory.anonymous_mib)?,
            "samples": samples,
            "requests": requests,
            "events": events,
            // Where nothing was lost, it says `none`.
            "lost": number_before(&out, " lost").unwrap_or(0),
            "cpu_us_per_event": cpu * 1e6 / events.max(1) as f64,
        }),
    );
    Ok(())
}
