//! Why one request's timeline is what it is.

use crate::{
    cause::story::{Doing, ItemStory, State, ThreadStory, Wake, call_name},
    intake::event::SchedCall,
    timeline::{
        explain::{Candidate, Explanation, Step},
        model::PhaseName,
    },
};

use super::bar;
use super::detail::{longest, render_detail};
use super::style::{Line, Paint, Style, heading, wrap};
use super::text;

/// Phases of the request that are listed.
const PHASES_SHOWN: usize = 64;
/// Steps of the walk that are listed, and items.
const STEPS_SHOWN: usize = 256;
const ITEMS_SHOWN: usize = 64;
/// What one thread did: the longest that are listed.
const DOINGS_SHOWN: usize = 48;
/// Wakes that are listed.
const WAKES_SHOWN: usize = 64;
/// Widest bar, columns.
const MAX_BAR: usize = 120;
/// What most rows have.
const NO_MARK: (char, Paint) = (' ', Paint::Plain);
/// Narrower output has narrower columns.
const NARROW_BELOW: usize = 60;

/// Renders everything that is known of why a request took its time.
pub fn render_explanation(explanation: &Explanation, style: Style) -> String {
    let mut out = render_detail(&explanation.timeline, style, PHASES_SHOWN);
    out.push('\n');
    walk(explanation, style, &mut out);
    out.push('\n');
    items(&explanation.items, style, &mut out);
    out.push('\n');
    threads(explanation, style, &mut out);
    for story in &explanation.threads {
        out.push('\n');
        thread(story, style, &mut out);
    }
    out.push('\n');
    wakes(explanation, style, &mut out);
    out
}

/// Lists requests that may have been meant.
pub fn render_candidates(candidates: &[Candidate], style: Style) -> String {
    let mut out = String::new();
    for candidate in candidates {
        let pieces = [
            (format!("trace {}", candidate.trace_id), Paint::Plain),
            (format!("span {}", candidate.span_id), Paint::Plain),
            (text::duration(candidate.duration_ns, style.unicode), Paint::Plain),
            (candidate.request.clone(), Paint::Bold),
        ];
        wrap(&pieces, 2, style, &mut out);
    }
    out
}

/// A line of a list: when, how long, then words. Pieces that do not fit follow on lines of their
/// own.
struct Row {
    offset_ns: i64,
    duration_ns: Option<u64>,
    mark: (char, Paint),
    pieces: Vec<(String, Paint)>,
}

impl Row {
    fn put(&self, style: Style, out: &mut String) {
        let narrow = style.columns() < NARROW_BELOW;
        let columns = if narrow { [10, 7] } else { [12, 8] };
        let duration = self.duration_ns.map(|ns| text::duration(ns, style.unicode));
        let mut line = Line::new(style);
        line.right(&moment(self.offset_ns, style), columns[0], Paint::Dim);
        line.right(&duration.unwrap_or_default(), columns[1], Paint::Plain);
        line.gap(2).put(&self.mark.0.to_string(), self.mark.1).gap(1);
        let indent = if narrow { 4 } else { columns[0] + columns[1] + 4 };
        let mut pieces = self.pieces.as_slice();
        while let Some(((piece, paint), rest)) = pieces.split_first() {
            if text::width(piece) > line.room() {
                break;
            }
            line.put(piece, *paint).gap(2);
            pieces = rest;
        }
        line.end(out);
        wrap(pieces, indent, style, out);
    }
}

/// An offset, `-` before what was before the request: to the microsecond up to 100 s, so that what
/// follows each other closely is told apart.
fn moment(ns: i64, style: Style) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    let us = ns / 1_000 + u64::from(ns % 1_000 >= 500);
    if us < 100_000_000 {
        format!("{sign}{}.{:03}ms", us / 1_000, us % 1_000)
    } else {
        format!("{sign}{}", text::duration(ns, style.unicode))
    }
}

fn dim(words: String, style: Style, out: &mut String) {
    wrap(&[(words, Paint::Dim)], 2, style, out);
}

fn more(left_out: usize, noun: &str, style: Style, out: &mut String) {
    if left_out > 0 {
        dim(format!("and {} more", text::counted(left_out as u64, noun)), style, out);
    }
}

/// A call and what it is about: two waits for one futex are for one thing.
fn call_of(name: &str, object: u64) -> String {
    match (name, object) {
        (name, 0) => name.to_owned(),
        ("futex" | "futex_waitv", address) => format!("{name} {address:#x}"),
        (name, number) => format!("{name} of {number:x}"),
    }
}

fn walk(explanation: &Explanation, style: Style, out: &mut String) {
    heading("the walk, from the response backwards", style, out);
    if let Some(tid) = explanation.own_thread {
        dim(format!("thread {tid} alone served it, and nothing else meanwhile"), style, out);
    }
    if explanation.walk.is_empty() {
        dim("nothing was walked: no thread's time is known".to_owned(), style, out);
    }
    for Step { offset_ns, duration_ns, tid, text } in explanation.walk.iter().take(STEPS_SHOWN) {
        let words = if *tid == 0 { text.clone() } else { format!("thread {tid}: {text}") };
        Row {
            offset_ns: *offset_ns,
            duration_ns: Some(*duration_ns),
            mark: NO_MARK,
            pieces: vec![(words, Paint::Plain)],
        }
        .put(style, out);
    }
    more(explanation.walk.len().saturating_sub(STEPS_SHOWN), "step", style, out);
    if explanation.walk_cut {
        dim("and no further: too many steps".to_owned(), style, out);
    }
}

fn items(items: &[ItemStory], style: Style, out: &mut String) {
    heading("work that belongs to it", style, out);
    if items.is_empty() {
        dim("none was handed from one thread to another".to_owned(), style, out);
    }
    for item in items.iter().take(ITEMS_SHOWN) {
        let paint = if item.confidence >= 0.9 { Paint::Plain } else { Paint::Warn };
        let known = format!("{}, confidence {:.2}", item.evidence.as_str(), item.confidence);
        let handed = match item.wake {
            Some(confidence) => {
                format!("handed over by thread {}, wake confidence {confidence:.2}", item.from)
            }
            None => format!("of thread {}, taken without a wake when free", item.from),
        };
        let mut pieces = vec![
            (format!("item {} of thread {}", item.id, item.tid), Paint::Plain),
            (known, paint),
            (handed, Paint::Plain),
        ];
        pieces.extend(item.within.map(|within| (format!("within item {within}"), Paint::Plain)));
        pieces.push((format!("end: {}", item.ended), Paint::Plain));
        let (offset_ns, duration_ns) = (item.offset_ns, item.duration_ns);
        Row { offset_ns, duration_ns, mark: NO_MARK, pieces }.put(style, out);
    }
    more(items.len().saturating_sub(ITEMS_SHOWN), "item", style, out);
}

/// The letter of what a thread did, and the phase whose colour it has. Small: it waited.
fn letter(doing: &Doing) -> (char, PhaseName) {
    match (doing.state, doing.call) {
        (State::Ran, _) => ('C', PhaseName::Cpu),
        (State::RunQueue, _) => ('U', PhaseName::RunQueue),
        (State::Disk, _) => ('I', PhaseName::Io),
        (State::Unknown, _) => ('?', PhaseName::Unattributed),
        (State::Blocked, call) => match call {
            SchedCall::Futex | SchedCall::FutexWaitv => ('f', PhaseName::Lock),
            SchedCall::EpollWait | SchedCall::Poll | SchedCall::Select | SchedCall::IoUring => {
                ('e', PhaseName::Queue)
            }
            SchedCall::Read | SchedCall::Accept => ('r', PhaseName::SocketWait),
            SchedCall::Write => ('w', PhaseName::Send),
            SchedCall::Connect => ('c', PhaseName::Dependency),
            SchedCall::Sleep | SchedCall::Yield => ('s', PhaseName::Alloc),
            _ => ('.', PhaseName::Unattributed),
        },
    }
}

fn threads(explanation: &Explanation, style: Style, out: &mut String) {
    heading("its threads, from its start to its end", style, out);
    if explanation.threads.is_empty() {
        dim("nothing is known of what they did".to_owned(), style, out);
        return;
    }
    for story in &explanation.threads {
        let mut line = Line::new(style);
        line.gap(2).left(&story.tid.to_string(), 8, Paint::Plain).gap(1);
        let parts: Vec<_> = story
            .doings
            .iter()
            .map(|doing| (letter(doing), doing.duration_ns))
            .filter(|(_, length)| *length > 0)
            .collect();
        let cells = bar::dominant(&parts, line.room().min(MAX_BAR));
        for run in cells.chunk_by(|a, b| a == b) {
            let Some((letter, phase)) = run.first() else { continue };
            let shown: String = std::iter::repeat_n(*letter, run.len()).collect();
            line.put(&shown, Paint::Phase(*phase));
        }
        line.end(out);
    }
    more(explanation.threads_left_out, "thread", style, out);
    let meanings = [
        "C ran",
        "U could run, had no core",
        "I waited for a disk or a page",
        "waited in: f futex",
        "e epoll, poll, select, io_uring",
        "r read, accept",
        "w write",
        "c connect",
        "s sleep, yield",
        ". another call or none",
        "? not known",
    ];
    wrap(&meanings.map(|meaning| (meaning.to_owned(), Paint::Dim)), 2, style, out);
}

fn thread(story: &ThreadStory, style: Style, out: &mut String) {
    heading(&format!("thread {} of process {}", story.tid, story.pid), style, out);
    let shown = longest(story.doings.iter().map(|doing| doing.duration_ns), DOINGS_SHOWN);
    for (doing, _) in story.doings.iter().zip(&shown).filter(|(_, shown)| **shown) {
        let (mark, phase) = letter(doing);
        let words = match doing.state {
            State::Ran => "ran".to_owned(),
            State::RunQueue => "could run, had no core".to_owned(),
            State::Disk => "waited for a disk or a page".to_owned(),
            State::Unknown => "not known".to_owned(),
            State::Blocked if doing.call == SchedCall::None => {
                "waited in no call that is followed".to_owned()
            }
            State::Blocked => format!("waited in {}", call_of(call_name(doing.call), doing.object)),
        };
        let mut pieces = vec![(words, Paint::Plain)];
        pieces.extend(doing.wake.as_ref().map(|wake| (woken(wake, style), Paint::Plain)));
        Row {
            offset_ns: i64::try_from(doing.offset_ns).unwrap_or(i64::MAX),
            duration_ns: Some(doing.duration_ns),
            mark: (mark, Paint::Phase(phase)),
            pieces,
        }
        .put(style, out);
    }
    let hidden = story.doings.len() - shown.iter().filter(|shown| **shown).count();
    more(hidden + story.left_out, "shorter time", style, out);
}

/// Who woke it, and whether that one meant it.
fn woken(wake: &Wake, style: Style) -> String {
    let at = moment(wake.offset_ns, style);
    let waker = if wake.tid == 0 { "nobody".to_owned() } else { format!("thread {}", wake.tid) };
    let call = call_name(wake.call);
    let call = if call.is_empty() { String::new() } else { format!(" in {call}") };
    match (wake.edge, wake.refused) {
        (Some(confidence), _) => {
            format!("woken at {at} by {waker}{call}: edge, confidence {confidence:.2}")
        }
        (None, reason) => {
            let reason = reason.unwrap_or("not an edge");
            format!("woken at {at} while {waker}{call} was current: no edge, {reason}")
        }
    }
}

fn wakes(explanation: &Explanation, style: Style, out: &mut String) {
    heading("wakes between these threads", style, out);
    if explanation.wakes.is_empty() {
        dim("none that was an edge".to_owned(), style, out);
    }
    let arrow = if style.unicode { "→" } else { "->" };
    for wake in explanation.wakes.iter().take(WAKES_SHOWN) {
        let pieces = vec![
            (format!("thread {} {arrow} thread {}", wake.from, wake.to), Paint::Plain),
            (format!("{} {arrow} {}", wake.by, call_of(wake.waited_in, wake.object)), Paint::Plain),
            (format!("confidence {:.2}", wake.confidence), Paint::Plain),
        ];
        let offset_ns = wake.offset_ns;
        Row { offset_ns, duration_ns: None, mark: NO_MARK, pieces }.put(style, out);
    }
    more(explanation.wakes.len().saturating_sub(WAKES_SHOWN), "wake", style, out);
}
