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
use crate::judge::instants::Instants;
use crate::judge::links::{Stretch, links};
use crate::measure::{Share, Spread};
use crate::oracles::client::ClientRequest;
use crate::oracles::python::PythonRequest;
use crate::oracles::sim::{Sim, SimOp};
use crate::report::Scenario;
use crate::scratch::Scratch;
use crate::server::{Python, Records, Server};
use crate::timeline::{GpuSummary, Timeline};
use crate::tracer::{Traced, Tracer};

/// Clients at a time: the others' connections wait in the accept queue.
const CLIENTS: &str = "4";

/// What must be said of graphs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Graphs {
    /// Made before attach.
    Opaque,
    /// Seen being made.
    Learned,
}

/// What a request made the device do, by the driver's record.
#[derive(Debug, Default, PartialEq, Eq)]
struct Truth {
    launches: u64,
    graphs: u64,
    graph_kernels: u64,
    h2d_bytes: u64,
    d2h_bytes: u64,
    /// Another connection was made at the same time as the request's: the work may be the other's.
    doubtful: bool,
    /// Process, thread, first and last enqueue.
    stretch: Option<(u32, u32, u64, u64)>,
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
    judge(name, &Run { requests, records, traced, from_ns }, Graphs::Learned)
}

/// Divides the driver's record among the requests, in the order of their connections: each carries
/// one, the server accepts them as they came, and a request's work ends with the copy back of its
/// last token.
fn truths(requests: &[ClientRequest], sim: &Sim, from_ns: u64) -> Vec<Truth> {
    let mut order: Vec<(usize, &ClientRequest)> = requests.iter().enumerate().collect();
    order.sort_by_key(|(_, request)| request.connect.map(|(_, after)| after));
    let mut ops = sim.ops.iter().filter(|op| op.enqueue_ns >= from_ns).peekable();
    let mut truths: Vec<Truth> = requests.iter().map(|_| Truth::default()).collect();
    for pair in order.windows(2) {
        let &[(before, earlier), (after, later)] = pair else { continue };
        let apart = earlier.connect.zip(later.connect).is_some_and(|(a, b)| a.1 < b.0);
        for index in [before, after] {
            if let Some(truth) = truths.get_mut(index) {
                truth.doubtful |= !apart;
            }
        }
    }
    for (index, request) in order {
        let Some(truth) = truths.get_mut(index) else { continue };
        let mut tokens = 0;
        while tokens < request.tokens
            && let Some(op) = ops.next()
        {
            tokens += u64::from(op.kind == "d2h");
            truth.add(op, sim);
        }
    }
    // Work after the last token of the last request is nobody's, and shows as such.
    if let Some(truth) = truths.last_mut() {
        ops.for_each(|op| truth.add(op, sim));
    }
    truths
}

impl Truth {
    fn add(&mut self, op: &SimOp, sim: &Sim) {
        match op.kind.as_str() {
            "kernel" => self.launches += 1,
            "graph" => {
                self.graphs += 1;
                let kernels = sim.graph_kernels.get(&(op.pid, op.id));
                self.graph_kernels += kernels.copied().unwrap_or(0);
            }
            "h2d" => self.h2d_bytes += op.bytes,
            "d2h" => self.d2h_bytes += op.bytes,
            _ => {}
        }
        let (pid, tid, from, to) =
            self.stretch.unwrap_or((op.pid, op.tid, op.enqueue_ns, op.enqueue_ns));
        self.stretch = Some((pid, tid, from.min(op.enqueue_ns), to.max(op.enqueue_ns)));
    }

    /// Whether the work lies within the request, as its client saw it.
    fn within(&self, request: &ClientRequest) -> bool {
        self.stretch
            .is_some_and(|(_, _, from, to)| request.send_before <= from && to <= request.last_byte)
    }

    /// Whether a timeline has exactly this work.
    fn is_that_of(&self, gpu: &GpuSummary) -> bool {
        (self.launches, self.graphs, self.h2d_bytes, self.d2h_bytes)
            == (gpu.launches, gpu.graph_launches, gpu.h2d_bytes, gpu.d2h_bytes)
    }

    /// Whether a timeline says of the graphs what it can know.
    fn graphs_said(&self, gpu: &GpuSummary, graphs: Graphs) -> bool {
        match graphs {
            Graphs::Opaque => gpu.graph_opaque == self.graphs && gpu.graph_kernels == 0,
            Graphs::Learned => gpu.graph_opaque == 0 && gpu.graph_kernels == self.graph_kernels,
        }
    }
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

fn judge(name: &str, run: &Run, graphs: Graphs) -> Result<Scenario> {
    let mut scenario = Scenario { name: name.to_owned(), ..Scenario::default() };
    let found = reported::judge(&mut scenario, &run.requests, &run.traced);
    let sim = &run.records.sim;
    let made_late = sim
        .calls
        .iter()
        .filter(|call| call.enter_ns >= run.from_ns && call.api.starts_with("cuGraphInstantiate"));
    scenario.add("graphs_made_meanwhile", made_late.count());
    let first_ns = run.requests.iter().map(|request| request.send_before).min().unwrap_or(0);
    let truths = truths(&run.requests, sim, first_ns);
    let mut instants = Instants::default();
    let mut streams = Streams::default();
    let (mut divided, mut exact, mut said) = (Share::default(), Share::default(), Share::default());
    let mut linked: Vec<(usize, &Timeline)> = Vec::new();
    for (index, at) in &found.pairs {
        let (Some(request), Some(timeline), Some(truth)) =
            (run.requests.get(*index), run.traced.timelines.get(*at), truths.get(*index))
        else {
            continue;
        };
        instants.add(request, None, timeline);
        streams.add(request, timeline);
        divided.add(!truth.doubtful && truth.within(request));
        if truth.doubtful {
            continue;
        }
        let gpu = timeline.gpu.as_ref();
        exact.add(gpu.is_some_and(|gpu| truth.is_that_of(gpu)));
        said.add(gpu.is_some_and(|gpu| truth.graphs_said(gpu, graphs)));
        linked.push((*index, timeline));
    }
    scenario.add_share("work_told_apart", divided);
    scenario.demand_share("requests whose work the record tells apart", divided, 0.9);
    scenario.instant_error_us = instants.errors_us().map(Into::into);
    scenario.add_share("arrival_socket", instants.at_socket);
    scenario.add_share("start_inside", instants.start_inside);
    scenario.demand_share("starts within the client's stamps", instants.start_inside, 0.99);
    streams.report(&mut scenario);
    scenario.add_share("gpu_work_exact", exact);
    scenario.demand_share("requests with exactly their GPU work", exact, 0.999);
    scenario.add_share("graphs_said", said);
    let what = match graphs {
        Graphs::Opaque => "requests whose graphs are said to be opaque",
        Graphs::Learned => "requests whose graphs' kernels are known",
    };
    scenario.demand_share(what, said, 0.999);
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
    scenario.gpu_bounds_contain_ratio = bounds.contain.ratio();
    scenario.gpu_bounds_width_ratio = bounds.width();
    scenario.add("gpu_bounds_width_ratio_by_method", serde_json::json!(bounds.widths()));
    scenario.add("gpu_operations", bounds.contain.all);
    scenario.add("gpu_operations_unseen", bounds.unseen);
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
