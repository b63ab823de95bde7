//! Real Python servers: FastAPI on uvicorn, Flask on gunicorn. Their own stamps trail the system
//! calls and bound from one side only.

use std::collections::HashMap;

use anyhow::{Context as _, Result};

use super::{Size, reported};
use crate::client::Client;
use crate::env::Env;
use crate::judge::bounds::bounds;
use crate::judge::instants::Instants;
use crate::judge::links::{Stretch, links};
use crate::measure::Share;
use crate::oracles::client::ClientRequest;
use crate::oracles::python::PythonRequest;
use crate::report::Scenario;
use crate::scratch::Scratch;
use crate::server::{Python, Records, Server};
use crate::timeline::Timeline;
use crate::tracer::{Traced, Tracer};

const INFER: &str = r#"json:/infer:{"launches":5,"kernel_ns":50000,"reply":200}"#;
const BIG: &str = r#"json:/infer:{"h2d":262144,"launches":10,"kernel_ns":50000,"reply":5000}"#;
const STREAM: &str = r#"json:/stream:{"launches":2,"kernel_ns":50000,"chunks":4}"#;
const GATHER: &str = r#"json:/gather:{"launches":2,"kernel_ns":50000,"parts":3}"#;
const TO_THREAD: &str = r#"json:/to_thread:{"launches":5,"kernel_ns":50000}"#;
const INLINE: &str = r#"json:/inline:{"launches":5,"kernel_ns":50000}"#;

/// A run.
struct Run {
    requests: Vec<ClientRequest>,
    records: Records<PythonRequest>,
    traced: Traced,
}

/// A server and its clients, whose connections are open when spanprobe comes.
struct Kept {
    name: &'static str,
    which: Python,
    args: &'static [&'static str],
    connections: &'static str,
    plans: &'static [&'static str],
    wanted: Wanted,
}

/// What is wanted of the links.
#[derive(Clone, Copy)]
enum Wanted {
    /// That those claimed are right.
    Honest,
    /// So many of the requests' steps claimed, too.
    Recall(f64),
    /// All steps linked, claimed or not: what runs on another thread while there is one request can
    /// only be its.
    Any,
}

const THREADS: Kept = Kept {
    name: "uvicorn",
    which: Python::FastApi,
    args: &["--threads", "8"],
    connections: "8",
    plans: &[INFER, INFER, BIG, "get:/healthz"],
    wanted: Wanted::Honest,
};

/// As it comes, with a pool of forty threads.
const FASTAPI: Kept = Kept { args: &[], plans: &[INFER, INFER, BIG], ..THREADS };

const KEPT: &[Kept] = &[
    THREADS,
    Kept {
        name: "uvicorn-alone",
        connections: "1",
        plans: &[INFER, BIG],
        wanted: Wanted::Any,
        ..THREADS
    },
    Kept { name: "uvicorn-sse", connections: "4", plans: &[STREAM], ..THREADS },
    Kept { name: "fastapi-4", connections: "4", wanted: Wanted::Recall(0.95), ..FASTAPI },
    Kept { name: "fastapi-16", connections: "16", ..FASTAPI },
    Kept { name: "fastapi-32", connections: "32", ..FASTAPI },
    Kept { name: "fastapi-64", connections: "64", ..FASTAPI },
    Kept { name: "fastapi-pool-4", args: &["--threads", "4"], connections: "16", ..FASTAPI },
    Kept { name: "asyncio-gather", connections: "4", plans: &[GATHER], ..THREADS },
    Kept { name: "asyncio-to-thread", connections: "4", plans: &[TO_THREAD], ..THREADS },
    Kept { name: "asyncio-inline", connections: "4", plans: &[INLINE], ..THREADS },
    Kept {
        name: "gunicorn-threads",
        which: Python::Flask,
        args: &["--worker-class", "gthread", "--threads", "4"],
        plans: &[INFER, "get:/healthz"],
        ..THREADS
    },
];

/// Runs the server of this name.
///
/// # Errors
/// Where something could not be run at all.
pub fn kept(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let kept = KEPT.iter().find(|kept| kept.name == name).context("no such server")?;
    let scratch = Scratch::new(name)?;
    let server = Server::python(env, &scratch, kept.which, kept.args)?;
    server.warm_up(env, &scratch, INFER, 32)?;
    let requests = size.requests.to_string();
    let mut args = vec!["--connections", kept.connections, "--requests", &requests];
    args.extend(kept.plans.iter().flat_map(|plan| ["--plan", plan]));
    let mut client = Client::open_first(env, &scratch, &server.addr(), &args)?;
    let port = server.port().to_string();
    let tracer = Tracer::record(env, &scratch, &["--port", &port])?;
    client.go()?;
    let requests = client.finish()?.requests;
    let traced = tracer.stop()?;
    judge(name, &Run { requests, records: server.finish_python()?, traced }, kept.wanted)
}

/// Flask on gunicorn's sync workers, found by the port; each connection carries one request.
///
/// # Errors
/// Where something could not be run at all.
pub fn gunicorn(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let server = Server::python(env, &scratch, Python::Flask, &["--workers", "2"])?;
    server.warm_up(env, &scratch, INFER, 32)?;
    let port = server.port().to_string();
    let tracer = Tracer::record(env, &scratch, &["--port", &port])?;
    let requests = size.requests.to_string();
    let args =
        ["--connections", "4", "--requests", &requests, "--plan", INFER, "--plan", "get:/healthz"];
    let requests = Client::run(env, &scratch, &server.addr(), &args)?.requests;
    let traced = tracer.stop()?;
    let records = server.finish_python()?;
    judge(name, &Run { requests, records, traced }, Wanted::Recall(0.99))
}

/// What a request made the GPU do, by the application's own record.
fn stretches(lines: &[PythonRequest]) -> Vec<Stretch> {
    lines
        .iter()
        .enumerate()
        .flat_map(|(request, line)| {
            line.steps.iter().map(move |step| Stretch {
                pid: line.pid,
                tid: step.tid,
                from_ns: step.before,
                to_ns: step.after,
                request,
            })
        })
        .collect()
}

fn judge(name: &str, run: &Run, wanted: Wanted) -> Result<Scenario> {
    let mut scenario = Scenario { name: name.to_owned(), ..Scenario::default() };
    let found = reported::judge(&mut scenario, &run.requests, &run.traced);
    let session = run.traced.session()?;
    let lines = &run.records.lines;
    let by_rid: HashMap<&str, usize> =
        lines.iter().enumerate().map(|(index, line)| (line.rid.as_str(), index)).collect();
    let mut instants = Instants::default();
    let (mut started, mut chunks) = (Share::default(), Share::default());
    let (mut with_work, mut exact) = (Share::default(), Share::default());
    let mut linked: Vec<(usize, &Timeline)> = Vec::new();
    for (request, timeline) in &found.pairs {
        let (Some(request), Some(timeline)) =
            (run.requests.get(*request), run.traced.timelines.get(*timeline))
        else {
            continue;
        };
        instants.add(request, None, timeline);
        let Some((index, line)) =
            by_rid.get(request.rid.as_str()).and_then(|at| Some((*at, lines.get(*at)?)))
        else {
            continue;
        };
        started.add(timeline.start_monotonic_ns <= line.begin);
        linked.push((index, timeline));
        let launches: u64 = line.steps.iter().map(|step| step.launches).sum();
        if launches > 0 {
            with_work.add(timeline.gpu.is_some());
            if let Some(gpu) = &timeline.gpu {
                exact.add(gpu.launches == launches);
            }
        }
        if request.chunk_count > 0 {
            let count = timeline.chunks.as_ref().map(|chunks| chunks.count);
            // The last event, `[DONE]`, ends the stream and is no chunk of it.
            chunks.add(count.is_some_and(|count| count + 1 == request.chunk_count));
        }
    }
    scenario.instant_error_us = instants.errors_us().map(Into::into);
    scenario.add_share("arrival_socket", instants.at_socket);
    scenario.add_share("start_inside", instants.start_inside);
    scenario.demand_share("starts within the client's stamps", instants.start_inside, 0.99);
    scenario.add_share("start_before_application", started);
    scenario.demand_share("starts before the application's own", started, 1.0);
    if chunks.all > 0 {
        scenario.add_share("chunks_right", chunks);
        scenario.demand_share("chunks counted", chunks, 1.0);
    }

    let from_ns = run.traced.ready_ns;
    let bounds = bounds(session, &run.records.sim, from_ns);
    reported::bounds(&mut scenario, &bounds);
    scenario.demand_share("GPU bounds that contain the truth", bounds.contain, 0.999);
    if scenario.failures.last().is_some_and(|last| last.starts_with("GPU bounds")) {
        scenario.failures.extend(bounds.failures.first().cloned());
    }

    let made = run
        .records
        .sim
        .calls
        .iter()
        .filter(|call| call.enter_ns >= from_ns && call.api.starts_with("cuLaunchKernel"))
        .count() as u64;
    let seen: u64 =
        session.runs.iter().filter(|run| run.first_ns >= from_ns).map(|run| run.count).sum();
    scenario.add("launch_calls", made);
    scenario.add("launch_events_seen", seen);
    let lost = session.losses.cuda + session.losses.recursion;
    scenario.demand(seen <= made && made - seen <= lost, || {
        format!("{seen} launches seen of {made}, {lost} lost")
    });

    let links = links(session, &stretches(lines), &linked);
    scenario.link_precision = links.precision.ratio();
    scenario.link_recall = links.recall.ratio();
    scenario.add("link_precision_low95", links.precision.low95());
    scenario.add_share("any_link_precision", links.any_precision);
    scenario.add_share("any_link_recall", links.any_recall);
    scenario.add("link_evidence", serde_json::json!(links.evidence));
    scenario.add_share("requests_with_gpu_work", with_work);
    scenario.add_share("launches_exact_where_linked", exact);
    scenario.ambiguous_ratio = links.ambiguous.ratio();
    if links.precision.all > 0 {
        scenario.demand_share("links to the request's own steps", links.precision, 0.99);
    }
    match wanted {
        Wanted::Honest => {}
        Wanted::Recall(recall) => {
            scenario.demand_share("own steps that are claimed", links.recall, recall);
        }
        Wanted::Any => {
            scenario.demand_share("links of any kind to own steps", links.any_precision, 0.99);
            scenario.demand_share("own steps with a link of any kind", links.any_recall, 0.99);
        }
    }
    Ok(scenario)
}
