//! The live view's blocks: open requests, and figures of the last seconds.

use crate::timeline::model::Timeline;

use super::bar;
use super::report::{errors, needs_service, percentile, shown_name};
use super::stats::RouteStats;
use super::style::{Line, Paint, Style, wrap};
use super::summary::Summary;
use super::table;
use super::text;

/// Columns of a number.
const NUMBER: usize = 8;

/// Open requests, the oldest first: age, phase so far, what they are.
pub(super) fn open_section(open: &[Timeline], most: usize, style: Style) -> String {
    let mut oldest: Vec<&Timeline> = open.iter().collect();
    oldest
        .sort_by(|a, b| b.duration_ns.cmp(&a.duration_ns).then_with(|| a.span_id.cmp(&b.span_id)));
    let mut out = String::new();
    let mut line = Line::new(style);
    let title = format!("{} open, oldest first", text::count(open.len() as u64));
    line.put(&title, Paint::Bold);
    line.end(&mut out);
    for timeline in oldest.iter().take(most) {
        open_line(timeline, style, &mut out);
    }
    if let Some(rest @ [_, ..]) = oldest.get(most..) {
        let piece = format!("and {} younger", text::count(rest.len() as u64));
        wrap(&[(piece, Paint::Dim)], 2, style, &mut out);
    }
    out
}

fn open_line(timeline: &Timeline, style: Style, out: &mut String) {
    let width = style.columns();
    let mut line = Line::new(style);
    line.right(&table::duration(timeline, style), NUMBER + 1, Paint::Bold).gap(2);
    let now = timeline.phases.last();
    let paint = now.map_or(Paint::Dim, |phase| Paint::Phase(phase.phase));
    line.left(now.map_or("?", |phase| phase.phase.as_str()), 12, paint).gap(1);
    let rest = line.room();
    let service = match width {
        ..76 => 0,
        76..110 => 14,
        _ => 18,
    };
    if service > 0 {
        line.left(&table::service(timeline, service, style), service, Paint::Plain).gap(1);
    }
    let rest = if service > 0 { rest.saturating_sub(service + 1) } else { rest };
    let request = if width < 60 { rest } else { (rest * 48 / 100).min(60) };
    let request_text = table::fit_request(timeline, request, style);
    line.left(&request_text, request, Paint::Plain).gap(1);
    if width >= 60 {
        let columns = line.room().saturating_sub(2);
        bar::put(&mut line, &timeline.phases, columns, style);
        line.gap(1).put(if timeline.complete { "" } else { "!" }, Paint::Bad);
    }
    line.end(out);
    if let Some(present) = &timeline.now {
        wrap(&[(table::present(present, style), Paint::Bold)], NUMBER + 3, style, out);
    }
}

/// The age of the oldest open request, ns.
pub(super) fn oldest_ns(open: &[Timeline]) -> Option<u64> {
    open.iter().map(|timeline| timeline.duration_ns).max()
}

/// One line's worth of how things are: rate, errors, open requests, losses.
pub(super) fn status_pieces(
    window: &Summary,
    window_ns: u64,
    open: &[Timeline],
    lost: u64,
    style: Style,
) -> Vec<(String, Paint)> {
    let all = window.all();
    let mut pieces = vec![
        (format!("last {}", text::duration(window_ns, style.unicode)), Paint::Dim),
        (format!("{}/s", text::rate(all.requests, window_ns)), Paint::Bold),
        errors(all),
    ];
    let oldest = oldest_ns(open).map(|ns| text::duration(ns, style.unicode));
    let open_count = text::count(open.len() as u64);
    pieces.push((
        oldest.map_or("none open".to_owned(), |age| format!("{open_count} open, oldest {age}")),
        Paint::Plain,
    ));
    let checks = window.health_checks.requests;
    if checks > 0 {
        pieces.push((format!("health checks {}", text::count(checks)), Paint::Dim));
    }
    if window.incomplete_total() > 0 {
        let n = text::count(window.incomplete_total());
        pieces.push((format!("{n} incomplete"), Paint::Bad));
    }
    if lost > 0 {
        pieces.push((format!("{} events lost in all", text::count(lost)), Paint::Bad));
    }
    pieces
}

/// Percentiles and the phases that took most, as pieces of a line.
pub(super) fn figures(stats: &RouteStats, style: Style) -> Vec<(String, Paint)> {
    let mut pieces: Vec<(String, Paint)> = [(500, "p50"), (950, "p95"), (990, "p99")]
        .into_iter()
        .map(|(per_mille, name)| {
            (format!("{name} {}", percentile(&stats.duration, per_mille, style)), Paint::Plain)
        })
        .collect();
    let longest = text::duration(stats.duration.max_ns(), style.unicode);
    pieces.push((format!("max {longest}"), Paint::Plain));
    let mut phases: Vec<_> = stats.in_order().collect();
    phases.sort_by_key(|(_, phase)| std::cmp::Reverse(phase.total_ns));
    for (name, phase) in phases.into_iter().take(3) {
        let mark = if phase.hatched_ns > 0 { "~" } else { "" };
        let share = text::percent(phase.total_ns, stats.total_ns);
        pieces.push((format!("{mark}{} {share}", name.as_str()), Paint::Phase(name)));
    }
    pieces
}

/// Routes of the window, the one that took most time first, with bars of where the time went.
pub(super) fn routes(window: &Summary, window_ns: u64, most: usize, style: Style) -> String {
    let mut out = String::new();
    let wide = style.columns() >= 80;
    let numbers = if wide { 6 } else { 3 };
    let rest = style.columns().saturating_sub(numbers * NUMBER + 2);
    let name_columns = if wide { (rest * 3 / 5).clamp(12, 60) } else { rest };
    let mut line = Line::new(style);
    line.left("request", name_columns, Paint::Dim);
    let names: &[&str] =
        if wide { &["/s", "errors", "p50", "p95", "p99", "max"] } else { &["/s", "p50", "p99"] };
    for name in names {
        line.right(name, NUMBER, Paint::Dim);
    }
    if wide && rest - name_columns >= 10 {
        line.gap(2).put("phases", Paint::Dim);
    }
    line.end(&mut out);
    let by_time = window.by_time();
    let with_service = needs_service(&by_time);
    for (name, stats) in by_time.iter().take(most) {
        let name = shown_name(name, with_service);
        route_line(&name, stats, (window_ns, name_columns, wide), style, &mut out);
    }
    if let Some(rest @ [_, ..]) = by_time.get(most..) {
        let requests: u64 = rest.iter().map(|(_, stats)| stats.requests).sum();
        let requests = requests.saturating_add(window.other.requests);
        let rate = text::rate(requests, window_ns);
        wrap(
            &[(format!("and {} more routes, {rate}/s", rest.len()), Paint::Dim)],
            0,
            style,
            &mut out,
        );
    } else if window.other.requests > 0 {
        let layout = (window_ns, name_columns, wide);
        route_line("other", &window.other, layout, style, &mut out);
    }
    out
}

fn route_line(
    name: &str,
    stats: &RouteStats,
    (window_ns, name_columns, wide): (u64, usize, bool),
    style: Style,
    out: &mut String,
) {
    let mut line = Line::new(style);
    let name = text::fit_middle(name, name_columns, style.unicode);
    line.left(&name, name_columns, Paint::Plain);
    line.right(&text::rate(stats.requests, window_ns), NUMBER, Paint::Bold);
    let value = |per_mille| percentile(&stats.duration, per_mille, style);
    if wide {
        let errors = stats.outcomes.errors();
        let paint = if errors > 0 { Paint::Bad } else { Paint::Plain };
        line.right(&text::count(errors), NUMBER, paint);
        for per_mille in [500, 950, 990] {
            line.right(&value(per_mille), NUMBER, Paint::Plain);
        }
        let longest = text::duration(stats.duration.max_ns(), style.unicode);
        line.right(&longest, NUMBER, Paint::Plain).gap(2);
        let columns = line.room();
        if columns >= 10 {
            bar::draw(&mut line, &bar::cells_of(stats.parts(), columns), style);
        }
    } else {
        line.right(&value(500), NUMBER, Paint::Plain).right(&value(990), NUMBER, Paint::Plain);
    }
    line.end(out);
}
