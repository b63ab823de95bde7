//! Is each request linked to exactly its own GPU work?

use std::collections::{BTreeSet, HashMap, HashSet};

use tracer_user::gpu::OpDone;

use crate::measure::Share;
use crate::oracles::server::Line;
use crate::session::Session;
use crate::timeline::{Link, Timeline};

/// From this confidence on a link is claimed as unambiguous.
const CLAIMED: f64 = 0.9;

/// Whether a link is claimed. One that says of itself that it is ambiguous claims nothing.
fn is_claimed(link: &Link) -> bool {
    link.confidence >= CLAIMED && link.evidence != "ambiguous"
}

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
    /// Of the requests with GPU work, those of which nothing is claimed though something is said.
    pub ambiguous: Share,
    /// Links by evidence.
    pub evidence: HashMap<String, u64>,
}

/// The requests whose work each step holds.
type Owners = HashMap<u64, BTreeSet<usize>>;

/// A run of operations of a step, by when its thread enqueued the first and the last of them.
struct Enqueued {
    thread: (u32, u32),
    step: u64,
    first_ns: u64,
    last_ns: u64,
}

fn enqueued(done: &OpDone) -> Option<Enqueued> {
    let (first_ns, last_ns) = (done.op.enqueue_first_ns, done.op.enqueue_last_ns);
    Some(Enqueued { thread: (done.pid, done.op.tid), step: done.step?, first_ns, last_ns })
}

/// Whose work each step holds: the requests during whose stretches its operations were enqueued.
/// Where no fact lies between the work of two requests, a step holds both.
fn owners(operations: impl Iterator<Item = Enqueued>, stretches: &[Stretch]) -> Owners {
    let mut threads: HashMap<(u32, u32), Vec<Stretch>> = HashMap::new();
    for stretch in stretches {
        threads.entry((stretch.pid, stretch.tid)).or_default().push(*stretch);
    }
    for here in threads.values_mut() {
        here.sort_by_key(|stretch| stretch.from_ns);
    }
    let mut owners = Owners::new();
    for Enqueued { thread, step, first_ns, last_ns } in operations {
        let Some(here) = threads.get(&thread) else { continue };
        // The stretches of one thread do not overlap: the one before the run's first operation, and
        // those that begin during the run.
        let first = here.partition_point(|stretch| stretch.from_ns <= first_ns).saturating_sub(1);
        let last = here.partition_point(|stretch| stretch.from_ns <= last_ns);
        let during = here.get(first..last).unwrap_or_default();
        let owning = during.iter().filter(|stretch| first_ns <= stretch.to_ns);
        let owning: BTreeSet<usize> = owning.map(|stretch| stretch.request).collect();
        if !owning.is_empty() {
            owners.entry(step).or_default().extend(owning);
        }
    }
    owners
}

/// Judges the links of these requests (`(request, timeline)`).
pub fn links(session: &Session, stretches: &[Stretch], pairs: &[(usize, &Timeline)]) -> Links {
    judge(&owners(session.ops.iter().filter_map(enqueued), stretches), pairs)
}

fn judge(owners: &Owners, pairs: &[(usize, &Timeline)]) -> Links {
    let mut outcome = Links::default();
    let (mut claimed, mut linked) = (HashSet::new(), HashSet::new());
    for (request, timeline) in pairs {
        for link in &timeline.links {
            *outcome.evidence.entry(link.evidence.clone()).or_default() += 1;
            let right = owners.get(&link.step_id).is_some_and(|owners| owners.contains(request));
            outcome.any_precision.add(right);
            linked.insert((link.step_id, *request));
            if is_claimed(link) {
                outcome.precision.add(right);
                claimed.insert((link.step_id, *request));
            }
        }
    }
    let at_work: HashSet<usize> = owners.values().flatten().copied().collect();
    for (_, timeline) in pairs.iter().filter(|(request, _)| at_work.contains(request)) {
        let said = !timeline.links.is_empty();
        outcome.ambiguous.add(said && !timeline.links.iter().any(is_claimed));
    }
    let matched: HashSet<usize> = pairs.iter().map(|pair| pair.0).collect();
    for (step, owners) in owners {
        for owner in owners.iter().filter(|owner| matched.contains(owner)) {
            outcome.recall.add(claimed.contains(&(*step, *owner)));
            outcome.any_recall.add(linked.contains(&(*step, *owner)));
        }
    }
    outcome
}

/// Whether launches, bytes and graphs of a timeline are exactly those that its request made, and
/// every link of it is claimed; of a request that stayed on its thread, because it did.
pub fn is_exact(server: &Line, timeline: &Timeline) -> bool {
    let (mut launches, mut h2d, mut d2h, mut graphs) = (0, 0, 0, 0);
    if let Some(gpu) = &timeline.gpu {
        launches = gpu.launches;
        h2d = gpu.h2d_bytes;
        d2h = gpu.d2h_bytes;
        graphs = gpu.graph_launches;
    }
    let stayed = server.loop_tid == 0;
    let known = |link: &Link| {
        if stayed { link.evidence == "same-thread" } else { is_claimed(link) }
    };
    let known = timeline.links.iter().all(known);
    let expected = (
        server.launches(),
        server.copied("cuMemcpyHtoD"),
        server.copied("cuMemcpyDtoH"),
        server.graph_launches(),
    );
    known && (launches, h2d, d2h, graphs) == expected
}

/// The stretches of the compiled fixture's requests: its own driver calls.
pub fn stretches<'a>(lines: impl Iterator<Item = (usize, &'a Line)>) -> Vec<Stretch> {
    lines
        .flat_map(|(request, line)| {
            line.driver_calls().map(move |(tid, call)| Stretch {
                pid: line.driver_pid(),
                tid,
                from_ns: call.before,
                to_ns: call.after,
                request,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::made;

    fn stretch(tid: u32, from_ns: u64, request: usize) -> Stretch {
        Stretch { pid: 1, tid, from_ns, to_ns: from_ns + 50, request }
    }

    fn enqueued(tid: u32, step: u64, first_ns: u64, last_ns: u64) -> Enqueued {
        Enqueued { thread: (1, tid), step, first_ns, last_ns }
    }

    /// Step 1 is of request 0, step 2 of request 1, step 3 of both; step 9 is nobody's.
    fn owned() -> Owners {
        let stretches =
            [stretch(10, 90, 0), stretch(10, 190, 1), stretch(11, 390, 1), stretch(11, 290, 0)];
        let operations = [
            enqueued(10, 1, 100, 110),
            enqueued(10, 2, 200, 200),
            enqueued(11, 3, 300, 400),
            enqueued(10, 9, 150, 160),
            enqueued(12, 9, 100, 100),
        ];
        owners(operations.into_iter(), &stretches)
    }

    #[test]
    fn a_step_belongs_to_those_during_whose_stretches_it_was_enqueued() {
        let owned = owned();
        assert_eq!(owned.get(&1), Some(&BTreeSet::from([0])));
        assert_eq!(owned.get(&2), Some(&BTreeSet::from([1])));
        assert_eq!(owned.get(&3), Some(&BTreeSet::from([0, 1])));
        assert_eq!(owned.get(&9), None);
    }

    fn judged(first: &[(u64, &str, f64)], second: &[(u64, &str, f64)]) -> Links {
        let timelines = [made(0, &[], first), made(0, &[], second)];
        judge(&owned(), &[(0, &timelines[0]), (1, &timelines[1])])
    }

    const fn share(good: u64, all: u64) -> Share {
        Share { good, all }
    }

    #[test]
    fn right_links_are_precise_and_complete() {
        let right = judged(
            &[(1, "wake-chain", 0.95), (3, "order", 0.9)],
            &[(2, "same-thread", 1.0), (3, "order", 0.9)],
        );
        assert_eq!((right.precision, right.recall), (share(4, 4), share(4, 4)));
        assert_eq!(right.ambiguous, share(0, 2));
        assert_eq!(right.evidence.get("order"), Some(&2));
    }

    #[test]
    fn a_link_to_anothers_step_is_wrong_and_a_missing_one_is_missing() {
        let wrong = judged(&[(2, "order", 0.95), (9, "order", 0.95)], &[]);
        assert_eq!((wrong.precision, wrong.recall), (share(0, 2), share(0, 4)));
        assert_eq!(wrong.ambiguous, share(0, 2));
    }

    #[test]
    fn what_is_not_claimed_counts_apart() {
        let unsure = judged(&[(1, "overlap", 0.6), (3, "ambiguous", 0.95)], &[(1, "overlap", 0.6)]);
        assert_eq!((unsure.precision, unsure.recall), (share(0, 0), share(0, 4)));
        assert_eq!((unsure.any_precision, unsure.any_recall), (share(2, 3), share(2, 4)));
        assert_eq!(unsure.ambiguous, share(2, 2));
        let one_claimed = judged(&[(1, "order", 0.95), (3, "overlap", 0.6)], &[]);
        assert_eq!(one_claimed.ambiguous, share(0, 2));
    }
}
