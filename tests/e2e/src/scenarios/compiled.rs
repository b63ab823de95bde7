//! The compiled fixture, a thread per connection: it stamps beside each of its calls, so that
//! everything can be judged.

use std::collections::HashMap;

use anyhow::Result;

use super::plans::{ASYNC, BLOCKING, MIXED, arguments};
use super::{Size, reported};
use crate::client::{Client, ClientRun};
use crate::env::Env;
use crate::judge::bounds::bounds;
use crate::judge::calls::{Calls, driver_calls, launches, socket_calls};
use crate::judge::instants::Instants;
use crate::judge::links::{is_exact, links, stretches};
use crate::judge::phases::{copies_are_direct, undivided};
use crate::measure::Share;
use crate::oracles::client::ClientRequest;
use crate::oracles::server::Line;
use crate::report::Scenario;
use crate::scratch::Scratch;
use crate::server::{Records, Server};
use crate::timeline::Timeline;
use crate::tracer::{Traced, Tracer};

/// Median distance between a stamp and the event, µs.
const NEAR_US: f64 = 100.0;

/// A load: what its requests' ids begin with, and the client's arguments.
type Load = (&'static str, Vec<String>);

/// Requests of which several are read at once: their thread serves more than one at a time.
const PIPELINED: &str = "pipelined-";
/// Requests on the only connection: nothing else is on the device.
const ALONE: &str = "alone-";
const KEPT: &str = "kept-";

/// A run: what was sent, what the server did, what spanprobe said.
struct Run {
    requests: Vec<ClientRequest>,
    records: Records<Line>,
    traced: Traced,
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn with_plans(args: &[&str], plans: &[(u64, &str)]) -> Vec<String> {
    let mut all = strings(args);
    all.extend(arguments(plans));
    all
}

/// Runs clients one after the other against a server that is traced before they come.
fn attach_first(env: &Env, scratch: &Scratch, io: &str, loads: &[Load]) -> Result<Run> {
    let server = Server::threaded(env, scratch, true, &["--io", io])?;
    let pid = server.pid().to_string();
    let tracer = Tracer::record(env, scratch, &["--pid", &pid])?;
    let mut requests = Vec::new();
    for (prefix, load) in loads {
        let mut args: Vec<&str> = load.iter().map(String::as_str).collect();
        args.extend(["--rid-prefix", prefix]);
        requests.extend(Client::run(env, scratch, &server.addr(), &args)?.requests);
    }
    let traced = tracer.stop()?;
    let records = server.finish()?;
    Ok(Run { requests, records, traced })
}

/// Closed loop, everything that the fixture can do, connections kept and not, pipelined and not.
///
/// # Errors
/// Where something could not be run at all.
pub fn thread_per_connection(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let part = |share: u64| (size.requests * share / 10).max(8).to_string();
    let kept = ["--connections", "8", "--requests", &part(6), "--body-bytes", "3000"];
    let new = ["--connections", "4", "--requests", &part(1), "--new-connections"];
    let pipelined = ["--connections", "4", "--requests", &part(1), "--pipeline", "4"];
    let chunked = ["--connections", "4", "--requests", &part(1), "--chunked-upload", "1000"];
    let small = [(1, ASYNC), (1, "k:2:20000,sync:stream,resp:300"), (1, "echo")];
    let loads = [
        (KEPT, with_plans(&kept, MIXED)),
        ("new-", with_plans(&new, MIXED)),
        (PIPELINED, with_plans(&pipelined, &small)),
        ("chunked-", with_plans(&chunked, &[(1, "echo"), (1, ASYNC)])),
        (ALONE, with_plans(&["--requests", &part(1)], &[(1, ASYNC), (1, BLOCKING)])),
    ];
    judge(name, &attach_first(env, &scratch, "recv", &loads)?)
}

/// More to do than two cores can: requests lie in their sockets before they are read.
///
/// # Errors
/// Where something could not be run at all.
pub fn saturated(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let requests = size.requests.to_string();
    let plans = [(2, "spin:300000"), (1, "spin:200000,k:2:20000,sync:stream"), (1, BLOCKING)];
    let load = with_plans(&["--connections", "32", "--requests", &requests], &plans);
    judge(name, &attach_first(env, &scratch, "read", &[(KEPT, load)])?)
}

/// Streamed answers with a GPU step before each chunk.
///
/// # Errors
/// Where something could not be run at all.
pub fn sse(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let requests = size.requests.to_string();
    let plans = [(3, "chunks:5:100000"), (1, "k:2:20000,sync:stream,chunks:12:20000")];
    let load = with_plans(&["--connections", "6", "--requests", &requests], &plans);
    judge(name, &attach_first(env, &scratch, "readv", &[(KEPT, load)])?)
}

/// Attached when the server, its connections, its streams, buffers and graphs are there already.
///
/// # Errors
/// Where something could not be run at all.
pub fn late_attach(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let warm = "h2d:262144:pinned,k:3:1000,d2h:65536:pinned,sync:stream,graph:10:20000,\
                sync:stream,event:0,event:1,event:2,sync:stream";
    let server = Server::threaded(env, &scratch, true, &["--io", "recvmsg", "--warm", warm])?;
    let requests = size.requests.to_string();
    let load = with_plans(&["--connections", "8", "--requests", &requests], MIXED);
    let args: Vec<&str> = load.iter().map(String::as_str).collect();
    let mut client = Client::open_first(env, &scratch, &server.addr(), &args)?;
    let pid = server.pid().to_string();
    let tracer = Tracer::record(env, &scratch, &["--pid", &pid])?;
    client.go()?;
    let ClientRun { requests, .. } = client.finish()?;
    let traced = tracer.stop()?;
    let records = server.finish()?;
    judge(name, &Run { requests, records, traced })
}

fn judge(name: &str, run: &Run) -> Result<Scenario> {
    let mut scenario = Scenario { name: name.to_owned(), ..Scenario::default() };
    let found = reported::judge(&mut scenario, &run.requests, &run.traced);
    let session = run.traced.session()?;
    let from_ns = run.traced.ready_ns;

    let lines: Vec<Line> = run.records.lines.clone();
    let by_rid: HashMap<&str, (usize, &Line)> = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.is_request())
        .map(|(index, line)| (line.rid.as_str(), (index, line)))
        .collect();
    let mut instants = Instants::default();
    let mut exact = Share::default();
    let mut first_inexact = None;
    let mut plans = Plans::default();
    let mut linked: Vec<(usize, &Timeline)> = Vec::new();
    let mut pipelined: Vec<(usize, &Timeline)> = Vec::new();
    for (request, timeline) in &found.pairs {
        let (Some(request), Some(timeline)) =
            (run.requests.get(*request), run.traced.timelines.get(*timeline))
        else {
            continue;
        };
        let server = by_rid.get(request.rid.as_str());
        instants.add(request, server.map(|(_, line)| *line), timeline);
        let Some((index, line)) = server else { continue };
        if request.rid.starts_with(PIPELINED) {
            pipelined.push((*index, timeline));
            continue;
        }
        linked.push((*index, timeline));
        let is_exact = is_exact(line, timeline);
        exact.add(is_exact);
        if !is_exact && first_inexact.is_none() {
            first_inexact = Some(format!("{line:?}\n      was reported as {timeline:?}"));
        }
        plans.add(request, line, timeline);
    }

    scenario.instant_error_us = instants.errors_us().map(Into::into);
    scenario.add_share("arrival_socket", instants.at_socket);
    scenario.add_share("start_inside", instants.start_inside);
    scenario.add_share("end_inside", instants.end_inside);
    scenario.demand_share("starts within the client's stamps", instants.start_inside, 0.99);
    scenario.demand_share("ends within the stamps of the last write", instants.end_inside, 1.0);

    calls(&mut scenario, "socket_calls", &socket_calls(session, &lines, from_ns));
    calls(&mut scenario, "driver_calls", &driver_calls(session, &lines, from_ns));
    let launched = launches(session, &lines, from_ns);
    calls(&mut scenario, "launch_runs", &launched.calls);
    scenario.add("launch_calls", launched.made);
    scenario.add("launch_events_seen", launched.seen);
    let lost = session.losses.cuda + session.losses.recursion;
    scenario
        .demand(launched.seen <= launched.made && launched.made - launched.seen <= lost, || {
            format!("{} launches seen of {}, {lost} lost", launched.seen, launched.made)
        });

    let bounds = bounds(session, &run.records.sim, from_ns);
    scenario.gpu_bounds_contain_ratio = bounds.contain.ratio();
    scenario.gpu_bounds_width_ratio = bounds.width();
    scenario.add("gpu_bounds_width_ratio_by_method", serde_json::json!(bounds.widths()));
    scenario.add("gpu_operations", bounds.contain.all);
    scenario.add("gpu_operations_given_up", bounds.given_up);
    scenario.add("gpu_operations_unseen", bounds.unseen);
    let words = bounds.failures.first().cloned().unwrap_or_default();
    if bounds.contain.ratio().is_none_or(|ratio| ratio < 0.999) {
        scenario.demand_share("GPU bounds that contain the truth", bounds.contain, 0.999);
        scenario.failures.push(words.clone());
    }
    scenario.demand(bounds.unseen <= lost, || format!("{} unseen: {words}", bounds.unseen));

    let stretches = stretches(lines.iter().enumerate().filter(|(_, line)| line.is_request()));
    if !pipelined.is_empty() {
        let links = links(session, &stretches, &pipelined);
        scenario.add_share("pipelined_link_precision", links.precision);
        scenario.add_share("pipelined_link_recall", links.recall);
        let wrong = links.precision.all - links.precision.good;
        scenario.demand(wrong == 0, || format!("{wrong} wrong links of pipelined requests"));
    }
    let links = links(session, &stretches, &linked);
    scenario.link_precision = links.precision.ratio();
    scenario.link_recall = links.recall.ratio();
    scenario.add("link_precision_low95", links.precision.low95());
    scenario.add("link_evidence", serde_json::json!(links.evidence));
    scenario.add_share("links_exact", exact);
    let all = if lost == 0 { 1.0 } else { 0.99 };
    scenario.demand_share("links to the request's own steps", links.precision, 1.0);
    scenario.demand_share("own steps that are linked", links.recall, all);
    scenario.demand_share("requests with exactly their own GPU work", exact, all);
    if exact.ratio().is_some_and(|ratio| ratio < all) {
        scenario.failures.extend(first_inexact);
    }
    plans.judge(&mut scenario);
    Ok(scenario)
}

fn calls(scenario: &mut Scenario, name: &str, calls: &Calls) {
    let spread = calls.distances_us();
    scenario.add_share(&format!("{name}_inside"), calls.inside);
    scenario.add_spread(&format!("{name}_distance_us"), spread);
    if calls.inside.all == 0 {
        return;
    }
    scenario.demand_share(&format!("{name} within their stamps"), calls.inside, 1.0);
    scenario.failures.extend(calls.failures.first().cloned());
    if calls.result.all > 0 {
        scenario.demand_share(&format!("{name} with the right result"), calls.result, 1.0);
    }
    let near = spread.is_some_and(|spread| spread.p50 <= NEAR_US);
    scenario.demand(near, || format!("{name}: median distance above {NEAR_US} µs: {spread:?}"));
}

/// What must hold for requests of one plan.
#[derive(Default)]
struct Plans {
    undivided: Share,
    direct: Share,
    chunks: Share,
    gap_error_ns: Vec<u64>,
    wrong: Vec<String>,
}

impl Plans {
    fn add(&mut self, request: &ClientRequest, line: &Line, timeline: &Timeline) {
        let mut note = |share: &mut Share, holds: bool| {
            if !holds && share.good == share.all {
                self.wrong.push(format!("{}: {timeline:?}", line.plan));
            }
            share.add(holds);
        };
        if line.plan == ASYNC {
            note(&mut self.undivided, undivided(timeline));
        } else if line.plan == BLOCKING && request.rid.starts_with(ALONE) {
            note(&mut self.direct, copies_are_direct(timeline));
        }
        if request.chunk_count == 0 {
            return;
        }
        let Some(chunks) = &timeline.chunks else {
            note(&mut self.chunks, false);
            return;
        };
        let first = timeline.start_monotonic_ns + chunks.first_offset_ns;
        let written = line.write.iter().any(|write| (write.before..=write.after).contains(&first));
        note(&mut self.chunks, written && chunks.count == request.chunk_count);
        let ends: Vec<u64> = line.write.iter().map(|write| write.after).collect();
        let longest = ends.windows(2).filter_map(|pair| Some(pair.get(1)? - pair.first()?)).max();
        self.gap_error_ns.extend(longest.map(|longest| longest.abs_diff(chunks.gaps_ns.max)));
    }

    fn judge(self, scenario: &mut Scenario) {
        let before = scenario.failures.len();
        if self.undivided.all > 0 {
            scenario.add_share("async_step_undivided", self.undivided);
            scenario.demand_share("asynchronous steps undivided", self.undivided, 1.0);
        }
        if self.direct.all > 0 {
            scenario.add_share("blocking_copies_direct", self.direct);
            scenario.demand_share("blocking copies measured", self.direct, 1.0);
        }
        if self.chunks.all > 0 {
            scenario.add_share("chunks_right", self.chunks);
            scenario.demand_share("chunks counted and timed", self.chunks, 1.0);
            let spread = crate::measure::Spread::micros(&self.gap_error_ns);
            scenario.add_spread("longest_gap_error_us", spread);
        }
        if scenario.failures.len() > before {
            scenario.failures.extend(self.wrong);
        }
    }
}
