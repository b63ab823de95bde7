//! The agent's answers for people: why it is slow, and how the agent is.

use super::style::{Paint, Style, heading, wrap};
use super::{table, text};
use crate::{
    cost::Status,
    explain::{Figures, OpenWhy, RouteWhy, Slow, Why},
    timeline::model::PhaseName,
};

/// Phases shown of a route.
const SHARES_SHOWN: usize = 6;

type Pieces = Vec<(String, Paint)>;

fn plain(text: impl Into<String>) -> (String, Paint) {
    (text.into(), Paint::Plain)
}

fn duration(ns: u64, style: Style) -> String {
    text::duration(ns, style.unicode)
}

/// The answer to `spanprobe why`, in the runbook's order.
pub fn render(why: &Why, style: Style) -> String {
    let mut out = String::new();
    let title = format!(
        "the last {}: now is the last {} of it, before is the rest",
        duration(why.known_ns, style),
        duration(why.recent_ns.min(why.known_ns), style)
    );
    heading(&title, style, &mut out);
    for sentence in &why.answer {
        wrap(&[(sentence.clone(), Paint::Bold)], 2, style, &mut out);
    }
    section("1 traffic", style, &mut out);
    for route in &why.traffic.routes {
        put_route(route, style, &mut out);
    }
    nothing(why.traffic.routes.is_empty(), "no request has ended", style, &mut out);
    if why.traffic.routes_left_out > 0 {
        let more = format!("and {} more routes", why.traffic.routes_left_out);
        wrap(&[(more, Paint::Dim)], 2, style, &mut out);
    }
    section("2 gpu and memory", style, &mut out);
    let (now, before) = why.gpu.failed_calls;
    let failed = format!("failed driver calls: {now} now, {before} before");
    wrap(&[(failed, if now > 0 { Paint::Bad } else { Paint::Plain })], 2, style, &mut out);
    for reading in &why.gpu.readings {
        wrap(&[plain(reading.clone())], 2, style, &mut out);
    }
    nothing(why.gpu.readings.is_empty(), "the device is not read", style, &mut out);
    section("3 under way", style, &mut out);
    let open =
        format!("{} open, {} of them wait for their turn", why.queue.open, why.queue.waiting);
    wrap(&[plain(open)], 2, style, &mut out);
    for open in &why.queue.oldest {
        put_open(open, style, &mut out);
    }
    section("4 inputs", style, &mut out);
    for route in &why.traffic.routes {
        let bytes = |figures: &Figures| text::bytes(figures.request_bytes_p50);
        let sizes = format!("{} now, {} before", bytes(&route.now), bytes(&route.before));
        wrap(&[plain(route.route.clone()), plain(sizes)], 2, style, &mut out);
    }
    section("5 what happened", style, &mut out);
    for event in &why.events {
        let time = (text::clock(event.unix_ns, false), Paint::Dim);
        let mut pieces = vec![time, (event.kind.as_str().to_owned(), Paint::Warn)];
        pieces.push(plain(event.text.clone()));
        pieces.extend(event.service.iter().map(|service| plain(service.clone())));
        pieces.extend(event.pid.map(|pid| plain(format!("pid {pid}"))));
        wrap(&pieces, 2, style, &mut out);
    }
    nothing(why.events.is_empty(), "nothing", style, &mut out);
    section("6 what could not be seen", style, &mut out);
    put_tracer(why, style, &mut out);
    out
}

fn section(title: &str, style: Style, out: &mut String) {
    out.push('\n');
    heading(title, style, out);
}

fn nothing(is: bool, words: &str, style: Style, out: &mut String) {
    if is {
        wrap(&[(words.to_owned(), Paint::Dim)], 2, style, out);
    }
}

fn put_route(route: &RouteWhy, style: Style, out: &mut String) {
    let name = [(route.route.clone(), Paint::Bold), (route.service.clone(), Paint::Dim)];
    wrap(&name, 2, style, out);
    for (name, figures) in [("now", &route.now), ("before", &route.before)] {
        wrap(&figures_of(name, figures, style), 4, style, out);
    }
    if let Some(phase) = &route.phase {
        let words = format!(
            "the slow ones spend {} in {}, usual is {}: {} of what they take longer",
            duration(phase.slow_ns, style),
            phase.phase,
            duration(phase.median_ns, style),
            percent(phase.share)
        );
        wrap(&[(words, paint(&phase.phase))], 4, style, out);
    }
    let shares: Pieces = route
        .shares
        .iter()
        .take(SHARES_SHOWN)
        .map(|share| {
            let words = format!(
                "{} {} (before {})",
                share.phase,
                percent(share.now),
                percent(share.before)
            );
            (words, paint(&share.phase))
        })
        .collect();
    wrap(&shares, 4, style, out);
    for Slow { trace_id, start_unix_ns, duration_ns, phase } in &route.slowest {
        let pieces = [
            plain(format!("slowest {}", duration(*duration_ns, style))),
            (text::clock(*start_unix_ns, false), Paint::Dim),
            (phase.clone(), paint(phase)),
            plain(format!("trace {trace_id}")),
        ];
        wrap(&pieces, 4, style, out);
    }
}

fn figures_of(name: &str, figures: &Figures, style: Style) -> Pieces {
    let mut pieces = vec![
        (format!("{name:<6}"), Paint::Dim),
        plain(text::counted(figures.requests, "request")),
        plain(format!("{:.1}/s", figures.per_second)),
        plain(format!("p50 {}", duration(figures.p50_ns, style))),
        plain(format!("p95 {}", duration(figures.p95_ns, style))),
        plain(format!("p99 {}", duration(figures.p99_ns, style))),
        plain(format!("max {}", duration(figures.max_ns, style))),
    ];
    if figures.errors > 0 {
        pieces.push((text::counted(figures.errors, "error"), Paint::Bad));
    }
    if figures.incomplete > 0 {
        pieces.push((format!("{} incomplete", text::count(figures.incomplete)), Paint::Bad));
    }
    pieces
}

fn put_open(open: &OpenWhy, style: Style, out: &mut String) {
    let mut pieces = vec![
        (duration(open.age_ns, style), Paint::Bold),
        (open.phase.clone(), paint(&open.phase)),
        plain(open.route.clone()),
        (format!("{}/{}", open.service, open.pid), Paint::Dim),
    ];
    pieces.extend(open.now.iter().map(|now| (table::present(now, style), Paint::Bold)));
    pieces.push(plain(format!("trace {}", open.trace_id)));
    wrap(&pieces, 2, style, out);
}

fn put_tracer(why: &Why, style: Style, out: &mut String) {
    let tracer = &why.tracer;
    let mut pieces = vec![plain(format!("{} events seen", text::count(tracer.events_seen)))];
    if tracer.events_lost.is_empty() {
        pieces.push(plain("none lost"));
    }
    for (place, lost) in &tracer.events_lost {
        pieces.push((format!("{place} lost {}", text::count(*lost)), Paint::Bad));
    }
    let incomplete = format!(
        "{} of {} timelines incomplete",
        text::count(tracer.incomplete),
        text::count(tracer.timelines)
    );
    pieces.push((incomplete, if tracer.incomplete > 0 { Paint::Bad } else { Paint::Plain }));
    wrap(&pieces, 2, style, out);
    let left_out = tracer.left_out.iter().map(|words| format!("to keep to the budget, {words}"));
    let paused = tracer.paused.then(|| "tracing is paused".to_owned());
    for words in paused.into_iter().chain(left_out) {
        wrap(&[(words, Paint::Bad)], 2, style, out);
    }
    for note in &tracer.notes {
        wrap(&[("note:".to_owned(), Paint::Warn), plain(note.clone())], 2, style, out);
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn paint(phase: &str) -> Paint {
    let name = PhaseName::ALL.into_iter().find(|name| name.as_str() == phase);
    name.map_or(Paint::Plain, Paint::Phase)
}

/// The answer to `spanprobe status`, `pause` and `resume`.
pub fn render_status(status: &Status, style: Style) -> String {
    let mut out = String::new();
    let state = if status.paused { "paused" } else { "tracing" };
    let pieces = [
        (format!("spanprobe {}", status.version), Paint::Bold),
        plain(format!("process {}", status.pid)),
        (state.to_owned(), if status.paused { Paint::Bad } else { Paint::Bold }),
        plain(format!("for {}", duration(status.uptime_ns, style))),
        plain(text::counted(status.targets, "process")),
    ];
    wrap(&pieces, 0, style, &mut out);
    let lost = if status.events_lost > 0 { Paint::Bad } else { Paint::Plain };
    let pieces = [
        plain(text::counted(status.requests, "request")),
        plain(format!("{} open", status.open)),
        plain(format!("{} events", text::count(status.events_seen))),
        (format!("{} lost", text::count(status.events_lost)), lost),
    ];
    wrap(&pieces, 2, style, &mut out);
    let mut pieces =
        vec![plain(format!("cost {:.3} % of the machine's processors", status.cost.percent))];
    pieces.push(plain(if status.cost.budget_percent > 0.0 {
        format!("budget {} %", status.cost.budget_percent)
    } else {
        "no budget".to_owned()
    }));
    for (family, seconds) in &status.cost.family_seconds {
        pieces.push(plain(format!("{family} {seconds:.3} s")));
    }
    pieces.push(plain(format!("agent {:.3} s", status.cost.agent_seconds)));
    wrap(&pieces, 2, style, &mut out);
    let paint = if status.level > 0 { Paint::Bad } else { Paint::Plain };
    wrap(&[(status.left_out.clone(), paint)], 2, style, &mut out);
    out
}
