//! Servers that stamp beside each of their calls: everything about a run of one can be judged.

use std::collections::HashMap;

use anyhow::Result;

use super::plans::{ASYNC, BLOCKING};
use super::reported;
use crate::judge::bounds::bounds;
use crate::judge::calls::{Calls, driver_calls, launches, socket_calls};
use crate::judge::causes::Causes;
use crate::judge::instants::Instants;
use crate::judge::links::{is_exact, links, stretches};
use crate::judge::phases::{copies_are_direct, undivided};
use crate::measure::Share;
use crate::oracles::client::ClientRequest;
use crate::oracles::server::Line;
use crate::report::Scenario;
use crate::server::Records;
use crate::timeline::Timeline;
use crate::tracer::Traced;

/// Median distance between a stamp and the event, µs.
const NEAR_US: f64 = 100.0;

/// Requests of which several are read at once: their thread serves more than one at a time.
pub const PIPELINED: &str = "pipelined-";
/// Requests on the only connection: nothing else is on the device.
pub const ALONE: &str = "alone-";
/// Any other.
pub const KEPT: &str = "kept-";

/// A run: what was sent, what the server did, what spanprobe said.
#[derive(Debug)]
pub struct Run {
    /// By the clients' own record.
    pub requests: Vec<ClientRequest>,
    /// By the server's and the driver's.
    pub records: Records<Line>,
    /// By spanprobe.
    pub traced: Traced,
}

/// What is wanted of the links of a server, and whether its waits are judged.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Share of the links claimed that are right, where any is claimed.
    pub precision: f64,
    /// Share of the requests' steps that are claimed.
    pub recall: Option<f64>,
    /// Share of requests with exactly their own launches, bytes and graphs.
    pub exact: Option<f64>,
    /// Whether waits and CPU time are held against the server's own.
    pub causes: bool,
}

/// A request stays on its thread: nothing about its links is a matter of chance.
pub const STAYS: Wanted =
    Wanted { precision: 1.0, recall: Some(1.0), exact: Some(1.0), causes: true };
/// A request is handed from thread to thread.
pub const HANDED: Wanted =
    Wanted { precision: 0.99, recall: Some(0.99), exact: None, causes: true };
/// Processes poll: what ended a streak is known where one thread only comes into question.
pub const POLLS: Wanted = Wanted { precision: 0.99, recall: Some(0.9), exact: None, causes: true };
/// Tasks move between threads: nothing need be claimed, and what is must be right.
pub const MOVES: Wanted = Wanted { precision: 0.99, recall: None, exact: None, causes: false };

/// Judges a run.
///
/// # Errors
/// Where nothing was recorded.
pub fn judge(name: &str, run: &Run, wanted: Wanted) -> Result<Scenario> {
    let mut scenario = Scenario { name: name.to_owned(), ..Scenario::default() };
    let found = reported::judge(&mut scenario, &run.requests, &run.traced);
    let session = run.traced.session()?;
    let from_ns = run.traced.ready_ns;

    // Workers give back what they have when spanprobe is gone.
    let seen = run.records.lines.iter().filter(|line| line.t != "worker");
    let lines = &seen.cloned().collect::<Vec<Line>>();
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
    let mut causes = Causes::default();
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
        if wanted.causes {
            causes.add(line, timeline);
        }
    }

    scenario.instant_error_us = instants.errors_us().map(Into::into);
    scenario.add_share("arrival_socket", instants.at_socket);
    scenario.add_share("start_inside", instants.start_inside);
    scenario.add_share("end_inside", instants.end_inside);
    scenario.demand_share("starts within the client's stamps", instants.start_inside, 0.99);
    scenario.demand_share("ends within the stamps of the last write", instants.end_inside, 1.0);

    calls(&mut scenario, "socket_calls", &socket_calls(session, lines, from_ns));
    calls(&mut scenario, "driver_calls", &driver_calls(session, lines, from_ns));
    let launched = launches(session, lines, from_ns);
    calls(&mut scenario, "launch_runs", &launched.calls);
    scenario.add("launch_calls", launched.made);
    scenario.add("launch_events_seen", launched.seen);
    let lost = session.losses.cuda + session.losses.recursion;
    scenario
        .demand(launched.seen <= launched.made && launched.made - launched.seen <= lost, || {
            format!("{} launches seen of {}, {lost} lost", launched.seen, launched.made)
        });

    let bounds = bounds(session, &run.records.sim, from_ns);
    reported::bounds(&mut scenario, &bounds);
    scenario.add("gpu_operations_given_up", bounds.given_up);
    let words = bounds.failures.first().cloned().unwrap_or_default();
    let used = lines.iter().any(|line| line.is_request() && !line.cuda.is_empty());
    if used && bounds.contain.ratio().is_none_or(|ratio| ratio < 0.999) {
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
    scenario.ambiguous_ratio = links.ambiguous.ratio();
    scenario.add("link_precision_low95", links.precision.low95());
    scenario.add("link_evidence", serde_json::json!(links.evidence));
    scenario.add_share("links_exact", exact);
    if links.precision.all > 0 {
        let what = "links to the request's own steps";
        scenario.demand_share(what, links.precision, wanted.precision);
    }
    let complete = |ratio: f64| if lost == 0 { ratio } else { ratio.min(0.99) };
    if let Some(recall) = wanted.recall.filter(|_| links.recall.all > 0) {
        scenario.demand_share("own steps that are linked", links.recall, complete(recall));
    }
    if let Some(least) = wanted.exact.map(complete) {
        scenario.demand_share("requests with exactly their own GPU work", exact, least);
        if exact.ratio().is_some_and(|ratio| ratio < least) {
            scenario.failures.extend(first_inexact);
        }
    }
    causes.judge(&mut scenario);
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
        // Handed over, its links may be missing (which `recall` counts) and the phase with them.
        if line.plan == ASYNC && (line.loop_tid == 0 || timeline.has_gpu_phase()) {
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
