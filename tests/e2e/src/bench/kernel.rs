//! What the kernel half costs: per event of the scheduler, per system-call pair, per launch, by the
//! kernel's own statistics. These cost something themselves in each run, which is measured by a
//! program that does nothing, published, and left in.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::bare::BareLoop;
use super::programs::{Cost, Programs, Statistics, empty_ns};
use super::verdict::Verdict;
use super::{Args, Results};
use crate::client::Client;
use crate::env::Env;
use crate::measure::{Interval, median};
use crate::scratch::Scratch;
use crate::server::{Fixture, Server};
use crate::tracer::Tracer;

/// Programs at the scheduler's tracepoints, and at system calls.
const SCHED: &[&str] = &["sched_switch", "sched_waking", "sched_wakeup_ne"];
const SYSCALLS: &[&str] = &["sys_enter", "sys_exit"];
/// Programs at the driver's functions.
const DRIVER: &[&str] = &["cuda_"];
/// At most, ns per event and per pair.
const SCHED_LIMIT: f64 = 200.0;
const SYSCALL_LIMIT: f64 = 600.0;

/// The load: small answers, handed from the thread that reads to four workers and back through a
/// pipe. A request is two calls of the client and about ten of the server.
const SERVER: Fixture<'_> = Fixture {
    program: "fixture-pool",
    gpu: false,
    args: &["--style", "loop", "--workers", "4", "--queue", "pipe"],
    device: &[],
};
const CLIENT: &[&str] =
    &["--connections", "4", "--for", "2", "--plan", "echo", "--body-bytes", "64"];

/// A family of programs under the load.
struct Family {
    name: &'static str,
    limit: f64,
    /// ns per record, and share of runs that were no target's, each time.
    per_record: Vec<f64>,
    missed: Vec<f64>,
    /// ns per run: of all, of a target's, and where no target made it.
    per_run: Vec<f64>,
    followed: Vec<f64>,
    others: Vec<f64>,
}

impl Family {
    fn new(name: &'static str, limit: f64) -> Self {
        let (per_record, missed) = (Vec::new(), Vec::new());
        let (per_run, followed, others) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, limit, per_record, missed, per_run, followed, others }
    }

    /// `runs_per_record`: a pair is two runs.
    fn add(&mut self, cost: Cost, other: Cost, records: u64, runs_per_record: u64) {
        let own = records * runs_per_record;
        let (ns, runs) = (cost.ns as f64, cost.runs as f64);
        self.per_record.push(ns / records.max(1) as f64);
        self.missed.push((runs - own as f64) / runs.max(1.0));
        self.per_run.push(cost.per_run());
        self.others.push(other.per_run());
        let rest = (runs - own as f64).max(0.0) * other.per_run();
        self.followed.push((ns - rest).max(0.0) / own.max(1) as f64);
    }

    fn publish(&self, figures: &mut Map<String, Value>, results: &mut Results) {
        let (name, limit) = (self.name, self.limit);
        let words = format!("bpf_ns.{name}, wanted ≤ {limit}");
        let judge = |interval: Interval| Verdict::at_most(interval, limit);
        let Some((interval, verdict)) = results.judge(&words, &self.per_record, judge, true) else {
            return;
        };
        let middle = |values: &[f64]| json!(median(values.iter().copied()));
        figures.insert(name.to_owned(), json!(interval.median));
        figures.insert(
            format!("{name}_more"),
            json!({
                "interval": interval,
                "verdict": verdict.as_str(),
                "missed_share": middle(&self.missed),
                "per_run": middle(&self.per_run),
                "per_followed_run": middle(&self.followed),
                "per_other_run": middle(&self.others),
            }),
        );
    }
}

/// Cost of both families while the client loads a server.
fn under_load(env: &Env, scratch: &Scratch, tracer: &Tracer, loaded: &Server) -> Result<[Cost; 2]> {
    let before = Programs::of(tracer.pid())?;
    Client::run(env, scratch, &loaded.addr(), CLIENT)?.all_right()?;
    let after = Programs::of(tracer.pid())?;
    Ok([SCHED, SYSCALLS].map(|programs| after.cost(programs) - before.cost(programs)))
}

/// One measurement: the load on a server that is traced, and on one beside it that is not.
fn measure(env: &Env, sched: &mut Family, syscalls: &mut Family) -> Result<()> {
    let scratch = Scratch::new("kernel")?;
    let server = Server::fixture(env, &scratch, &SERVER)?;
    let beside = Server::fixture(env, &scratch, &SERVER)?;
    let tracer = Tracer::record(env, &scratch, &["--pid", &server.pid().to_string()])?;
    let others = under_load(env, &scratch, &tracer, &beside)?;
    let costs = under_load(env, &scratch, &tracer, &server)?;
    let traced = tracer.stop()?;
    let recorded = traced.session()?.recorded;
    sched.add(costs[0], others[0], recorded.sched_events, 1);
    syscalls.add(costs[1], others[1], recorded.pairs, 2);
    Ok(())
}

/// ns in the programs at the driver's functions, per launch of the bare loop.
fn per_launch(env: &Env, scratch: &Scratch, plain: bool) -> Result<f64> {
    let mut bare = BareLoop::start(env, plain)?;
    let tracer = Tracer::run(env, scratch, &["--pid", &bare.pid().to_string()])?;
    let (launched, _) = bare.round()?;
    let cost = Programs::of(tracer.pid())?.cost(DRIVER);
    tracer.stop()?;
    Ok(cost.ns as f64 / launched.max(1) as f64)
}

/// The part `kernel`.
pub fn run(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    if !Statistics::exist() {
        results.note("bpf_ns: left out, this kernel has no kernel.bpf_stats_enabled".into());
        return Ok(());
    }
    let _statistics = Statistics::on()?;
    let mut sched = Family::new("sched_event", SCHED_LIMIT);
    let mut syscalls = Family::new("syscall_pair", SYSCALL_LIMIT);
    for _ in 0..args.alternations {
        measure(env, &mut sched, &mut syscalls)?;
    }
    let scratch = Scratch::new("launches")?;
    let mut figures = Map::new();
    sched.publish(&mut figures, results);
    syscalls.publish(&mut figures, results);
    figures.insert("launch".into(), json!(per_launch(env, &scratch, true)?));
    figures.insert("launch_coalesced".into(), json!(per_launch(env, &scratch, false)?));
    figures.insert("empty_program".into(), json!(empty_ns()?));
    figures.insert(
        "load".into(),
        json!(format!(
            "{} {} under fixture-client {}",
            SERVER.program,
            SERVER.args.join(" "),
            CLIENT.join(" ")
        )),
    );
    results.note(
        "bpf_ns: empty_program, what the kernel's statistics cost in each run, is part of all the \
         others; an event of the scheduler is one run, or less where a switch is between two targets"
            .into(),
    );
    results.set("bpf_ns", figures);
    Ok(())
}
