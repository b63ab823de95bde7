//! The table: one row per request, with a bar of its phases.
//!
//! Bars are as wide as each other: each is scaled to its own request's duration, which stands
//! beside it. Below [`STACKED_BELOW`] columns a row takes two lines. What does not fit into a row
//! (why it is incomplete, a stream's figures) follows on lines of its own, indented.

use crate::timeline::model::{Arrival, Now, Outcome, Timeline};

use super::bar;
use super::palette;
use super::style::{Line, Paint, Style, wrap};
use super::text;

/// Narrower output puts the bar on a second line.
const STACKED_BELOW: usize = 60;
/// From here on, rows end in a column of notes.
const NOTES_FROM: usize = 110;
/// From this confidence on something is said without doubt.
const CLAIMED: f64 = 0.9;
/// Columns of a status or what stands in its place.
const STATUS: usize = 5;
/// Columns of a duration with its mark.
const DURATION: usize = 9;

/// The note of a request that is timed from the server's read.
const ARRIVAL_READ: &str = "arrival=read";

/// Columns of each field; 0 leaves it out.
#[derive(Clone, Copy, Debug)]
struct Layout {
    stacked: bool,
    millis: bool,
    time: usize,
    service: usize,
    request: usize,
    bar: usize,
    notes: usize,
}

impl Layout {
    fn of(width: usize) -> Self {
        // Blanks between fields, the status, the duration and the flag.
        let fixed = 1 + 1 + STATUS + DURATION + 1 + 2;
        if width < STACKED_BELOW {
            let request = width.saturating_sub(fixed - 2);
            let bar = width.saturating_sub(9);
            let time = 8;
            return Self { stacked: true, millis: false, time, service: 0, request, bar, notes: 0 };
        }
        let wide = width >= NOTES_FROM;
        let time = if wide { 12 } else { 8 };
        let service = match width {
            ..76 => 0,
            76..NOTES_FROM => 14,
            _ => 18,
        };
        let rest = width - time - fixed - if service > 0 { service + 1 } else { 0 };
        let notes = if wide { (rest * 3 / 10).max(22) } else { 0 };
        let rest = rest - if wide { notes + 1 } else { 0 };
        let request = (rest * 48 / 100).min(60);
        Self { stacked: false, millis: wide, time, service, request, bar: rest - request, notes }
    }
}

/// The line of column names.
pub fn header(style: Style) -> String {
    let layout = Layout::of(style.columns());
    let mut line = Line::new(style);
    if !layout.stacked {
        let name = if layout.millis { "time (UTC)" } else { "UTC" };
        line.left(name, layout.time, Paint::Bold).gap(1);
    }
    if layout.service > 0 {
        line.left("service/pid", layout.service, Paint::Bold).gap(1);
    }
    line.left("request", layout.request, Paint::Bold).gap(1);
    line.right("code", STATUS, Paint::Bold).right("duration", DURATION, Paint::Bold);
    if !layout.stacked {
        line.gap(1).left("where the time went", layout.bar, Paint::Bold);
    }
    if layout.notes > 0 {
        line.gap(3).put("notes", Paint::Bold);
    }
    let mut out = String::new();
    line.end(&mut out);
    out
}

/// What the letters, textures and marks of bars and rows mean.
pub fn legend(style: Style) -> String {
    palette::legend(style)
}

/// One request: a row, and lines below it for what does not fit.
pub fn row(timeline: &Timeline, style: Style) -> String {
    let layout = Layout::of(style.columns());
    let mut out = String::new();
    let mut line = Line::new(style);
    let time = text::clock(timeline.start_unix_ns, layout.millis);
    if !layout.stacked {
        line.put(&time, Paint::Dim).gap(1);
    }
    if layout.service > 0 {
        line.left(&service(timeline, layout.service, style), layout.service, Paint::Plain).gap(1);
    }
    let request = fit_request(timeline, layout.request, style);
    line.left(&request, layout.request, Paint::Plain).gap(1);
    let (status, paint) = status(timeline);
    line.right(&status, STATUS, paint);
    line.right(&duration(timeline, style), DURATION, Paint::Plain).gap(1);
    if layout.stacked {
        put_flag(&mut line, timeline);
        line.end(&mut out);
        line = Line::new(style);
        line.put(&time, Paint::Dim).gap(1);
    }
    bar::put(&mut line, &timeline.phases, layout.bar, style);
    if !layout.stacked {
        line.gap(1);
        put_flag(&mut line, timeline);
    }
    let mut notes = notes(timeline, style);
    let columns = |notes: &[(String, Paint)]| -> usize {
        notes.iter().map(|(note, _)| text::width(note) + 2).sum()
    };
    if columns(&notes) > layout.notes + 2 {
        // The mark at the duration says the same.
        notes.retain(|(note, _)| note != ARRIVAL_READ);
    }
    if columns(&notes) <= layout.notes + 2 {
        for (note, paint) in &notes {
            line.put(note, *paint).gap(2);
        }
        line.end(&mut out);
    } else {
        line.end(&mut out);
        wrap(&notes, if layout.stacked { 2 } else { layout.time + 1 }, style, &mut out);
    }
    out
}

fn put_flag(line: &mut Line, timeline: &Timeline) {
    if timeline.complete {
        line.gap(1);
    } else {
        line.put("!", Paint::Bad);
    }
    line.gap(1);
}

/// Name and pid in at most `columns`: the name is cut, never the pid.
pub(super) fn service(timeline: &Timeline, columns: usize, style: Style) -> String {
    let pid = format!("/{}", timeline.pid);
    let name = text::fit(&timeline.service, columns.saturating_sub(pid.len()), style.unicode);
    format!("{name}{pid}")
}

/// Method and route.
pub(super) fn request(timeline: &Timeline) -> String {
    format!("{} {}", timeline.method, timeline.route)
}

/// Method and route in at most `columns`: the route's middle is cut.
pub(super) fn fit_request(timeline: &Timeline, columns: usize, style: Style) -> String {
    let method = text::fit(&timeline.method, 10.min(columns / 2), style.unicode);
    let rest = columns.saturating_sub(text::width(&method) + 1);
    format!("{method} {}", text::fit_middle(&timeline.route, rest, style.unicode))
}

/// The status code, or what happened instead of one.
pub(super) fn status(timeline: &Timeline) -> (String, Paint) {
    let paint = match timeline.outcome {
        Some(Outcome::Ok) => Paint::Plain,
        None if timeline.open => Paint::Bold,
        None | Some(Outcome::ClientError | Outcome::Cancelled) => Paint::Warn,
        Some(Outcome::ServerError | Outcome::Reset) => Paint::Bad,
    };
    let instead = match (timeline.open, timeline.outcome) {
        (true, _) => "open",
        (false, Some(Outcome::Cancelled)) => "gone",
        (false, Some(Outcome::Reset)) => "reset",
        (false, _) => "?",
    };
    (timeline.status.map_or_else(|| instead.to_owned(), |status| status.to_string()), paint)
}

/// The duration, marked as a least one where the start is only the server's read.
pub(super) fn duration(timeline: &Timeline, style: Style) -> String {
    let least = match (timeline.arrival, style.unicode) {
        (Arrival::Socket, _) => "",
        (Arrival::Read, true) => "≥",
        (Arrival::Read, false) => ">",
    };
    format!("{least}{}", text::duration(timeline.duration_ns, style.unicode))
}

/// What the thread that carries an open request is in.
pub(super) fn present(now: &Now, style: Style) -> String {
    let certain = if now.confidence < CLAIMED { "perhaps " } else { "" };
    let mut words = format!("{certain}thread {} {}", now.tid, now.state);
    if !now.call.is_empty() {
        words.push_str(&format!(" in {}", now.call));
    }
    if let Some(for_ns) = now.for_ns {
        words.push_str(&format!(" for {}", text::duration(for_ns, style.unicode)));
    }
    if !now.detail.is_empty() {
        words.push_str(&format!(": {}", now.detail));
    }
    words
}

/// What a row has to say beside its fields.
fn notes(timeline: &Timeline, style: Style) -> Vec<(String, Paint)> {
    let mut notes: Vec<(String, Paint)> = Vec::new();
    if let (true, Some(phase)) = (timeline.open, timeline.phases.last()) {
        notes.push((format!("now: {}", phase.phase.as_str()), Paint::Bold));
    }
    if let Some(now) = &timeline.now {
        notes.push((present(now, style), Paint::Bold));
    }
    match timeline.outcome {
        Some(Outcome::Cancelled) => notes.push(("client went away".to_owned(), Paint::Warn)),
        Some(Outcome::Reset) => notes.push(("connection reset".to_owned(), Paint::Bad)),
        None | Some(Outcome::Ok | Outcome::ClientError | Outcome::ServerError) => {}
    }
    if let Some(chunks) = &timeline.chunks {
        let first = text::duration(chunks.first_offset_ns, style.unicode);
        let chunks = text::counted(chunks.count, "chunk");
        notes.push((format!("{chunks}, 1st {first}"), Paint::Plain));
    }
    let failed = timeline.gpu.as_ref().map_or(0, |gpu| gpu.failed_calls);
    if failed > 0 {
        notes.push((text::counted(u64::from(failed), "failed CUDA call"), Paint::Bad));
    }
    if timeline.tcp_retransmits > 0 {
        let n = u64::from(timeline.tcp_retransmits);
        notes.push((text::counted(n, "retransmit"), Paint::Warn));
    }
    if timeline.arrival == Arrival::Read {
        notes.push((ARRIVAL_READ.to_owned(), Paint::Dim));
    }
    if !timeline.complete {
        let reasons = timeline.incomplete.join(", ");
        let reasons = if reasons.is_empty() { "reason not given".to_owned() } else { reasons };
        notes.push((format!("! {reasons}"), Paint::Bad));
    }
    notes
}
