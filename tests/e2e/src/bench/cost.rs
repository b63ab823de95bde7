//! What the agent uses, per event; and whether every event that is offered is seen or counted as
//! lost.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::{Map, Value, json};

use super::nginx::{self, Nginx};
use super::verdict::Verdict;
use super::weight::{Memory, cpu_seconds, number_before, settled_cpu_seconds};
use super::{Args, Results};
use crate::client::Client;
use crate::env::Env;
use crate::judge::calls::{driver_calls, launches, socket_calls};
use crate::measure::{Interval, median};
use crate::scenarios::plans::arguments;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tracer::Tracer;

/// As much as the machine can do, without long waits.
pub(super) const LOAD: &[(u64, &str)] = &[
    (4, "h2d:65536:pinned,k:20:1000,d2h:4096:pinned,sync:stream"),
    (2, "k:100:100,sync:stream,resp:2000"),
    (4, "echo"),
];

fn load(seconds: &str) -> Vec<String> {
    let mut args = arguments(LOAD);
    let more = ["--connections", "8", "--body-bytes", "300", "--for", seconds];
    args.extend(more.map(str::to_owned));
    args
}

/// Whether everything is accounted for.
fn accounted(env: &Env, results: &mut Results) -> Result<()> {
    let scratch = Scratch::new("accounted")?;
    let server = Server::threaded(env, &scratch, true, &[])?;
    let tracer = Tracer::record(env, &scratch, &["--pid", &server.pid().to_string()])?;
    let args = load("4");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Client::run(env, &scratch, &server.addr(), &args)?.all_right()?;
    let traced = tracer.stop()?;
    let records = server.finish()?;
    let session = traced.session()?;
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

/// How long each load lasts, s.
const SECONDS: &str = "4";
const US_PER_EVENT: &str = "cpu_us_per_event";
/// Largest resident size without the ring's mappings.
const RSS: &str = "rss_mib";
/// A figure of an agent.
type Figure = fn(&Used) -> f64;
/// What is judged, and its limit.
const LIMITS: [(&str, f64, Figure); 2] = [
    (US_PER_EVENT, 1.0, |used| used.us_per_event),
    (RSS, 64.0, |used| used.memory.peak_without_ring_mib),
];

/// What an agent used under a load.
struct Used {
    us_per_event: f64,
    memory: Memory,
    events: u64,
    lost: u64,
}

/// Without a recording; processor time of everything that the load asks of the agent, after it too.
fn used(mut tracer: Tracer, load: impl FnOnce() -> Result<()>) -> Result<Used> {
    let pid = tracer.pid();
    let before = cpu_seconds(pid)?;
    load()?;
    let memory = Memory::of(pid)?;
    let used = settled_cpu_seconds(pid)? - before;
    tracer.guard().signal(Signal::INT);
    tracer.guard().wait(Duration::from_secs(120))?;
    let out = tracer.guard().out();
    let events = number_before(&out, " seen").context("the summary names no events")?;
    // Where nothing was lost, it says `none`.
    let lost = number_before(&out, " lost").unwrap_or(0);
    Ok(Used { us_per_event: used * 1e6 / events.max(1) as f64, memory, events, lost })
}

/// What an agent used under the same load again and again, and what that says of the limits.
fn weigh(
    results: &mut Results,
    load: &str,
    alternations: usize,
    mut once: impl FnMut() -> Result<Used>,
) -> Result<Map<String, Value>> {
    let used = (0..alternations).map(|_| once()).collect::<Result<Vec<Used>>>()?;
    let mut figures = Map::new();
    for (name, limit, of) in LIMITS {
        let sample: Vec<f64> = used.iter().map(of).collect();
        let words = format!("agent under {load}: {name}, wanted ≤ {limit}");
        let judge = |interval: Interval| Verdict::at_most(interval, limit);
        if let Some((interval, verdict)) = results.judge(&words, &sample, judge, true) {
            let value = json!({ "interval": interval, "verdict": verdict.as_str() });
            figures.insert(name.to_owned(), value);
        }
    }
    let rss = median(used.iter().map(|used| used.memory.rss_mib));
    let anonymous = median(used.iter().map(|used| used.memory.anonymous_mib));
    figures.insert("rss_with_ring_mib".to_owned(), json!(rss));
    figures.insert("anonymous_mib".to_owned(), json!(anonymous));
    figures.insert("events".to_owned(), json!(used.iter().map(|used| used.events).sum::<u64>()));
    figures.insert("lost".to_owned(), json!(used.iter().map(|used| used.lost).sum::<u64>()));
    Ok(figures)
}

fn agent(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    let scratch = Scratch::new("agent")?;
    let server = Server::threaded(env, &scratch, true, &[])?;
    let pid = server.pid().to_string();
    let load = load(SECONDS);
    let load: Vec<&str> = load.iter().map(String::as_str).collect();
    let figures = weigh(results, "the fixture's load", args.alternations, || {
        let tracer = Tracer::run(env, &scratch, &["--pid", &pid])?;
        used(tracer, || Client::run(env, &scratch, &server.addr(), &load)?.all_right())
    })?;
    let middle = |name: &str| figures.get(name).and_then(|value| value.pointer("/interval/median"));
    results.set("agent_cpu_us_per_event", middle(US_PER_EVENT).cloned().unwrap_or_default());
    results.set("agent_rss_mib", middle(RSS).cloned().unwrap_or_default());
    results.set("agent", figures);
    Ok(())
}

/// The same at nginx's rate, mostly more than the machine has room for.
fn agent_nginx(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    if let Some(reason) = nginx::missing() {
        results.note(format!("agent_nginx: left out, {reason}"));
        return Ok(());
    }
    let scratch = Scratch::new("agent-nginx")?;
    let nginx = Nginx::start(&scratch)?;
    let port = nginx.port().to_string();
    let mut rates = Vec::new();
    let mut figures = weigh(results, "nginx's load", args.alternations, || {
        let tracer = Tracer::run(env, &scratch, &["--port", &port])?;
        used(tracer, || {
            rates.push(nginx.rate(SECONDS)?);
            Ok(())
        })
    })?;
    nginx.stop()?;
    figures.insert("requests_per_s".to_owned(), json!(median(rates)));
    results.set("agent_nginx", figures);
    Ok(())
}

/// The part `cost`.
pub fn run(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    accounted(env, results)?;
    agent(env, args, results)?;
    agent_nginx(env, args, results)
}
