//! What holds for any timeline.

use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::bar::{apportion, cells};
use super::super::health::{Coverage, Flow, Health};
use super::super::live::{Live, LiveSettings, Tick};
use super::super::palette::hatched;
use super::super::summary::{Limits, Summary};
use super::super::{detail, table};
use super::samples::request;
use super::{check_fits, styles};
use crate::nvml::testing;
use crate::timeline::model::{
    Arrival, Chunks, Evidence, Gaps, GpuSummary, KernelCount, Link, LongestGap, Method,
    OperationBounds, Outcome, Phase, PhaseName, Timeline, TraceId,
};

/// Any characters, control and wide and combining ones among them.
fn text() -> impl Strategy<Value = String> {
    let any_char = prop_oneof![
        any::<char>(),
        prop::char::range('\0', '\u{9f}'),
        prop::char::range('a', 'z'),
        prop::sample::select(vec![
            '\x1b', '\u{301}', '\u{202e}', '\u{200d}', '漢', '👍', '🏽', '\n'
        ]),
    ];
    vec(any_char, 0..60).prop_map(String::from_iter)
}

/// Any length, of any order of magnitude.
fn ns() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..=64).prop_map(|(n, shift)| n.checked_shr(shift).unwrap_or(0))
}

fn method() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![
        Method::Observed,
        Method::Direct,
        Method::SyncBounded,
        Method::EventElapsed,
        Method::Estimated,
        Method::Inferred,
    ])
}

fn phases(most: usize, detail: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<Phase>> {
    let part = (prop::sample::select(PhaseName::ALL.to_vec()), ns(), method(), ns(), ns(), detail);
    vec(part, 0..most).prop_map(|parts| {
        let mut offset_ns = 0_u64;
        let mut phases = Vec::new();
        for (phase, duration_ns, method, lower_ns, upper_ns, detail) in parts {
            // Phases tile: the sum fits into 64 bits.
            let duration_ns = duration_ns.min(u64::MAX - offset_ns);
            phases.push(Phase {
                phase,
                offset_ns,
                duration_ns,
                method,
                lower_ns,
                upper_ns,
                detail: detail.into(),
            });
            offset_ns += duration_ns;
        }
        phases
    })
}

fn gpu() -> impl Strategy<Value = GpuSummary> {
    (ns(), ns(), any::<u32>(), vec((text(), ns()), 0..4), method()).prop_map(
        |(lower, upper, n, kernels, method)| GpuSummary {
            device: None,
            step_count: n,
            busy_lower_ns: lower,
            busy_upper_ns: upper,
            h2d_bytes: upper,
            d2h_bytes: lower,
            launches: upper,
            graph_launches: lower,
            graph_opaque: upper,
            graph_kernels: upper,
            operations: vec![OperationBounds {
                kind: "h2d",
                method,
                count: upper,
                lower_ns: lower,
                upper_ns: upper,
            }],
            top_kernels: kernels
                .into_iter()
                .map(|(name, launches)| KernelCount { name, launches })
                .collect(),
            failed_calls: n,
        },
    )
}

fn chunks() -> impl Strategy<Value = Chunks> {
    (ns(), ns(), ns(), vec(ns(), 0..5)).prop_map(|(count, first_offset_ns, max, offsets_ns)| {
        Chunks {
            count,
            first_offset_ns,
            offsets_ns,
            gaps_ns: Gaps { p50: max / 3, p99: max / 2, max },
            longest: Some(LongestGap { offset_ns: max, phase: PhaseName::Gpu }),
        }
    })
}

/// Any timeline.
pub fn timeline() -> impl Strategy<Value = Timeline> {
    let outcome = prop::sample::select(vec![
        None,
        Some(Outcome::Ok),
        Some(Outcome::ClientError),
        Some(Outcome::ServerError),
        Some(Outcome::Cancelled),
        Some(Outcome::Reset),
    ]);
    let names = (text(), text(), text(), any::<Option<SocketAddr>>(), any::<u128>());
    let facts = (any::<Option<u16>>(), outcome, any::<(bool, bool, bool, u32)>(), ns(), ns());
    let nvml = prop::option::of(testing::any_joined());
    let parts = (phases(40, text()), prop::option::of(chunks()), prop::option::of(gpu()), nvml);
    (names, facts, parts).prop_map(|(names, facts, (phases, chunks, gpu, nvml))| {
        let (service, method, route, peer, trace_id) = names;
        let (status, outcome, (open, read, complete, pid), start, rtt) = facts;
        let link = |step_id, confidence| Link {
            step_id,
            evidence: Evidence::Overlap,
            confidence,
            share: f64::NAN,
        };
        let mut timeline = request(&route, phases);
        timeline.service = service.into();
        timeline.method = method.into();
        timeline.peer = peer;
        timeline.trace_id = TraceId(trace_id);
        timeline.status = status;
        timeline.outcome = outcome;
        timeline.open = open;
        timeline.arrival = if read { Arrival::Read } else { Arrival::Socket };
        timeline.complete = complete;
        timeline.incomplete = vec!["events lost", "a reason that goes on for a whole while"];
        timeline.pid = pid;
        timeline.tcp_retransmits = pid;
        timeline.start_unix_ns = start;
        timeline.start_monotonic_ns = start;
        timeline.tcp_rtt_ns = Some(rtt);
        timeline.links = vec![link(rtt, 0.5), link(start, f64::INFINITY)];
        timeline.chunks = chunks;
        timeline.gpu = gpu;
        timeline.nvml = nvml;
        timeline
    })
}

fn health(name: &str, n: u64) -> Health {
    Health {
        events_seen: n,
        events_lost: vec![(name.to_owned(), n), (name.to_owned(), u64::MAX)],
        unparsed: vec![
            Flow {
                kind: name.to_owned(),
                process: name.to_owned(),
                bytes_in: n,
                ..Flow::default()
            };
            15
        ],
        coverage: vec![Coverage {
            library: name.to_owned(),
            hooked: 0,
            exist: n,
            missing: vec![name.to_owned(); 9],
        }],
        notes: vec![name.to_owned(), String::new()],
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_timeline_fits(timeline in timeline(), width in 20_u16..=300) {
        for style in styles(width) {
            check_fits(&table::row(&timeline, style), style);
            check_fits(&table::header(style), style);
            check_fits(&table::legend(style), style);
            check_fits(&detail::render_detail(&timeline, style, 10), style);
        }
    }

    #[test]
    fn any_report_and_live_view_fit(
        timelines in vec(timeline(), 0..5),
        (name, n) in (text(), ns()),
        (width, height) in (20_u16..=300, 0_u16..60),
    ) {
        let health = health(&name, n);
        let open: Vec<_> = timelines.iter().filter(|t| t.open).cloned().collect();
        for style in [styles(width)[0], styles(width)[3]] {
            let mut summary = Summary::new(Limits { routes: 4, ..Limits::default() });
            let mut merged = Summary::new(Limits { routes: 3, ..Limits::default() });
            for timeline in &timelines {
                summary.add(timeline);
            }
            merged.merge(&summary);
            merged.merge(&summary);
            prop_assert_eq!(merged.requests(), 2 * summary.requests());
            check_fits(&summary.render(&health, &open, style), style);
            check_fits(&merged.render(&health, &open, style), style);
            check_fits(&summary.render_slowest_details(style, 3), style);
            let settings = LiveSettings { terminal: false, height, ..LiveSettings::default() };
            let mut live = Live::new(style, LiveSettings { summary_above: 3, ..settings });
            for timeline in &timelines {
                live.closed(timeline);
                let now_ns = timeline.start_monotonic_ns;
                check_fits(&live.tick(&Tick { now_ns, open: &open, health: &health }), style);
            }
        }
    }

    #[test]
    fn bars_are_exactly_as_wide(phases in phases(150, Just(String::new())), width in 0_usize..200) {
        let cells = cells(&phases, width);
        let mut merged: Vec<&Phase> = phases.iter().filter(|p| p.duration_ns > 0).collect();
        prop_assert_eq!(cells.len(), if merged.is_empty() { 0 } else { width });
        merged.dedup_by_key(|p| (p.phase, hatched(p)));
        if merged.len() * 2 <= width {
            let mut shown: Vec<_> = cells.iter().map(|cell| (cell.phase, cell.hatched)).collect();
            shown.dedup();
            let all: Vec<_> = merged.iter().map(|p| (p.phase, hatched(p))).collect();
            prop_assert_eq!(shown, all);
        }
    }

    #[test]
    fn shares_sum_to_the_width(
        lengths in vec(ns().prop_map(|n| n.max(1)), 1..100),
        more in 0_usize..200,
    ) {
        let width = lengths.len() + more;
        let shares = apportion(&lengths, width);
        prop_assert_eq!(shares.iter().sum::<usize>(), width);
        prop_assert!(shares.iter().all(|share| *share > 0));
        // No part is ahead of a longer one by more than the rounding.
        for (a, la) in shares.iter().zip(&lengths) {
            for (b, lb) in shares.iter().zip(&lengths) {
                prop_assert!(la < lb || a + 1 >= *b, "{la}: {a}, {lb}: {b}");
            }
        }
    }
}

#[test]
fn a_bar_of_many_parts_shows_each_phase() {
    let mut phases = Vec::new();
    for i in 0..500 {
        let phase = if i % 2 == 0 { PhaseName::Kernel } else { PhaseName::H2d };
        phases.push((phase, if i % 2 == 0 { 900 } else { 100 }, Method::Direct));
    }
    phases.push((PhaseName::Send, 1, Method::Observed));
    let cells = cells(&super::samples::tiled(&phases), 30);
    for phase in [PhaseName::Kernel, PhaseName::H2d, PhaseName::Send] {
        assert!(cells.iter().any(|cell| cell.phase == phase), "{phase:?}");
    }
    assert_eq!(cells.iter().filter(|cell| cell.phase == PhaseName::Kernel).count(), 28);
}
