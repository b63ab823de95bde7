//! The summary as text.

use std::collections::BTreeSet;

use crate::timeline::model::{PhaseName, Timeline};

use super::bar;
use super::board;
use super::dist::Dist;
use super::health::{Health, render_health};
use super::palette;
use super::stats::{PhaseStats, RouteStats};
use super::style::{Line, Paint, Style, heading, wrap};
use super::summary::{RouteName, Summary};
use super::table;
use super::text;

/// Narrower output gives a route's figures lines of their own.
const COLUMNS_FROM: usize = 96;
/// Routes listed; the others are counted.
const ROUTES_SHOWN: usize = 20;
/// Routes whose phases are listed.
const PHASES_SHOWN: usize = 8;
/// Open requests listed.
const OPEN_SHOWN: usize = 10;
/// Columns of a number.
const NUMBER: usize = 9;
/// Percentiles shown, per mille, with their names.
const PERCENTILES: [(u16, &str); 5] =
    [(500, "p50"), (900, "p90"), (950, "p95"), (990, "p99"), (999, "p99.9")];

/// Renders the whole report.
pub(super) fn render(
    summary: &Summary,
    health: &Health,
    open: &[Timeline],
    style: Style,
) -> String {
    let mut out = String::new();
    totals(summary, open, style, &mut out);
    if summary.requests() > 0 {
        out.push('\n');
        routes(summary, style, &mut out);
        slowest(summary, style, &mut out);
    }
    if !open.is_empty() {
        out.push('\n');
        out.push_str(&board::open_section(open, OPEN_SHOWN, style));
    }
    if summary.requests() > 0 || !open.is_empty() {
        out.push('\n');
        out.push_str(&palette::legend(style));
    }
    out.push('\n');
    let timelines = summary.all.requests + summary.health_checks.requests;
    out.push_str(&render_health(
        health,
        &summary.incomplete_by_reason(),
        summary.incomplete_total(),
        timelines,
        style,
    ));
    out
}

fn totals(summary: &Summary, open: &[Timeline], style: Style, out: &mut String) {
    let (all, time) = (&summary.all, |ns| text::duration(ns, style.unicode));
    heading("summary", style, out);
    let mut pieces = vec![(text::counted(all.requests, "request"), Paint::Bold)];
    if summary.span_ns() > 0 {
        let span = time(summary.span_ns());
        let rate = text::rate(all.requests, summary.span_ns());
        pieces.push((format!("in {span} ({rate}/s)"), Paint::Plain));
    }
    pieces.push(errors(all));
    if all.incomplete > 0 {
        pieces.push((format!("{} incomplete", text::count(all.incomplete)), Paint::Bad));
    }
    if !open.is_empty() {
        pieces.push((format!("{} still open", text::count(open.len() as u64)), Paint::Bold));
    }
    wrap(&pieces, 2, style, out);
    if all.requests > 0 {
        let socket = all.requests.saturating_sub(all.arrival_read);
        let share = |n: u64| text::percent(u128::from(n), u128::from(all.requests));
        let pieces = [
            format!("timed from: socket {}", share(socket)),
            format!("read {} (those may have waited longer)", share(all.arrival_read)),
        ];
        let shown = if all.arrival_read > 0 { 2 } else { 1 };
        let pieces = pieces.into_iter().take(shown).map(|p| (p, Paint::Plain));
        wrap(&pieces.collect::<Vec<_>>(), 2, style, out);
    }
    streams(all, style, out);
    gpu(all, style, out);
    let checks = &summary.health_checks;
    if checks.requests > 0 {
        let pieces = [
            (format!("health checks and scrapes: {}", text::count(checks.requests)), Paint::Plain),
            errors(checks),
            (format!("longest {}", time(checks.duration.max_ns())), Paint::Plain),
            ("left out of all else".to_owned(), Paint::Dim),
        ];
        wrap(&pieces, 2, style, out);
    }
}

/// `3 errors (0.1%: 2 5xx, 1 gone)`.
pub(super) fn errors(stats: &RouteStats) -> (String, Paint) {
    let outcomes = stats.outcomes;
    if outcomes.errors() == 0 {
        return ("no errors".to_owned(), Paint::Plain);
    }
    let kinds: Vec<String> = [
        (outcomes.server_error, "5xx"),
        (outcomes.client_error, "4xx"),
        (outcomes.reset, "reset"),
        (outcomes.cancelled, "gone"),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, kind)| format!("{} {kind}", text::count(n)))
    .collect();
    let share = text::percent(u128::from(outcomes.errors()), u128::from(stats.requests));
    let bad = outcomes.server_error + outcomes.reset > 0;
    let paint = if bad { Paint::Bad } else { Paint::Warn };
    let n = text::counted(outcomes.errors(), "error");
    (format!("{n} ({share}: {})", kinds.join(", ")), paint)
}

fn streams(stats: &RouteStats, style: Style, out: &mut String) {
    let streams = &stats.streams;
    if streams.first.count() == 0 {
        return;
    }
    let (n, chunks) = (text::count(streams.first.count()), text::count(streams.chunks));
    let value = |dist, per_mille| percentile(dist, per_mille, style);
    let pieces = [
        format!("streams: {n} with {chunks} chunks"),
        format!(
            "first chunk p50 {} p99 {} max {}",
            value(&streams.first, 500),
            value(&streams.first, 990),
            text::duration(streams.first.max_ns(), style.unicode)
        ),
        format!(
            "gap p99 per stream: p50 {} p99 {}",
            value(&streams.gap_p99, 500),
            value(&streams.gap_p99, 990)
        ),
        format!("longest gap {}", text::duration(streams.gap_max_ns, style.unicode)),
    ];
    wrap(&pieces.map(|piece| (piece, Paint::Plain)), 2, style, out);
}

fn gpu(stats: &RouteStats, style: Style, out: &mut String) {
    let gpu = stats.gpu;
    if gpu.requests == 0 {
        return;
    }
    let time = |ns: u128| text::duration(u64::try_from(ns).unwrap_or(u64::MAX), style.unicode);
    let busy = if gpu.busy_lower_ns == gpu.busy_upper_ns {
        time(gpu.busy_lower_ns)
    } else {
        format!("{} to {}", time(gpu.busy_lower_ns), time(gpu.busy_upper_ns))
    };
    let mut pieces = vec![
        (format!("GPU: {}", text::counted(gpu.requests, "request")), Paint::Plain),
        (format!("{} launches", text::count(gpu.launches)), Paint::Plain),
    ];
    if gpu.graph_launches > 0 {
        let (opaque, kernels) = (gpu.graph_opaque, gpu.graph_kernels);
        pieces.push((text::graphs(gpu.graph_launches, opaque, kernels), Paint::Plain));
    }
    pieces.push((format!("to device {}", text::bytes(gpu.h2d_bytes)), Paint::Plain));
    pieces.push((format!("from device {}", text::bytes(gpu.d2h_bytes)), Paint::Plain));
    pieces.push((format!("busy {busy}"), Paint::Plain));
    if gpu.failed_calls > 0 {
        pieces.push((text::counted(gpu.failed_calls, "failed CUDA call"), Paint::Bad));
    }
    wrap(&pieces, 2, style, out);
}

/// A percentile, `-` where there are too few to tell it from the longest.
pub(super) fn percentile(dist: &Dist, per_mille: u16, style: Style) -> String {
    let ns = dist.percentile(per_mille);
    ns.map_or_else(|| "-".to_owned(), |ns| text::duration(ns, style.unicode))
}

fn routes(summary: &Summary, style: Style, out: &mut String) {
    heading("routes, by the time they took", style, out);
    if style.columns() >= COLUMNS_FROM {
        let mut line = Line::new(style);
        line.gap(style.columns().saturating_sub(NUMBER * 8));
        for name in ["requests", "errors"] {
            line.right(name, NUMBER, Paint::Dim);
        }
        for (_, name) in PERCENTILES {
            line.right(name, NUMBER, Paint::Dim);
        }
        line.right("max", NUMBER, Paint::Dim);
        line.end(out);
    }
    let by_time = summary.by_time();
    if by_time.len() > 1 || summary.other.requests > 0 {
        route("all", &summary.all, true, style, out);
    }
    let with_service = needs_service(&by_time);
    for (i, (name, stats)) in by_time.iter().take(ROUTES_SHOWN).enumerate() {
        route(&shown_name(name, with_service), stats, i < PHASES_SHOWN, style, out);
    }
    if summary.other.requests > 0 {
        route("other (names beyond the limit)", &summary.other, false, style, out);
    }
    if let Some(rest @ [_, ..]) = by_time.get(ROUTES_SHOWN..) {
        let requests = rest.iter().map(|(_, stats)| stats.requests).sum();
        let piece =
            format!("and {} more routes, {}", rest.len(), text::counted(requests, "request"));
        wrap(&[(piece, Paint::Dim)], 2, style, out);
    }
}

/// Whether routes of several services have one name.
pub(super) fn needs_service(routes: &[(&RouteName, &RouteStats)]) -> bool {
    let names: BTreeSet<&str> = routes.iter().map(|(name, _)| name.request.as_str()).collect();
    names.len() < routes.len()
}

/// A route's name, with its service where asked for.
pub(super) fn shown_name(name: &RouteName, with_service: bool) -> String {
    if with_service { format!("{}: {}", name.service, name.request) } else { name.request.clone() }
}

fn route(name: &str, stats: &RouteStats, phases: bool, style: Style, out: &mut String) {
    let mut line = Line::new(style);
    let time = |ns| text::duration(ns, style.unicode);
    let longest = time(stats.duration.max_ns());
    let requests = text::count(stats.requests);
    let errors_paint = if stats.outcomes.errors() > 0 { Paint::Bad } else { Paint::Plain };
    let errors = text::count(stats.outcomes.errors());
    if style.columns() >= COLUMNS_FROM {
        let columns = style.columns() - NUMBER * 8 - 2;
        let name = text::fit_middle(name, columns, style.unicode);
        line.gap(2).left(&name, columns, Paint::Bold);
        line.right(&requests, NUMBER, Paint::Plain).right(&errors, NUMBER, errors_paint);
        for (per_mille, _) in PERCENTILES {
            line.right(&percentile(&stats.duration, per_mille, style), NUMBER, Paint::Plain);
        }
        line.right(&longest, NUMBER, Paint::Plain);
        line.end(out);
    } else {
        let name = text::fit_middle(name, style.columns() - 2, style.unicode);
        line.gap(2).put(&name, Paint::Bold);
        line.end(out);
        let mut pieces = vec![
            (text::counted(stats.requests, "request"), Paint::Plain),
            (text::counted(stats.outcomes.errors(), "error"), errors_paint),
        ];
        pieces.extend(PERCENTILES.into_iter().map(|(per_mille, name)| {
            (format!("{name} {}", percentile(&stats.duration, per_mille, style)), Paint::Plain)
        }));
        pieces.push((format!("max {longest}"), Paint::Plain));
        wrap(&pieces, 4, style, out);
    }
    if phases {
        for (name, phase) in stats.in_order() {
            phase_line(name, phase, stats, style, out);
        }
    }
}

fn phase_line(
    name: PhaseName,
    phase: &PhaseStats,
    stats: &RouteStats,
    style: Style,
    out: &mut String,
) {
    let hatched = phase.hatched_ns * 2 > phase.total_ns;
    let mut line = Line::new(style);
    line.gap(if style.columns() < 72 { 2 } else { 4 });
    palette::put_letter(&mut line, name, hatched, style);
    line.gap(1).left(name.as_str(), 12, Paint::Plain);
    let share = text::percent(phase.total_ns, stats.total_ns);
    let mark = if phase.hatched_ns > 0 { "~" } else { "" };
    line.right(&format!("{mark}{share}"), 7, Paint::Plain);
    let values = [(500, "p50"), (990, "p99")]
        .map(|(per_mille, name)| (name, percentile(&phase.dist, per_mille, style)));
    let of_requests = text::percent(u128::from(phase.requests), u128::from(stats.requests));
    if style.columns() < 72 {
        for (_, value) in values {
            line.right(&value, 8, Paint::Plain);
        }
        line.end(out);
        return;
    }
    for (name, value) in values {
        line.gap(2).put(name, Paint::Dim).right(&value, 8, Paint::Plain);
    }
    let max = text::duration(phase.dist.max_ns(), style.unicode);
    line.gap(2).put("max", Paint::Dim).right(&max, 8, Paint::Plain);
    if style.columns() >= COLUMNS_FROM {
        line.gap(2).put("in", Paint::Dim).right(&of_requests, 7, Paint::Plain);
        line.gap(2);
        let columns = line.room().min(60);
        let cells = (phase.total_ns * columns as u128 / stats.total_ns.max(1)) as usize;
        let cell = bar::Cell { phase: name, hatched };
        bar::draw(&mut line, &vec![cell; cells.min(columns)], style);
    }
    line.end(out);
}

fn slowest(summary: &Summary, style: Style, out: &mut String) {
    let incomplete = summary.slower_incomplete();
    if summary.slowest().is_empty() && incomplete.is_empty() {
        return;
    }
    out.push('\n');
    heading("slowest", style, out);
    out.push_str(&table::header(style));
    for timeline in summary.slowest() {
        out.push_str(&table::row(timeline, style));
    }
    if !incomplete.is_empty() {
        let piece = "slower than the last of these, but incomplete:".to_owned();
        wrap(&[(piece, Paint::Bad)], 0, style, out);
        for timeline in incomplete {
            out.push_str(&table::row(timeline, style));
        }
    }
}
