//! Everything known about one request.

use crate::timeline::model::{Arrival, GpuSummary, Outcome, Phase, Timeline};

use super::bar;
use super::device;
use super::palette;
use super::style::{Line, Paint, Style, wrap};
use super::table;
use super::text;

/// Renders one request in full. Of more than `max_phases` phases the longest are listed, in the
/// order of time, and the others counted with their time.
pub fn render_detail(timeline: &Timeline, style: Style, max_phases: usize) -> String {
    let mut out = String::new();
    title(timeline, style, &mut out);
    facts(timeline, style, &mut out);
    let mut line = Line::new(style);
    line.gap(2);
    bar::put(&mut line, &timeline.phases, style.columns().saturating_sub(4).min(120), style);
    line.end(&mut out);
    phases(timeline, style, max_phases, &mut out);
    chunks(timeline, style, &mut out);
    if let Some(gpu) = &timeline.gpu {
        gpu_lines(gpu, style, &mut out);
    }
    if let Some(joined) = &timeline.nvml {
        device::line(joined, style, &mut out);
    }
    links(timeline, style, &mut out);
    if !timeline.complete {
        let mut pieces = vec![("! incomplete:".to_owned(), Paint::Bad)];
        pieces.extend(timeline.incomplete.iter().map(|why| ((*why).to_owned(), Paint::Bad)));
        wrap(&pieces, 2, style, &mut out);
    }
    out
}

fn title(timeline: &Timeline, style: Style, out: &mut String) {
    let outcome = match timeline.outcome {
        Some(Outcome::Ok) => "ok",
        Some(Outcome::ClientError) => "client error",
        Some(Outcome::ServerError) => "server error",
        Some(Outcome::Cancelled) => "client went away",
        Some(Outcome::Reset) => "connection reset",
        None if timeline.open => "not answered yet",
        None => "outcome not seen",
    };
    let (_, paint) = table::status(timeline);
    let status = timeline.status.map_or_else(String::new, |status| format!("{status} ")) + outcome;
    let pieces = [
        (text::clean(&table::request(timeline), style.unicode), Paint::Bold),
        (status, paint),
        (table::duration(timeline, style), Paint::Bold),
    ];
    wrap(&pieces, 0, style, out);
}

fn facts(timeline: &Timeline, style: Style, out: &mut String) {
    let arrival = match timeline.arrival {
        Arrival::Socket => "arrival=socket",
        Arrival::Read => "arrival=read (it may have waited longer)",
    };
    let mut pieces = vec![
        format!("{} pid {}", timeline.service, timeline.pid),
        timeline.protocol.to_owned(),
        format!("at {}", text::date_time(timeline.start_unix_ns)),
        arrival.to_owned(),
        format!(
            "in {}, out {}",
            text::bytes(timeline.request_bytes),
            text::bytes(timeline.response_bytes)
        ),
    ];
    if let Some(peer) = timeline.peer {
        pieces.push(format!("from {peer}"));
    }
    if let Some(rtt) = timeline.tcp_rtt_ns {
        pieces.push(format!("rtt {}", text::duration(rtt, style.unicode)));
    }
    if timeline.tcp_retransmits > 0 {
        pieces.push(text::counted(u64::from(timeline.tcp_retransmits), "retransmit"));
    }
    pieces.push(format!("trace {}", timeline.trace_id));
    if let Some(parent) = &timeline.parent_span_id {
        pieces.push(format!("parent {parent}"));
    }
    let pieces: Vec<_> = pieces.into_iter().map(|piece| (piece, Paint::Plain)).collect();
    wrap(&pieces, 2, style, out);
}

fn phases(timeline: &Timeline, style: Style, max_phases: usize, out: &mut String) {
    let mut line = Line::new(style);
    put_numbers(&mut line, ["offset", "duration", "share"], style);
    line.left("   phase", 17, Paint::Dim).put("known by, GPU time, detail", Paint::Dim);
    line.end(out);
    let shown = longest(timeline.phases.iter().map(|phase| phase.duration_ns), max_phases);
    let (mut left_out, mut left_out_ns) = (0_u64, 0_u64);
    for (phase, shown) in timeline.phases.iter().zip(shown) {
        if shown {
            phase_line(phase, timeline.duration_ns, style, out);
        } else {
            left_out += 1;
            left_out_ns = left_out_ns.saturating_add(phase.duration_ns);
        }
    }
    if left_out > 0 {
        let time = text::duration(left_out_ns, style.unicode);
        let piece = format!("and {} shorter phases, together {time}", text::count(left_out));
        wrap(&[(piece, Paint::Dim)], 2, style, out);
    }
}

/// For each length whether it is among the `most` longest.
pub(super) fn longest(lengths: impl Iterator<Item = u64>, most: usize) -> Vec<bool> {
    let mut order: Vec<(u64, usize)> = lengths.enumerate().map(|(i, ns)| (ns, i)).collect();
    order.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut shown = vec![false; order.len()];
    for (_, i) in order.into_iter().take(most) {
        if let Some(flag) = shown.get_mut(i) {
            *flag = true;
        }
    }
    shown
}

/// Offset, duration and share, each in its column.
fn put_numbers(line: &mut Line, texts: [&str; 3], style: Style) {
    let narrow = style.columns() < 60;
    let columns = if narrow { [7, 9, 7] } else { [11, 9, 7] };
    for ((text, columns), paint) in
        texts.into_iter().zip(columns).zip([Paint::Dim, Paint::Plain, Paint::Plain])
    {
        line.right(text, columns, paint);
    }
    line.gap(if narrow { 1 } else { 2 });
}

fn phase_line(phase: &Phase, total_ns: u64, style: Style, out: &mut String) {
    let hatched = palette::hatched(phase);
    let time = |ns| text::duration(ns, style.unicode);
    let share = text::percent(u128::from(phase.duration_ns), u128::from(total_ns));
    let mut line = Line::new(style);
    let numbers = [time(phase.offset_ns), time(phase.duration_ns), share];
    put_numbers(&mut line, numbers.each_ref().map(String::as_str), style);
    palette::put_letter(&mut line, phase.phase, hatched, style);
    let mark = if hatched { "~" } else { " " };
    line.gap(1).left(&format!("{mark}{}", phase.phase.as_str()), 15, Paint::Plain);
    let mut known = phase.method.as_str().to_owned();
    let exact = phase.lower_ns == phase.duration_ns && phase.upper_ns == phase.duration_ns;
    if !exact {
        known.push_str(&format!(", {}", range(phase.lower_ns, phase.upper_ns, style)));
    }
    if !phase.detail.is_empty() {
        known.push_str(&format!(", {}", phase.detail));
    }
    let usual = style.columns() < 60 && known == "observed";
    if usual {
        line.end(out);
    } else if text::width(&known) <= line.room() {
        line.put(&known, Paint::Plain);
        line.end(out);
    } else {
        line.end(out);
        wrap(&[(known, Paint::Plain)], if style.columns() < 60 { 4 } else { 29 }, style, out);
    }
}

/// A lower and an upper bound, ns.
fn range(lower_ns: u64, upper_ns: u64, style: Style) -> String {
    let time = |ns| text::duration(ns, style.unicode);
    if lower_ns == upper_ns {
        time(lower_ns)
    } else {
        format!("{} to {}", time(lower_ns), time(upper_ns))
    }
}

fn chunks(timeline: &Timeline, style: Style, out: &mut String) {
    let Some(chunks) = &timeline.chunks else { return };
    let time = |ns| text::duration(ns, style.unicode);
    let mut pieces = vec![
        ("chunks".to_owned(), Paint::Bold),
        (text::count(chunks.count), Paint::Plain),
        (format!("first after {}", time(chunks.first_offset_ns)), Paint::Plain),
        (
            format!(
                "gaps p50 {} p99 {} max {}",
                time(chunks.gaps_ns.p50),
                time(chunks.gaps_ns.p99),
                time(chunks.gaps_ns.max)
            ),
            Paint::Plain,
        ),
    ];
    if let Some(longest) = &chunks.longest {
        let (at, phase) = (time(longest.offset_ns), longest.phase.as_str());
        pieces.push((format!("longest at {at}, mostly {phase}"), Paint::Plain));
    }
    wrap(&pieces, 2, style, out);
}

fn gpu_lines(gpu: &GpuSummary, style: Style, out: &mut String) {
    let mut pieces = vec![
        ("GPU".to_owned(), Paint::Bold),
        (text::counted(u64::from(gpu.step_count), "step"), Paint::Plain),
        (format!("busy {}", range(gpu.busy_lower_ns, gpu.busy_upper_ns, style)), Paint::Plain),
        (format!("{} launches", text::count(gpu.launches)), Paint::Plain),
    ];
    if gpu.graph_launches > 0 {
        let (opaque, kernels) = (gpu.graph_opaque, gpu.graph_kernels);
        pieces.push((text::graphs(gpu.graph_launches, opaque, kernels), Paint::Plain));
    }
    pieces.push((format!("to device {}", text::bytes(gpu.h2d_bytes)), Paint::Plain));
    pieces.push((format!("from device {}", text::bytes(gpu.d2h_bytes)), Paint::Plain));
    if gpu.failed_calls > 0 {
        pieces.push((text::counted(u64::from(gpu.failed_calls), "failed call"), Paint::Bad));
    }
    wrap(&pieces, 2, style, out);
    for operation in &gpu.operations {
        let pieces = [
            (format!("{} {}", text::count(operation.count), operation.kind), Paint::Plain),
            (range(operation.lower_ns, operation.upper_ns, style), Paint::Plain),
            (operation.method.as_str().to_owned(), Paint::Dim),
        ];
        wrap(&pieces, 6, style, out);
    }
    if !gpu.top_kernels.is_empty() {
        let mut pieces = vec![("most launched".to_owned(), Paint::Dim)];
        pieces.extend(gpu.top_kernels.iter().map(|kernel| {
            (format!("{} {}", text::count(kernel.launches), kernel.name), Paint::Plain)
        }));
        wrap(&pieces, 6, style, out);
    }
}

fn links(timeline: &Timeline, style: Style, out: &mut String) {
    if timeline.links.is_empty() {
        return;
    }
    /// More are counted only.
    const SHOWN: usize = 16;
    let mut pieces = vec![("links".to_owned(), Paint::Bold)];
    for link in timeline.links.iter().take(SHOWN) {
        let evidence = link.evidence.as_str();
        let paint = if link.confidence >= 0.9 { Paint::Plain } else { Paint::Warn };
        let numbers = format!("confidence {:.2}, share {:.2}", link.confidence, link.share);
        pieces.push((format!("step {} {evidence}, {numbers}", link.step_id), paint));
    }
    if timeline.links.len() > SHOWN {
        pieces.push((format!("and {} more", timeline.links.len() - SHOWN), Paint::Dim));
    }
    wrap(&pieces, 2, style, out);
}
