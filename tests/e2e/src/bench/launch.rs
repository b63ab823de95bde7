//! The cost of a probed launch: (traced − untraced) ns per call, beside bpftrace at the symbol and
//! a counting uprobe at +10, alternating so that a machine that changes its speed changes both.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use tracer_user::discover::elf::exported_functions;

use super::bare::BareLoop;
use super::bpftrace::{self, Counting};
use super::counter::{self, Counter};
use super::verdict::Verdict;
use super::{Args, Results};
use crate::env::Env;
use crate::measure::{Interval, median};
use crate::scratch::Scratch;
use crate::tracer::Tracer;

/// Where the second instruction of the driver's stubs lies.
const OFFSET: u64 = 10;

/// Extra ns per launch of each alternation.
#[derive(Default)]
struct Costs {
    none: Vec<f64>,
    symbol: Vec<f64>,
    offset: Vec<f64>,
    spanprobe: Vec<f64>,
    calls: u64,
    seen: u64,
    lost: u64,
}

/// Offset in the file of a function.
fn file_offset(library: &Path, name: &str) -> Result<u64> {
    let bytes = std::fs::read(library)?;
    let found = exported_functions(&bytes)?;
    let function = found.list.iter().find(|function| function.name == name);
    Ok(function.context("the driver exports no such function")?.file_offset)
}

/// One comparison: without, with, and what the difference is.
fn extra(bare: &mut BareLoop, none: &mut Vec<f64>) -> Result<impl Fn(f64) -> f64 + use<>> {
    let (_, without) = bare.round()?;
    none.push(without);
    Ok(move |with: f64| with - without)
}

fn measure(env: &Env, plain: bool, alternations: usize) -> Result<Costs> {
    let scratch = Scratch::new("launch")?;
    let env = &env.own_driver(&scratch)?;
    let library = env.sim.as_ref().context("no simulated driver")?.join("libcuda.so.1");
    let offset = file_offset(&library, "cuLaunchKernel")? + OFFSET;
    let mut bare = BareLoop::start(env, plain)?;
    let pid = bare.pid();
    let with_bpftrace = bpftrace::version().is_some();
    // The first round touches everything for the first time.
    bare.round()?;
    let mut costs = Costs::default();
    for _ in 0..alternations {
        if with_bpftrace {
            let extra = extra(&mut bare, &mut costs.none)?;
            let counting = Counting::start(&library, pid)?;
            let (_, with) = bare.round()?;
            costs.symbol.push(extra(with));
            counting.stop()?;
        }

        let difference = extra(&mut bare, &mut costs.none)?;
        let counter = Counter::start(&library, offset, pid)?;
        let (launches, with) = bare.round()?;
        costs.offset.push(difference(with));
        let hits = counter.stop()?;
        // perf begins to count a moment after its probe is there.
        anyhow::ensure!(hits > launches / 2, "{hits} hits of the counting uprobe");
        bpftrace::gone(pid)?;

        let difference = extra(&mut bare, &mut costs.none)?;
        let tracer = Tracer::run(env, &scratch, &["--pid", &pid.to_string()])?;
        let (_, with) = bare.round()?;
        costs.spanprobe.push(difference(with));
        tracer.stop()?;
        bpftrace::gone(pid)?;
    }
    // Recorded once, and counted.
    let tracer = Tracer::record(env, &scratch, &["--pid", &pid.to_string()])?;
    (costs.calls, _) = bare.round()?;
    let traced = tracer.stop()?;
    let session = traced.session()?;
    costs.seen = session.launches();
    costs.lost = session.losses.cuda + session.losses.recursion;
    Ok(costs)
}

fn limit(
    results: &mut Results,
    figures: &mut Map<String, Value>,
    (name, words): (&str, &str),
    ratios: &[f64],
    judge: impl Fn(Interval) -> Verdict,
) {
    let Some((interval, verdict)) = results.judge(words, ratios, judge, true) else { return };
    let value = json!({ "ratio": interval, "verdict": verdict.as_str() });
    figures.insert(name.to_owned(), value);
}

/// The part `launch`.
pub fn run(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    match bpftrace::version() {
        Some(version) => results.note(format!(
            "launch_ns.bpftrace_symbol is {version}'s @ = count() at cuLaunchKernel"
        )),
        None => results.note("there is no bpftrace: launch_ns.bpftrace_symbol is left out".into()),
    }
    let counting = if counter::perf() { "perf's" } else { "the kernel's own" };
    results.note(format!(
        "launch_ns.bpftrace_offset is {counting} counting uprobe at cuLaunchKernel+10, because \
         bpftrace 0.17 takes no offset"
    ));
    let mut figures = Map::new();
    let (mut calls, mut seen) = (0, 0);
    for (mode, plain) in [("coalesced", false), ("plain", true)] {
        let costs = measure(env, plain, args.alternations)?;
        calls += costs.calls;
        seen += costs.seen;
        let middle = |values: &[f64]| json!(median(values.iter().copied()));
        let mut own = Map::new();
        own.insert("none".into(), middle(&costs.none));
        own.insert("bpftrace_symbol".into(), middle(&costs.symbol));
        own.insert("bpftrace_offset".into(), middle(&costs.offset));
        own.insert("spanprobe".into(), middle(&costs.spanprobe));
        let pairs = |a: &[f64], b: &[f64]| -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| a / b.max(0.1)).collect()
        };
        let cheaper = pairs(&costs.symbol, &costs.spanprobe);
        let words = format!("{mode} launches: bpftrace at the symbol ÷ spanprobe, wanted ≥ 4");
        limit(results, &mut own, ("symbol_to_spanprobe", &words), &cheaper, |interval| {
            Verdict::at_least(interval, 4.0)
        });
        let dearer = pairs(&costs.spanprobe, &costs.offset);
        let words = format!("{mode} launches: spanprobe ÷ counting uprobe at +10, wanted ≤ 1.3");
        limit(results, &mut own, ("spanprobe_to_offset", &words), &dearer, |interval| {
            Verdict::at_most(interval, 1.3)
        });
        if costs.seen > costs.calls || costs.calls - costs.seen > costs.lost {
            let Costs { calls, seen, lost, .. } = costs;
            results.failures.push(format!("{mode}: {seen} launches seen of {calls}, {lost} lost"));
        }
        // The plain figures stand for the four that are named.
        if plain {
            for name in ["none", "bpftrace_symbol", "bpftrace_offset", "spanprobe"] {
                figures.insert(name.into(), own.get(name).cloned().unwrap_or_default());
            }
        }
        figures.insert(mode.to_owned(), Value::Object(own));
    }
    results.set("launch_ns", figures);
    results.set("launch_calls", calls);
    results.set("launch_events_seen", seen);
    Ok(())
}
