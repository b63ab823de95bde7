//! How the doctor's report reads.

use crate::doctor::{Finding, Library, Report, State, Target};

use super::style::{Line, Paint, Style, heading};
use super::text;

/// Columns of the state, and of what stands under it.
const LABEL: usize = 10;
/// Names that are listed before the rest is counted.
const NAMES_SHOWN: usize = 6;

/// Renders everything that was found, worst last: the last line is the verdict.
pub fn render_report(report: &Report, style: Style) -> String {
    let mut out = String::new();
    let title = format!("spanprobe {} on Linux {}", report.spanprobe, report.kernel);
    heading(&title, style, &mut out);
    for group in &report.machine {
        section(group.name, &group.findings, style, &mut out);
    }
    for alike in alike(&report.targets) {
        target(&alike, style, &mut out);
    }
    if report.targets_left_out > 0 {
        out.push('\n');
        let left_out = text::count(report.targets_left_out as u64);
        let words = format!("{left_out} more processes below it, not looked at");
        item("", Paint::Dim, &words, style, &mut out);
    }
    verdict(report, style, &mut out);
    out
}

/// Processes of which the same is to be said, as the workers of one server, together.
fn alike(targets: &[Target]) -> Vec<Vec<&Target>> {
    let mut groups: Vec<Vec<&Target>> = Vec::new();
    for target in targets {
        let same =
            |group: &&mut Vec<&Target>| {
                group.first().is_some_and(|first| {
                    first.exe == target.exe
                        && first.findings == target.findings
                        && first.libraries.iter().map(|library| (library.device, library.inode)).eq(
                            target.libraries.iter().map(|library| (library.device, library.inode)),
                        )
                })
            };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(target),
            None => groups.push(vec![target]),
        }
    }
    groups
}

fn section(name: &str, findings: &[Finding], style: Style, out: &mut String) {
    out.push('\n');
    heading(name, style, out);
    findings.iter().for_each(|finding| one(finding, style, out));
}

fn paint(state: State) -> Paint {
    match state {
        State::Ok => Paint::Plain,
        State::Degraded => Paint::Warn,
        State::Missing => Paint::Bad,
    }
}

fn one(finding: &Finding, style: Style, out: &mut String) {
    item(finding.state.as_str(), paint(finding.state), &finding.found, style, out);
    for (label, words) in [("means", &finding.means), ("remedy", &finding.remedy)] {
        if let Some(words) = words {
            item("", Paint::Dim, &format!("{label}: {words}"), style, out);
        }
    }
}

/// A label, and words beside it in as many lines as they take.
fn item(label: &str, paint: Paint, words: &str, style: Style, out: &mut String) {
    let words_paint = if label.is_empty() { Paint::Dim } else { Paint::Plain };
    let mut line = Line::new(style);
    line.gap(2).left(label, LABEL, paint);
    let columns = line.room().max(1);
    let mut first = true;
    for word in words.split(' ') {
        for part in text::pieces(&text::clean(word, style.unicode), columns) {
            if !first && text::width(part) + 1 > line.room() {
                let next = {
                    let mut next = Line::new(style);
                    next.gap(2 + LABEL);
                    next
                };
                std::mem::replace(&mut line, next).end(out);
                first = true;
            }
            if !first {
                line.gap(1);
            }
            line.put(part, words_paint);
            first = false;
        }
    }
    line.end(out);
}

fn target(alike: &[&Target], style: Style, out: &mut String) {
    let Some(first) = alike.first() else { return };
    let ids: Vec<String> = alike.iter().map(|target| target.pid.to_string()).collect();
    let noun = if alike.len() == 1 { "process" } else { "processes" };
    let threads: usize = alike.iter().map(|target| target.threads).sum();
    let threads = text::counted(threads as u64, "thread");
    let name = format!("{noun} {} {}", names(&ids), first.comm);
    section(&name, &first.findings, style, out);
    item("", Paint::Dim, &format!("{}, {threads}", first.exe), style, out);
    first.libraries.iter().for_each(|file| library(file, style, out));
}

fn library(library: &Library, style: Style, out: &mut String) {
    let path = text::fit_middle(&library.path, style.columns(), style.unicode);
    section(&path, &library.findings, style, out);
    for (reason, places) in &library.reasons {
        item("", Paint::Dim, &format!("{places} at: {reason}"), style, out);
    }
    let not: Vec<String> = library
        .hooks
        .iter()
        .filter(|hook| !hook.hooked)
        .map(|hook| format!("{} ({})", hook.symbol, hook.reason))
        .collect();
    if !not.is_empty() {
        item("", Paint::Dim, &format!("not hooked: {}", names(&not)), style, out);
    }
    let mut hooked = library.hooks.iter().filter(|hook| hook.hooked);
    let launch = hooked.clone().find(|hook| hook.symbol == "cuLaunchKernel");
    if let Some(hook) = launch.or_else(|| hooked.next()) {
        let at = hook.attach_offset.saturating_sub(hook.function_offset);
        let example = format!("for example {} at {:#x} +{at}", hook.symbol, hook.function_offset);
        item("", Paint::Dim, &format!("{example}; --json has all"), style, out);
    }
}

/// The first of a list, and how many more.
fn names(list: &[String]) -> String {
    let shown = list.get(..NAMES_SHOWN).unwrap_or(list).join(", ");
    match list.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn verdict(report: &Report, style: Style, out: &mut String) {
    let machine = report.machine.iter().flat_map(|group| &group.findings);
    let all = machine.chain(report.targets.iter().flat_map(Target::all));
    let (mut missing, mut degraded) = (0, 0);
    all.for_each(|finding| match finding.state {
        State::Ok => {}
        State::Degraded => degraded += 1,
        State::Missing => missing += 1,
    });
    let words = match report.state {
        State::Ok => "tracing works, and nothing is known to stand in its way".to_owned(),
        State::Degraded => format!("tracing works, with {}", text::counted(degraded, "gap")),
        State::Missing => {
            let needed = text::counted(missing, "thing");
            format!("tracing does not work: {needed} missing")
        }
    };
    out.push('\n');
    item(report.state.as_str(), paint(report.state), &words, style, out);
}
