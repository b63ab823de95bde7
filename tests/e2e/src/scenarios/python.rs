//! Real Python servers: FastAPI on uvicorn, Flask on gunicorn. Their own stamps trail the system
//! calls and bound from one side only.

use std::collections::HashMap;

use anyhow::Result;

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

/// A run.
struct Run {
    requests: Vec<ClientRequest>,
    records: Records<PythonRequest>,
    traced: Traced,
}

/// Connections are opened, and used, before spanprobe comes.
fn kept_connections(
    env: &Env,
    name: &str,
    plans: &[&str],
    connections: &str,
    size: Size,
) -> Result<Run> {
    let scratch = Scratch::new(name)?;
    let server = Server::python(env, &scratch, Python::FastApi, &["--threads", "8"])?;
    server.warm_up(env, &scratch, INFER, 32)?;
    let requests = size.requests.to_string();
    let mut args = vec!["--connections", connections, "--requests", &requests];
    for plan in plans {
        args.extend(["--plan", plan]);
    }
    let mut client = Client::open_first(env, &scratch, &server.addr(), &args)?;
    let pid = server.pid().to_string();
    let tracer = Tracer::record(env, &scratch, &["--pid", &pid])?;
    client.go()?;
    let requests = client.finish()?.requests;
    let traced = tracer.stop()?;
    Ok(Run { requests, records: server.finish_python()?, traced })
}

/// FastAPI on uvicorn, its endpoint on the thread pool, attached late.
///
/// # Errors
/// Where something could not be run at all.
pub fn uvicorn(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    judge(name, &kept_connections(env, name, &[INFER, INFER, BIG, "get:/healthz"], "8", size)?)
}

/// The same with one client: what runs on another thread meanwhile can only be its request's.
///
/// # Errors
/// Where something could not be run at all.
pub fn uvicorn_alone(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let run = kept_connections(env, name, &[INFER, BIG], "1", size)?;
    let mut scenario = judge(name, &run)?;
    for figure in ["any_link_precision", "any_link_recall"] {
        let ratio = scenario.more.get(figure).and_then(|figure| figure.get("ratio")?.as_f64());
        scenario.demand(ratio.is_some_and(|ratio| ratio >= 0.99), || {
            format!("{figure} is {ratio:?}, wanted 0.99")
        });
    }
    Ok(scenario)
}

/// The same, streamed.
///
/// # Errors
/// Where something could not be run at all.
pub fn uvicorn_sse(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    judge(name, &kept_connections(env, name, &[STREAM], "4", size)?)
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
    judge(name, &Run { requests, records, traced })
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

fn judge(name: &str, run: &Run) -> Result<Scenario> {
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
    scenario.gpu_bounds_contain_ratio = bounds.contain.ratio();
    scenario.gpu_bounds_width_ratio = bounds.width();
    scenario.add("gpu_bounds_width_ratio_by_method", serde_json::json!(bounds.widths()));
    scenario.add("gpu_operations", bounds.contain.all);
    scenario.add("gpu_operations_unseen", bounds.unseen);
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
    if links.precision.all > 0 {
        // Overlap links claim only what nothing else can have caused.
        scenario.demand_share("links to the request's own steps", links.precision, 0.99);
    }
    Ok(scenario)
}
