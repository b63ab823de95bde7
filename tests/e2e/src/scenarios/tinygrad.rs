//! A program none of us wrote: tinygrad's OpenAI-compatible server with a tiny model, unmodified, on
//! the simulated driver, asked by the `openai` package.
//!
//! It has one thread, and serves one connection after the other. It makes its graphs by hand, once,
//! while it warms up; a token is a few launches of them and a copy of four bytes back. So the
//! driver's record, in the order in which the connections were made, says which work was whose.

use anyhow::{Context as _, Result};

use super::{Size, reported};
use crate::client::Client;
use crate::clock::now_ns;
use crate::env::Env;
use crate::judge::bounds::bounds;
use crate::judge::in_turn::{Truth, divide};
use crate::judge::instants::Instants;
use crate::judge::links::{Stretch, links};
use crate::measure::{Share, Spread};
use crate::oracles::client::ClientRequest;
use crate::oracles::python::PythonRequest;
use crate::report::Scenario;
use crate::scratch::Scratch;
use crate::server::{Python, Records, Server};
use crate::timeline::{GpuSummary, Timeline};
use crate::tracer::{Traced, Tracer};

/// Clients at a time: the others' connections wait in the accept queue.
const CLIENTS: &str = "4";

/// What must be said of graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Graphs {
    /// Made before attach.
    Opaque,
    /// Seen being made.
    Learned,
    /// The same, but events were lost since, or a program of spanprobe's was skipped: what was known of
    /// handles may no longer be true, and is forgotten.
    Forgotten,
}

/// A run.
struct Run {
    requests: Vec<ClientRequest>,
    records: Records<PythonRequest>,
    traced: Traced,
    /// From when on everything must be there, ns.
    from_ns: u64,
}

fn start(env: &Env, scratch: &Scratch) -> Result<Server> {
    let model = scratch.file("tiny.gguf");
    let model = model.to_str().context("a scratch folder without a name")?;
    Server::python(env, scratch, Python::Tinygrad, &["--model", model])
}

fn ask(env: &Env, scratch: &Scratch, server: &Server, args: &[&str]) -> Result<Vec<ClientRequest>> {
    Ok(Client::openai(env, scratch, &server.addr(), args)?.finish()?.requests)
}

fn ask_all(
    env: &Env,
    scratch: &Scratch,
    server: &Server,
    size: Size,
) -> Result<Vec<ClientRequest>> {
    // One after the other, then several at a time.
    let alone = (size.requests / 4).to_string();
    let mut requests =
        ask(env, scratch, server, &["--requests", &alone, "--rid-prefix", "alone-"])?;
    let rest = (size.requests - size.requests / 4).to_string();
    requests.extend(ask(env, scratch, server, &["--requests", &rest, "--threads", CLIENTS])?);
    Ok(requests)
}

/// spanprobe comes to a server that has answered requests: its graphs are opaque.
///
/// # Errors
/// Where something could not be run at all.
pub fn late(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let server = start(env, &scratch)?;
    server.wait_up()?;
    ask(env, &scratch, &server, &["--requests", "8", "--rid-prefix", "warm-"])?;
    let port = server.port().to_string();
    let tracer = Tracer::record(env, &scratch, &["--port", &port])?;
    let requests = ask_all(env, &scratch, &server, size)?;
    let traced = tracer.stop()?;
    let records = server.finish_python()?;
    let from_ns = traced.ready_ns;
    judge(name, &Run { requests, records, traced, from_ns }, Graphs::Opaque)
}

/// spanprobe is there before the server has loaded its driver: its graphs are learned.
///
/// # Errors
/// Where something could not be run at all.
pub fn early(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let server = start(env, &scratch)?;
    let pid = server.pid().to_string();
    let tracer = Tracer::record(env, &scratch, &["--pid", &pid])?;
    server.wait_up()?;
    let from_ns = now_ns();
    let requests = ask_all(env, &scratch, &server, size)?;
    let traced = tracer.stop()?;
    let records = server.finish_python()?;
    let losses = &traced.session()?.losses;
    let graphs =
        if losses.cuda + losses.recursion == 0 { Graphs::Learned } else { Graphs::Forgotten };
    judge(name, &Run { requests, records, traced, from_ns }, graphs)
}

/// Streams: the chunks' number, the first one's time, the gaps between them.
#[derive(Default)]
struct Streams {
    counted: Share,
    first_inside: Share,
    first_late_ns: Vec<u64>,
    gap_apart_ns: Vec<u64>,
}

impl Streams {
    fn add(&mut self, request: &ClientRequest, timeline: &Timeline) {
        let (Some(first), chunks) = (request.chunks.first(), timeline.chunks.as_ref()) else {
            // Not a stream: no chunks may be claimed either.
            return self.counted.add(timeline.chunks.is_none());
        };
        self.counted.add(chunks.is_some_and(|chunks| chunks.count == request.chunk_count));
        let Some(chunks) = chunks else { return };
        let at = timeline.start_monotonic_ns + chunks.first_offset_ns;
        self.first_inside.add((request.send_before..=*first).contains(&at));
        self.first_late_ns.push(first.abs_diff(at));
        let gaps = request.chunks.windows(2).map(|pair| match pair {
            [before, after] => after.saturating_sub(*before),
            _ => 0,
        });
        if let Some(longest) = gaps.max() {
            self.gap_apart_ns.push(longest.abs_diff(chunks.gaps_ns.max));
        }
    }

    fn report(self, scenario: &mut Scenario) {
        scenario.add_share("chunks_right", self.counted);
        scenario.demand_share("chunks counted", self.counted, 1.0);
        scenario.add_share("first_chunk_inside", self.first_inside);
        scenario.demand_share("first chunks within the client's stamps", self.first_inside, 0.99);
        scenario.add_spread("first_chunk_before_client_us", Spread::micros(&self.first_late_ns));
        scenario.add_spread("longest_gap_apart_us", Spread::micros(&self.gap_apart_ns));
    }
}

/// Whether a timeline says of the graphs what it can know.
fn graphs_said(truth: &Truth, gpu: &GpuSummary, graphs: Graphs) -> bool {
    match graphs {
        Graphs::Opaque => gpu.graph_opaque == truth.graphs && gpu.graph_kernels == 0,
        Graphs::Learned => gpu.graph_opaque == 0 && gpu.graph_kernels == truth.graph_kernels,
        Graphs::Forgotten if gpu.graph_opaque == 0 => gpu.graph_kernels == truth.graph_kernels,
        Graphs::Forgotten => gpu.graph_kernels <= truth.graph_kernels,
    }
}

/// What the device did for the requests, as the timelines have it.
#[derive(Default)]
struct Work {
    divided: Share,
    exact: Share,
    said: Share,
    waits: Share,
    waited_ns: u64,
    busy_ns: u64,
}

impl Work {
    fn add(&mut self, request: &ClientRequest, timeline: &Timeline, truth: &Truth, graphs: Graphs) {
        self.divided.add(!truth.doubtful && truth.within(request));
        if truth.doubtful {
            return;
        }
        let gpu = timeline.gpu.as_ref();
        self.exact.add(gpu.is_some_and(|gpu| truth.is_that_of(gpu)));
        self.said.add(gpu.is_some_and(|gpu| graphs_said(truth, gpu, graphs)));
        // Graphs of which it is known that they only launch kernels: their time is that of kernels.
        self.waits.add(match graphs {
            Graphs::Opaque | Graphs::Forgotten => timeline.has_gpu_phase(),
            Graphs::Learned => timeline.time_in("kernel") > 0,
        });
        self.waited_ns += timeline.time_in("kernel") + timeline.time_in("gpu");
        self.busy_ns += truth.graph_ns;
    }

    fn report(&self, scenario: &mut Scenario, graphs: Graphs) {
        scenario.add_share("work_told_apart", self.divided);
        // How many that are depends on how often clients overlap, not on the tracer.
        scenario.demand_share("requests whose work the record tells apart", self.divided, 0.75);
        scenario.add_share("gpu_work_exact", self.exact);
        scenario.demand_share("requests with exactly their GPU work", self.exact, 0.999);
        scenario.add_share("graphs_said", self.said);
        let what = match graphs {
            Graphs::Opaque => "requests whose graphs are said to be opaque",
            Graphs::Learned => "requests whose graphs' kernels are known",
            Graphs::Forgotten => "requests whose graphs are known or said to be opaque",
        };
        scenario.demand_share(what, self.said, 0.999);
        scenario.add_share("waits_said", self.waits);
        // A server that is held up itself finds the device done and does not wait.
        scenario.demand_share("requests that are seen to wait for the device", self.waits, 0.75);
        scenario.add("waits_to_graphs", self.waited_ns as f64 / self.busy_ns as f64);
    }
}

fn judge(name: &str, run: &Run, graphs: Graphs) -> Result<Scenario> {
    let mut scenario = Scenario { name: name.to_owned(), ..Scenario::default() };
    let found = reported::judge(&mut scenario, &run.requests, &run.traced);
    scenario.add("graphs", format!("{graphs:?}").to_lowercase());
    let sim = &run.records.sim;
    let made_meanwhile = sim
        .calls
        .iter()
        .filter(|call| call.enter_ns >= run.from_ns && call.api.starts_with("cuGraphInstantiate"));
    scenario.add("graphs_made_meanwhile", made_meanwhile.count());
    let first_ns = run.requests.iter().map(|request| request.send_before).min().unwrap_or(0);
    let truths = divide(&run.requests, sim, first_ns);
    let mut instants = Instants::default();
    let (mut streams, mut work) = (Streams::default(), Work::default());
    let mut linked: Vec<(usize, &Timeline)> = Vec::new();
    for (index, at) in &found.pairs {
        let (Some(request), Some(timeline), Some(truth)) =
            (run.requests.get(*index), run.traced.timelines.get(*at), truths.get(*index))
        else {
            continue;
        };
        instants.add(request, None, timeline);
        streams.add(request, timeline);
        work.add(request, timeline, truth, graphs);
        if !truth.doubtful {
            linked.push((*index, timeline));
        }
    }
    scenario.instant_error_us = instants.errors_us().map(Into::into);
    scenario.add_share("arrival_socket", instants.at_socket);
    scenario.add_share("start_inside", instants.start_inside);
    scenario.demand_share("starts within the client's stamps", instants.start_inside, 0.99);
    streams.report(&mut scenario);
    work.report(&mut scenario, graphs);
    judge_device(&mut scenario, run, &truths, &linked)?;
    Ok(scenario)
}

/// Bounds of GPU work, and whose it is.
fn judge_device(
    scenario: &mut Scenario,
    run: &Run,
    truths: &[Truth],
    linked: &[(usize, &Timeline)],
) -> Result<()> {
    let session = run.traced.session()?;
    let bounds = bounds(session, &run.records.sim, run.from_ns);
    reported::bounds(scenario, &bounds);
    scenario.demand_share("GPU bounds that contain the truth", bounds.contain, 0.999);
    let lost = session.losses.cuda + session.losses.recursion;
    scenario.demand(bounds.unseen <= lost, || {
        format!("{} operations unseen, {lost} losses counted", bounds.unseen)
    });
    if !scenario.failures.is_empty() {
        scenario.failures.extend(bounds.failures.first().cloned());
    }

    let stretches: Vec<Stretch> = truths
        .iter()
        .enumerate()
        .filter_map(|(request, truth)| {
            let (pid, tid, from_ns, to_ns) = truth.stretch?;
            Some(Stretch { pid, tid, from_ns, to_ns, request })
        })
        .collect();
    let links = links(session, &stretches, linked);
    scenario.link_precision = links.precision.ratio();
    scenario.link_recall = links.recall.ratio();
    scenario.add("link_precision_low95", links.precision.low95());
    scenario.add("link_evidence", serde_json::json!(links.evidence));
    scenario.ambiguous_ratio = links.ambiguous.ratio();
    scenario.demand_share("links to the request's own steps", links.precision, 0.999);
    scenario.demand_share("own steps that are claimed", links.recall, 0.999);
    Ok(())
}
