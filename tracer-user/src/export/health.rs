//! What was lost, and what could not be seen: plain values, and how they read.

use super::style::{Paint, Style, heading, wrap};
use super::text;

/// Names listed before the rest is counted.
const SHOWN: usize = 6;
/// Flows listed before the rest is counted.
const FLOWS_SHOWN: usize = 12;

/// The state of the tracer's own sight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Events taken in.
    pub events_seen: u64,
    /// Events lost, by the place where.
    pub events_lost: Vec<(String, u64)>,
    /// Traffic that was seen but not understood.
    pub unparsed: Vec<Flow>,
    /// What is hooked of what exists, per library.
    pub coverage: Vec<Coverage>,
    /// Anything else that the reader has to know, a sentence each.
    pub notes: Vec<String>,
}

/// Something that can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// In words.
    pub name: &'static str,
    /// Family of events: `socket`, `tcp`, `cuda`, `process`, `sched`, or `any`.
    pub family: &'static str,
    /// Where: `kernel` on the way out of the kernel, `intake`, or what had no room for it.
    pub place: &'static str,
    /// How much, so far.
    pub count: u64,
}

/// Traffic of one kind and process that was seen but not understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// `tls`, `http/2`, `unix`, `unknown` …
    pub kind: String,
    /// Name and pid of the process, or where it listens.
    pub process: String,
    /// Connections.
    pub flows: u64,
    /// Bytes read by the process.
    pub bytes_in: u64,
    /// Bytes written by the process.
    pub bytes_out: u64,
    /// First and last byte, ns since the Unix epoch; 0 where unknown.
    pub first_unix_ns: u64,
    /// As above.
    pub last_unix_ns: u64,
}

/// What is hooked of one library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Its file name, or `syscalls`.
    pub library: String,
    /// Sites hooked.
    pub hooked: u64,
    /// Sites that exist.
    pub exist: u64,
    /// Names of sites that exist and are not hooked.
    pub missing: Vec<String>,
}

impl Health {
    /// Events lost anywhere.
    pub fn lost(&self) -> u64 {
        self.events_lost.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

/// Renders "losses and limits". `incomplete`: timelines by reason; `timelines`: all of them.
pub fn render_health(
    health: &Health,
    incomplete: &[(String, u64)],
    incomplete_total: u64,
    timelines: u64,
    style: Style,
) -> String {
    let mut out = String::new();
    heading("losses and limits", style, &mut out);
    let lost = health.lost();
    let mut pieces = vec![
        ("events".to_owned(), Paint::Plain),
        (format!("{} seen", text::count(health.events_seen)), Paint::Plain),
    ];
    if lost == 0 {
        pieces.push(("none lost".to_owned(), Paint::Plain));
    } else {
        let all = u128::from(health.events_seen) + u128::from(lost);
        let share = text::percent(u128::from(lost), all);
        pieces.push((format!("{} lost ({share}):", text::count(lost)), Paint::Bad));
    }
    pieces.extend(counted(&health.events_lost));
    wrap(&pieces, 2, style, &mut out);
    let mut pieces = vec![("timelines".to_owned(), Paint::Plain)];
    if incomplete_total == 0 {
        pieces.push(("none incomplete".to_owned(), Paint::Plain));
    } else {
        let share = text::percent(u128::from(incomplete_total), u128::from(timelines));
        let piece = format!("{} incomplete ({share}):", text::count(incomplete_total));
        pieces.push((piece, Paint::Bad));
    }
    pieces.extend(counted(incomplete));
    wrap(&pieces, 2, style, &mut out);
    flows(&health.unparsed, style, &mut out);
    coverage(&health.coverage, style, &mut out);
    for note in &health.notes {
        wrap(
            &[("note:".to_owned(), Paint::Warn), (note.clone(), Paint::Plain)],
            2,
            style,
            &mut out,
        );
    }
    out
}

/// `name 12` for each count that is not zero, largest first.
fn counted(counts: &[(String, u64)]) -> Vec<(String, Paint)> {
    let mut counts: Vec<_> = counts.iter().filter(|(_, n)| *n > 0).collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    counts
        .into_iter()
        .map(|(name, n)| (format!("{name} {}", text::count(*n)), Paint::Bad))
        .collect()
}

fn flows(flows: &[Flow], style: Style, out: &mut String) {
    if flows.is_empty() {
        return;
    }
    wrap(&[("seen, not parsed:".to_owned(), Paint::Warn)], 2, style, out);
    let mut largest: Vec<&Flow> = flows.iter().collect();
    largest.sort_by_key(|flow| std::cmp::Reverse(flow.bytes_in.saturating_add(flow.bytes_out)));
    for flow in largest.iter().take(FLOWS_SHOWN) {
        let mut pieces = vec![
            (flow.kind.clone(), Paint::Warn),
            (flow.process.clone(), Paint::Plain),
            (text::counted(flow.flows, "connection"), Paint::Plain),
            (
                format!("in {}, out {}", text::bytes(flow.bytes_in), text::bytes(flow.bytes_out)),
                Paint::Plain,
            ),
        ];
        if flow.first_unix_ns > 0 {
            let [first, last] =
                [flow.first_unix_ns, flow.last_unix_ns].map(|unix_ns| text::clock(unix_ns, false));
            pieces.push((format!("{first} to {last}"), Paint::Dim));
        }
        wrap(&pieces, 4, style, out);
    }
    if let Some(rest @ [_, ..]) = largest.get(FLOWS_SHOWN..) {
        let bytes = rest.iter().fold(0_u64, |sum, flow| {
            sum.saturating_add(flow.bytes_in).saturating_add(flow.bytes_out)
        });
        let piece = format!("and {} more kinds, {}", rest.len(), text::bytes(bytes));
        wrap(&[(piece, Paint::Dim)], 4, style, out);
    }
}

fn coverage(coverage: &[Coverage], style: Style, out: &mut String) {
    for library in coverage {
        let full = library.hooked >= library.exist;
        let paint = if full { Paint::Plain } else { Paint::Warn };
        let mut pieces = vec![
            ("hooked".to_owned(), Paint::Plain),
            (library.library.clone(), Paint::Plain),
            (format!("{} of {}", text::count(library.hooked), text::count(library.exist)), paint),
        ];
        if !library.missing.is_empty() {
            let names: Vec<&str> = library.missing.iter().take(SHOWN).map(String::as_str).collect();
            let more = library.missing.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            pieces.push((format!("not: {}{more}", names.join(", ")), Paint::Warn));
        }
        wrap(&pieces, 2, style, out);
    }
}
