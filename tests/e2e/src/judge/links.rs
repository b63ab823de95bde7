//! Is each request linked to exactly its own GPU work?

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::measure::Share;
use crate::oracles::server::Line;
use crate::session::Session;
use crate::timeline::Timeline;

/// From this confidence on a link is claimed as unambiguous.
const CLAIMED: f64 = 0.9;

/// A stretch of a thread's time in which it worked on the GPU for one request.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "they say it")]
pub struct Stretch {
    pub pid: u32,
    pub tid: u32,
    pub from_ns: u64,
    pub to_ns: u64,
    pub request: usize,
}

/// The answer, in steps.
#[derive(Debug, Default)]
pub struct Links {
    /// Of the links claimed, those to the request's own steps.
    pub precision: Share,
    /// Of the steps of these requests, those linked to them.
    pub recall: Share,
    /// The same of all links, those that are not claimed included.
    pub any_precision: Share,
    /// The same.
    pub any_recall: Share,
    /// Links by evidence.
    pub evidence: HashMap<String, u64>,
}

/// Whose work each step holds: the requests during whose stretches its operations were enqueued.
/// Where no fact lies between the work of two requests, a step holds both.
fn owners(session: &Session, stretches: &[Stretch]) -> HashMap<u64, BTreeSet<usize>> {
    let mut threads: HashMap<(u32, u32), Vec<Stretch>> = HashMap::new();
    for stretch in stretches {
        threads.entry((stretch.pid, stretch.tid)).or_default().push(*stretch);
    }
    for here in threads.values_mut() {
        here.sort_by_key(|stretch| stretch.from_ns);
    }
    let mut owners: HashMap<u64, BTreeSet<usize>> = HashMap::new();
    for done in &session.ops {
        let Some(step) = done.step else { continue };
        let Some(here) = threads.get(&(done.pid, done.op.tid)) else { continue };
        let enqueued = done.op.enqueue_first_ns;
        let after = here.partition_point(|stretch| stretch.from_ns <= enqueued);
        let stretch = after.checked_sub(1).and_then(|at| here.get(at));
        if let Some(stretch) = stretch.filter(|stretch| enqueued <= stretch.to_ns) {
            owners.entry(step).or_default().insert(stretch.request);
        }
    }
    owners
}

/// Judges the links of these requests (`(request, timeline)`).
pub fn links(session: &Session, stretches: &[Stretch], pairs: &[(usize, &Timeline)]) -> Links {
    let owners = owners(session, stretches);
    let mut outcome = Links::default();
    let (mut claimed, mut linked) = (HashSet::new(), HashSet::new());
    for (request, timeline) in pairs {
        for link in &timeline.links {
            *outcome.evidence.entry(link.evidence.clone()).or_default() += 1;
            let right = owners.get(&link.step_id).is_some_and(|owners| owners.contains(request));
            outcome.any_precision.add(right);
            linked.insert((link.step_id, *request));
            if link.confidence >= CLAIMED {
                outcome.precision.add(right);
                claimed.insert((link.step_id, *request));
            }
        }
    }
    let matched: HashSet<usize> = pairs.iter().map(|pair| pair.0).collect();
    for (step, owners) in &owners {
        for owner in owners.iter().filter(|owner| matched.contains(owner)) {
            outcome.recall.add(claimed.contains(&(*step, *owner)));
            outcome.any_recall.add(linked.contains(&(*step, *owner)));
        }
    }
    outcome
}

/// Whether launches, bytes and graphs of a timeline are exactly those that its request made.
pub fn is_exact(server: &Line, timeline: &Timeline) -> bool {
    let (mut launches, mut h2d, mut d2h, mut graphs) = (0, 0, 0, 0);
    if let Some(gpu) = &timeline.gpu {
        launches = gpu.launches;
        h2d = gpu.h2d_bytes;
        d2h = gpu.d2h_bytes;
        graphs = gpu.graph_launches;
    }
    let same_thread = timeline.links.iter().all(|link| link.evidence == "same-thread");
    let expected = (
        server.launches(),
        server.copied("cuMemcpyHtoD"),
        server.copied("cuMemcpyDtoH"),
        server.graph_launches(),
    );
    same_thread && (launches, h2d, d2h, graphs) == expected
}

/// The stretches of the compiled fixture's requests: its own driver calls.
pub fn stretches<'a>(lines: impl Iterator<Item = (usize, &'a Line)>) -> Vec<Stretch> {
    lines
        .flat_map(|(request, line)| {
            line.cuda.iter().map(move |call| Stretch {
                pid: line.pid,
                tid: line.tid,
                from_ns: call.before,
                to_ns: call.after,
                request,
            })
        })
        .collect()
}
