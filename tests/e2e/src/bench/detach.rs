//! How long until the process is gone and its last probe is out of the target's text.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::{Map, json};

use super::{Args, Results};
use crate::bench::bpftrace::gone;
use crate::env::Env;
use crate::probes::inserted;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tracer::Tracer;

/// Longest time that uprobe.multi may take, s.
const LIMIT: f64 = 5.0;
const PATIENCE: Duration = Duration::from_secs(180);

/// The part `detach`.
pub fn run(env: &Env, _args: &Args, results: &mut Results) -> Result<()> {
    let scratch = Scratch::new("detach")?;
    let env = &env.own_driver(&scratch)?;
    let server = Server::threaded(env, &scratch, true, &[])?;
    let pid = server.pid();
    let mut figures = Map::new();
    let ways = [
        ("sigint", Signal::INT, false),
        ("sigkill", Signal::KILL, false),
        ("sigkill_perf_uprobes", Signal::KILL, true),
    ];
    for (name, signal, perf) in ways {
        let target = pid.to_string();
        let mut args = vec!["--pid", &target];
        args.extend(perf.then_some("--perf-uprobes"));
        let mut tracer = Tracer::run(env, &scratch, &args)?;
        let probes = inserted(pid)?;
        ensure!(probes > 0, "no probes to let go");
        let begun = Instant::now();
        tracer.guard().signal(signal);
        tracer.guard().wait(PATIENCE)?;
        let process = begun.elapsed().as_secs_f64();
        gone(pid)?;
        let all = begun.elapsed().as_secs_f64();
        figures
            .insert(name.to_owned(), json!({ "process": process, "probes": all, "sites": probes }));
        if !perf && all > LIMIT {
            results.failures.push(format!("{name}: all gone after {all:.1} s, wanted {LIMIT}"));
        }
    }
    results.set("detach_s", figures);
    Ok(())
}
