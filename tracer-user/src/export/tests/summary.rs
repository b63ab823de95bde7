//! What adds up.

use super::super::health::Health;
use super::super::style::Style;
use super::super::summary::{Limits, Summary};
use super::samples::{cancelled, embedding, failed, open, request, stream, tiled};
use crate::timeline::model::{Method, PhaseName};

#[test]
fn memory_is_bounded_whatever_routes_are_called() {
    let mut summary = Summary::new(Limits::default());
    for i in 0..100_000_u64 {
        let mut timeline = request("", tiled(&[(PhaseName::Send, i, Method::Observed)]));
        timeline.route = format!("/items/{i}/{}", "x".repeat(400)).into();
        summary.add(&timeline);
        if i == 200 {
            // Slow and quick ones have widened every histogram of the known routes.
            for route in 0..200 {
                timeline.phases = tiled(&PhaseName::ALL.map(|phase| (phase, 1, Method::Observed)));
                timeline.chunks = stream().chunks;
                timeline.route = format!("/items/{route}/{}", "x".repeat(400)).into();
                for ns in [1, u64::MAX / 16] {
                    timeline.phases.iter_mut().for_each(|phase| phase.duration_ns = ns);
                    timeline.duration_ns = ns;
                    summary.add(&timeline);
                }
            }
        }
    }
    assert_eq!(summary.by_time().len(), 128);
    assert_eq!(summary.requests(), 100_400);
    let bytes = summary.heap_bytes();
    assert!(bytes < 40 << 20, "{} MiB", bytes >> 20);
    let text = summary.render(&Health::default(), &[], Style::plain(80));
    assert!(text.contains("other (names beyond the limit)"), "{text}");
    assert!(text.contains("and 108 more routes"), "{text}");
}

#[test]
fn a_scanner_takes_at_most_half_of_the_names() {
    let mut summary = Summary::new(Limits { routes: 10, ..Limits::default() });
    for i in 0..100 {
        let mut timeline = request(&format!("/wp-{i}.php"), Vec::new());
        timeline.status = Some(404);
        summary.add(&timeline);
    }
    assert_eq!(summary.by_time().len(), 5);
    summary.add(&embedding());
    assert_eq!(summary.by_time()[0].0.request, "POST /v1/embeddings");
}

#[test]
fn parts_merge_to_the_whole() {
    let samples = [embedding(), stream(), failed(), cancelled(), request("/ping", Vec::new())];
    let (mut whole, mut merged) =
        (Summary::new(Limits::default()), Summary::new(Limits::default()));
    for part in 0..4_u64 {
        let mut slice = Summary::new(Limits::default());
        for i in 0..300_u64 {
            let mut timeline = samples[(i % 5) as usize].clone();
            timeline.start_monotonic_ns += (part * 300 + i) * 1_000_000;
            timeline.duration_ns += (part * 300 + i) * 7_000;
            whole.add(&timeline);
            slice.add(&timeline);
        }
        merged.merge(&slice);
    }
    let render = |summary: &Summary| summary.render(&Health::default(), &[], Style::plain(120));
    assert_eq!(render(&whole), render(&merged));
}

#[test]
fn health_checks_and_open_requests_are_left_out() {
    let mut summary = Summary::new(Limits::default());
    summary.add(&request("/healthz", tiled(&[(PhaseName::Send, 90_000_000, Method::Observed)])));
    summary.add(&open(500));
    summary.add(&embedding());
    assert_eq!(summary.requests(), 1);
    assert_eq!(summary.slowest().len(), 1);
    let text = summary.render(&Health::default(), &[], Style::plain(120));
    assert!(text.contains("health checks and scrapes: 1 "), "{text}");
}

#[test]
fn slow_incomplete_requests_are_shown_apart() {
    let mut summary = Summary::new(Limits { slowest: 2, ..Limits::default() });
    for us in [10, 20, 30, 25] {
        summary.add(&request("/x", tiled(&[(PhaseName::Send, us, Method::Observed)])));
    }
    for us in [5, 25, 26, 90] {
        let mut timeline = request("/lost", tiled(&[(PhaseName::Send, us, Method::Observed)]));
        timeline.complete = false;
        timeline.incomplete = vec!["events lost"];
        summary.add(&timeline);
    }
    let us = |timelines: &[crate::timeline::model::Timeline]| -> Vec<u64> {
        timelines.iter().map(|timeline| timeline.duration_ns / 1_000).collect()
    };
    assert_eq!(us(summary.slowest()), [30, 25]);
    assert_eq!(us(summary.slower_incomplete()), [90, 26]);
    assert_eq!(summary.incomplete_by_reason(), [("events lost".to_owned(), 4)]);
    let none = Summary::new(Limits { slowest: 0, ..Limits::default() });
    assert!(none.slower_incomplete().is_empty());
}
