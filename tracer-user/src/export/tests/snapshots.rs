//! How output looks. `SPANPROBE_BLESS=DIR` writes the present look of each into a directory.

use super::super::health::{Coverage, Flow, Health};
use super::super::style::Style;
use super::super::summary::{Limits, Summary};
use super::super::{detail, table};
use super::samples::{
    START_UNIX_NS, cancelled, embedding, failed, hostile, open, request, retrieval, stream, tiled,
};
use super::{check_fits, strip};
use crate::timeline::model::{Method, PhaseName, Timeline};

pub(super) fn check(name: &str, expected: &str, actual: &str, style: Style) {
    check_fits(actual, style);
    let actual = actual.replace('\x1b', "␛");
    if let Some(dir) = std::env::var_os("SPANPROBE_BLESS") {
        std::fs::write(std::path::Path::new(&dir).join(format!("{name}.txt")), actual)
            .expect("written");
    } else {
        assert_eq!(actual, expected, "{name} looks different:\n{actual}");
    }
}

macro_rules! snapshot {
    ($name:literal, $actual:expr, $style:expr) => {
        $crate::export::tests::snapshots::check(
            $name,
            include_str!(concat!("snapshots/", $name, ".txt")),
            &$actual,
            $style,
        )
    };
}

pub(super) use snapshot;

fn all() -> [Timeline; 7] {
    [embedding(), stream(), retrieval(), failed(), cancelled(), open(3_210), hostile()]
}

fn whole_table(style: Style) -> String {
    let rows: String = all().iter().map(|timeline| table::row(timeline, style)).collect();
    table::legend(style) + &table::header(style) + &rows
}

const COLOR_120: Style = Style { color: true, unicode: true, width: 120 };

#[test]
fn table_looks() {
    snapshot!("table-40", whole_table(Style::plain(40)), Style::plain(40));
    snapshot!("table-80", whole_table(Style::plain(80)), Style::plain(80));
    snapshot!("table-120", whole_table(Style::plain(120)), Style::plain(120));
    snapshot!("table-200", whole_table(Style::plain(200)), Style::plain(200));
    snapshot!("table-120-color", whole_table(COLOR_120), COLOR_120);
}

#[test]
fn colour_changes_nothing_but_colour() {
    let plain = Style { color: false, ..COLOR_120 };
    assert_eq!(strip(&whole_table(COLOR_120)), whole_table(plain));
}

#[test]
fn detail_looks() {
    let details = |style| -> String {
        [embedding(), stream(), retrieval(), failed()]
            .map(|t| detail::render_detail(&t, style, 20))
            .join("\n")
    };
    snapshot!("detail-40", details(Style::plain(40)), Style::plain(40));
    snapshot!("detail-80", details(Style::plain(80)), Style::plain(80));
}

#[test]
fn detail_counts_the_phases_that_it_leaves_out() {
    let parts: Vec<_> =
        (1..=100).map(|us| (PhaseName::ALL[us % 10], us as u64, Method::Direct)).collect();
    let text = detail::render_detail(&request("/", tiled(&parts)), Style::plain(80), 5);
    assert_eq!(text.matches("direct").count(), 5, "{text}");
    assert!(text.contains("and 95 shorter phases, together 4.56ms"), "{text}");
}

fn health() -> Health {
    Health {
        events_seen: 1_234_567,
        events_lost: vec![("ring".into(), 120), ("map insert".into(), 3), ("missed".into(), 0)],
        unparsed: vec![
            Flow {
                kind: "http/2".into(),
                process: "tritonserver/77".into(),
                flows: 1,
                bytes_in: 900,
                bytes_out: 1_800,
                ..Flow::default()
            },
            Flow {
                kind: "tls".into(),
                process: "nginx/991".into(),
                flows: 12,
                bytes_in: 1_200_000,
                bytes_out: 33_000_000,
                first_unix_ns: START_UNIX_NS,
                last_unix_ns: START_UNIX_NS + 60_000_000_000,
            },
        ],
        coverage: vec![Coverage {
            library: "libcuda.so.1".into(),
            hooked: 118,
            exist: 120,
            missing: vec!["cuLaunchKernelEx_ptsz".into(), "cuMemcpyBatchAsync".into()],
        }],
        notes: vec!["the route of a request whose head is longer than 256 bytes is cut".into()],
    }
}

fn report(style: Style) -> String {
    let mut summary = Summary::new(Limits { slowest: 2, ..Limits::default() });
    for i in 0..1_000_u64 {
        let mut timeline = match i % 10 {
            0 => stream(),
            5 => retrieval(),
            1 if i < 30 => failed(),
            2 if i < 60 => request("/healthz", Vec::new()),
            _ => embedding(),
        };
        timeline.start_monotonic_ns += i * 20_000_000;
        timeline.duration_ns += i * 1_000;
        summary.add(&timeline);
    }
    let mut lost = stream();
    lost.duration_ns *= 2;
    lost.complete = false;
    lost.incomplete = vec!["events lost in the ring"];
    summary.add(&lost);
    summary.render(&health(), &[open(900), open(3_210)], style)
}

#[test]
fn report_looks() {
    snapshot!("report-40", report(Style::plain(40)), Style::plain(40));
    snapshot!("report-80", report(Style::plain(80)), Style::plain(80));
    snapshot!("report-120", report(Style::plain(120)), Style::plain(120));
    snapshot!("report-120-color", report(COLOR_120), COLOR_120);
}

#[test]
fn an_empty_report_says_so() {
    let text = Summary::new(Limits::default()).render(&Health::default(), &[], Style::plain(80));
    assert!(text.contains("0 requests"), "{text}");
    assert!(text.contains("none lost"), "{text}");
}
