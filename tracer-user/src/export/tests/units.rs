//! Numbers, names and routes as people read them.

use unicode_width::UnicodeWidthStr;

use super::super::dist::Dist;
use super::super::palette;
use super::super::route::{RouteClass, route_class};
use super::super::text;
use crate::timeline::model::PhaseName;

#[test]
fn durations_have_three_digits_and_never_a_thousand() {
    for (ns, expected) in [
        (0, "0ns"),
        (999, "999ns"),
        (1_000, "1.00us"),
        (999_499, "999us"),
        (999_500, "1.00ms"),
        (41_234_567, "41.2ms"),
        (999_999_999, "1.00s"),
        (9_995_000_000, "10.0s"),
        (99_949_999_999, "99.9s"),
        (99_950_000_000, "1m40s"),
        (5_999_400_000_000, "99m59s"),
        (5_999_500_000_000, "1h40m"),
        (u64::MAX, "5124095h"),
    ] {
        assert_eq!(text::duration(ns, false), expected);
    }
    assert_eq!(text::duration(1_500, true), "1.50µs");
}

#[test]
fn sizes_counts_shares_rates() {
    for (n, expected) in [
        (999, "999B"),
        (1_000, "1.0kB"),
        (99_949, "99.9kB"),
        (99_950, "100kB"),
        (999_999, "1.0MB"),
        (12_582_912, "12.6MB"),
        (u64::MAX, "18.4EB"),
    ] {
        assert_eq!(text::bytes(n), expected);
    }
    assert_eq!(text::count(1_234_567), "1,234,567");
    assert_eq!(text::count(123), "123");
    assert_eq!(text::percent(0, 9), "0%");
    assert_eq!(text::percent(1, 100_000), "<0.1%");
    assert_eq!(text::percent(99_999, 100_000), ">99.9%");
    assert_eq!(text::percent(5, 5), "100%");
    assert_eq!(text::percent(0, 0), "-");
    assert_eq!(text::rate(15, 10_000_000_000), "1.5");
    assert_eq!(text::rate(123_456, 1_000_000_000), "123,456");
}

#[test]
fn times_are_utc() {
    assert_eq!(text::date_time(0), "1970-01-01 00:00:00.000000 UTC");
    assert_eq!(text::date_time(951_782_400_000_000_000), "2000-02-29 00:00:00.000000 UTC");
    assert_eq!(text::date_time(1_764_475_927_123_456_789), "2025-11-30 04:12:07.123456 UTC");
    assert_eq!(text::clock(1_764_475_927_123_456_789, true), "04:12:07.123");
}

#[test]
fn long_names_are_cut_where_asked() {
    assert_eq!(text::fit("abcdef", 6, false), "abcdef");
    assert_eq!(text::fit("abcdefg", 6, false), "abcd..");
    assert_eq!(text::fit_middle("/v1/models/bert/infer", 14, true), "/v1/mod…/infer");
    for columns in 0..40 {
        assert!(text::fit("漢字漢字漢字/é👍", columns, true).width() <= columns);
        assert!(text::fit_middle("漢字漢字漢字/é👍漢字漢字漢字", columns, true).width() <= columns);
    }
}

#[test]
fn nothing_that_moves_or_hides_is_kept() {
    let hostile = "a\x1b[2J\r\n\u{9b}1m\u{202e}x\u{200b}\u{301}\u{ad}\u{2028}\u{feff}\u{e0041}";
    let shown = text::clean(hostile, true).replace('\u{fffd}', "#");
    assert_eq!(shown, "a#[2J###1m#x######");
    assert_eq!(text::clean("é\x07", false), "??");
}

#[test]
fn no_two_phases_look_alike() {
    let distinct = |values: Vec<u32>| {
        let mut sorted = values.clone();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.len() == values.len()
    };
    let letter = |phase| palette::letter(phase).to_ascii_lowercase().into();
    assert!(distinct(PhaseName::ALL.map(letter).to_vec()));
    assert!(distinct(PhaseName::ALL.map(|phase| palette::color(phase).into()).to_vec()));
}

#[test]
fn health_checks_are_told_by_their_path() {
    for route in [
        "/healthz",
        "/health",
        "/health/",
        "/ready",
        "/readyz",
        "/livez",
        "/metrics",
        "/ping",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/bert/ready",
        "/metrics?name=x",
        "/v2/models/bert/versions/3/ready",
    ] {
        assert_eq!(route_class(route), RouteClass::Health, "{route}");
    }
    for route in [
        "/",
        "",
        "?",
        "/v1/health",
        "/healthy",
        "/v2/models/bert/infer",
        "/Health",
        "/pingpong",
        "/v2/models//x/ready",
        "/health_generate",
        "/v2/healthy",
    ] {
        assert_eq!(route_class(route), RouteClass::Traffic, "{route}");
    }
}

#[test]
fn percentiles_are_right_to_one_percent_or_absent() {
    let mut dist = Dist::default();
    assert_eq!(dist.percentile(500), None);
    for ms in 1..=1_000 {
        dist.record(ms * 1_000_000);
    }
    for (per_mille, ms) in [(500, 500.0), (900, 900.0), (990, 990.0), (999, 999.0)] {
        let found = dist.percentile(per_mille).expect("enough") as f64 / 1e6;
        assert!((found / ms - 1.0).abs() <= 0.01, "{per_mille}: {found}");
    }
    assert_eq!(dist.max_ns(), 1_000_000_000);
    let mut few = Dist::default();
    for _ in 0..99 {
        few.record(7);
    }
    assert_eq!(few.percentile(990), None);
    assert_eq!(few.percentile(500), Some(7));
    few.record(u64::MAX);
    few.merge(&dist);
    assert_eq!((few.count(), few.max_ns()), (1_100, u64::MAX));
    assert!(few.heap_bytes() <= 24 * 1024, "{}", few.heap_bytes());
}

#[test]
fn nouns_are_counted() {
    for (n, noun, wanted) in [
        (1, "process", "1 process"),
        (4, "process", "4 processes"),
        (0, "request", "0 requests"),
        (1_234, "step", "1,234 steps"),
    ] {
        assert_eq!(text::counted(n, noun), wanted);
    }
}
