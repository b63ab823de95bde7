//! Random programs: what the room says must hold in the model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::intake::event::{Event, What};

use super::super::{Gpu, Limits, Method, OpDone, Out, Step, Subject, Wait, WaitPhase};
use super::model::Work;
use super::program::{Wish, World};

/// What the room said of one world.
struct Said {
    world: World,
    ops: BTreeMap<u64, OpDone>,
    steps: BTreeMap<u64, Step>,
    waits: Vec<Wait>,
    gpu: Gpu,
}

fn listen(wish: Wish) -> Said {
    let world = World::draw(wish);
    let mut gpu = Gpu::new(Limits::default());
    let mut out = Vec::new();
    for event in &world.events {
        gpu.on_event(event, &mut out);
    }
    gpu.finish(world.end, &mut out);
    let mut said =
        Said { world, ops: BTreeMap::new(), steps: BTreeMap::new(), waits: Vec::new(), gpu };
    for out in out {
        match out {
            Out::Op(op) => {
                assert!(said.ops.insert(op.op.id, op).is_none(), "an operation reported twice");
            }
            Out::Step(step) => {
                assert!(said.steps.insert(step.id, step).is_none(), "a step reported twice");
            }
            Out::Wait(wait) => {
                // The later word counts.
                said.waits.retain(|w| (w.tid, w.exit_ns) != (wait.tid, wait.exit_ns));
                said.waits.push(wait);
            }
            Out::Refine(refine) => match refine.subject {
                Subject::Op { id, .. } => {
                    let op = said.ops.get_mut(&id).expect("refines what was reported");
                    (op.lower_ns, op.upper_ns) = (refine.lower_ns, refine.upper_ns);
                    op.method = refine.method;
                }
                Subject::Step(id) => {
                    let step = said.steps.get_mut(&id).expect("refines what was reported");
                    (step.lower_ns, step.upper_ns) = (refine.lower_ns, refine.upper_ns);
                }
            },
            Out::Failure(_) => {}
        }
    }
    said
}

impl Said {
    /// The nodes that each operation stands for: a run may be told of in parts.
    fn nodes(&self) -> BTreeMap<u64, Vec<usize>> {
        let mut used: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        for (id, done) in &self.ops {
            let key = (done.op.tid, done.op.run.unwrap_or(done.op.enqueue_first_ns));
            let Some(truth) = self.world.truth.get(&key) else { continue };
            let from = used.entry(key).or_default();
            let to = (*from + done.op.count as usize).min(truth.nodes.len());
            nodes.insert(*id, truth.nodes[*from..to].to_vec());
            *from = to;
        }
        nodes
    }

    fn span(&self, nodes: &[usize]) -> Option<(u64, u64)> {
        let all = &self.world.device.nodes;
        let start = nodes.iter().map(|node| all[*node].start).min()?;
        Some((start, nodes.iter().map(|node| all[*node].end).max()?))
    }

    fn bounds_hold(&self) {
        for (id, nodes) in &self.nodes() {
            let done = &self.ops[id];
            if done.method == Method::Estimated || done.op.lost {
                continue;
            }
            let Some((start, end)) = self.span(nodes) else { continue };
            let truth = end - start;
            assert!(done.earliest_start_ns <= start, "starts at {start}: {done:?}");
            assert!(done.latest_end_ns >= end, "ends at {end}: {done:?}");
            assert!(done.lower_ns <= truth && truth <= done.upper_ns, "took {truth}: {done:?}");
        }
    }

    fn nothing_invented(&self) {
        let nodes = self.nodes();
        for (id, done) in &self.ops {
            let real = nodes.get(id).is_some_and(|nodes| !nodes.is_empty());
            assert!(real || done.op.lost || done.method == Method::Estimated, "{done:?}");
        }
    }

    fn steps_hold(&self) {
        let nodes = self.nodes();
        let mut placed = BTreeSet::new();
        for step in self.steps.values() {
            let mut members = Vec::new();
            for id in &step.ops {
                assert!(placed.insert(*id), "operation {id} in two steps");
                assert_eq!(self.ops[id].step, Some(step.id));
                members.extend(nodes.get(id).into_iter().flatten().copied());
            }
            if step.lost {
                continue;
            }
            if let Some((start, end)) = self.span(&members) {
                let truth = end - start;
                assert!(truth <= step.upper_ns, "took {truth}: {step:?}");
                assert!(end <= step.fact.exit_ns, "ended at {end}: {step:?}");
            }
            // After a loss, contexts are no longer known, and facts prove less.
            if !self.world.wish.losses {
                self.spans_no_fact(step, &members);
            }
        }
    }

    /// No earlier fact on the stream covers part of the step.
    fn spans_no_fact(&self, step: &Step, members: &[usize]) {
        let all = &self.world.device.nodes;
        let calls = step.ops.iter().map(|id| &self.ops[id].op).filter(|op| op.run.is_none());
        for op in calls {
            let Some(truth) = self.world.truth.get(&(op.tid, op.enqueue_first_ns)) else {
                continue;
            };
            let node = &all[truth.nodes[0]];
            for proof in &self.world.proofs {
                // Recorded again meanwhile: it cannot be told which was waited for.
                let again = self.world.records.iter().any(|(event, exit)| {
                    proof.event == Some(*event) && (proof.enter..=proof.exit).contains(exit)
                });
                let covers = proof.lane == node.stream && node.exit <= proof.cutoff && !again;
                assert!(!covers || proof.exit >= step.fact.exit_ns, "{proof:?} lies in {step:?}");
            }
        }
        let lanes: BTreeSet<usize> = members.iter().map(|node| all[*node].stream).collect();
        assert!(lanes.len() <= 1, "more than one stream: {step:?}");
        assert!(lanes.iter().all(|lane| self.world.device.is_named(*lane, step.stream)));
    }

    fn names_hold(&self) {
        for wait in &self.waits {
            let named = match wait.phase {
                WaitPhase::H2d => Work::H2d,
                WaitPhase::Kernel => Work::Kernel,
                WaitPhase::D2h => Work::D2h,
                WaitPhase::Gpu | WaitPhase::Alloc => continue,
            };
            let of = |w: &&super::model::Waited| w.tid == wait.tid && w.exit == wait.exit_ns;
            let Some(waited) = self.world.waits.iter().find(of) else { continue };
            for node in self.world.device.waited_for(&waited.targets, wait.enter_ns) {
                // A staged copy returns before it, and what it is behind, has ended.
                if self.world.device.nodes[node].end > wait.exit_ns {
                    continue;
                }
                if self.lost_later(node, wait) {
                    continue;
                }
                let node = &self.world.device.nodes[node];
                assert_eq!(node.work, named, "{node:?} in {wait:?}");
            }
        }
    }

    /// What was lost, and that something was, was told only after the wait.
    fn lost_later(&self, node: usize, wait: &Wait) -> bool {
        let mut truths = self.world.truth.values();
        let told = truths.any(|truth| {
            let mut nodes = truth.nodes.iter().zip(&truth.told);
            nodes.any(|(other, told)| *other == node && told.is_some())
        });
        let loss = |event: &Event| matches!(event.what, What::Loss(_));
        let mut events = self.world.events.iter();
        !told && events.any(|event| loss(event) && event.time_ns >= wait.exit_ns)
    }

    fn waits_do_not_overlap(&self) {
        let mut last: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for wait in &self.waits {
            last.entry(wait.tid).or_default().push((wait.enter_ns, wait.exit_ns));
        }
        for waits in last.values_mut() {
            waits.sort_unstable();
            assert!(waits.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{waits:?}");
        }
    }

    fn all_hold(&self) {
        self.bounds_hold();
        self.nothing_invented();
        self.steps_hold();
        self.names_hold();
        self.waits_do_not_overlap();
    }
}

fn wishes() -> impl Strategy<Value = Wish> {
    (any::<u64>(), 1..5_u64, 10..400_u64, 1..3_usize, 0..60_u64, any::<bool>()).prop_map(
        |(seed, threads, calls, contexts, late, losses)| Wish {
            seed,
            threads,
            calls,
            contexts,
            // With several contexts the first ones seen decide: only from the beginning, all told.
            late: if contexts > 1 || late < 20 { 0 } else { late },
            losses: losses && contexts == 1,
        },
    )
}

/// The same worlds every time, unless more are asked for.
fn cases(default: u32) -> ProptestConfig {
    let more: Option<u32> = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    let rng_seed = if more.is_some() { RngSeed::Random } else { RngSeed::Fixed(7) };
    let failure_persistence = None;
    let cases = more.unwrap_or(default);
    ProptestConfig { failure_persistence, rng_seed, cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn what_is_said_holds_in_the_model(wish in wishes()) {
        listen(wish).all_hold();
    }

    #[test]
    fn everything_seen_from_the_start_is_proven(seed: u64, threads in 1..4_u64) {
        let wish = Wish { seed, threads, calls: 200, contexts: 1, late: 0, losses: false };
        let said = listen(wish);
        said.all_hold();
        for done in said.ops.values() {
            prop_assert!(done.method != Method::Estimated, "{:?}", done);
            prop_assert!(done.op.context_known || threads > 1);
        }
        let real: usize = said.world.truth.values().map(|truth| truth.nodes.len()).sum();
        let reported: u64 = said.ops.values().map(|done| match done.op.run {
            Some(_) => done.op.count,
            None => 1,
        }).sum();
        prop_assert_eq!(real as u64, reported);
        prop_assert_eq!(said.gpu.counters().ops_estimated, 0);
    }
}
