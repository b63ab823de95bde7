//! What a request's span says. `docs/otlp.md` lists it all.
//!
//! Names are those of OpenTelemetry's semantic conventions (HTTP 1.23 and later, network, gen_ai)
//! where they have one, and `spanprobe.*` otherwise.

use opentelemetry::{Array, KeyValue, StringValue, Value};

use crate::export::route::route_label;
use crate::timeline::model::{Arrival, Chunks, GpuSummary, Link, Outcome, Timeline};

/// Longest text of one attribute, bytes. Routes, details and names of kernels come from outside.
const MAX_TEXT: usize = 512;
/// Methods that the HTTP convention knows; any other is `_OTHER`.
const METHODS: [&str; 10] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"];

/// The text, cut where it is longer than an attribute may be.
pub fn cut(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MAX_TEXT - '…'.len_utf8());
    format!("{}…", text.get(..end).unwrap_or_default())
}

/// Unsigned to what OTLP has; beyond, the largest.
pub fn int(n: u64) -> Value {
    Value::I64(i64::try_from(n).unwrap_or(i64::MAX))
}

/// A list of texts.
fn texts<'a>(texts: impl Iterator<Item = &'a str>) -> Value {
    Value::Array(Array::String(texts.map(|text| StringValue::from(cut(text))).collect()))
}

/// A list of numbers.
fn ints(numbers: impl Iterator<Item = u64>) -> Value {
    Value::Array(Array::I64(numbers.map(|n| i64::try_from(n).unwrap_or(i64::MAX)).collect()))
}

/// The method as the convention wants it: one that it knows, or `_OTHER`.
pub fn method(method: &str) -> &'static str {
    METHODS.iter().find(|known| **known == method).copied().unwrap_or("_OTHER")
}

/// The path, where the request's head was seen.
pub fn path(timeline: &Timeline) -> Option<&str> {
    Some(timeline.route.as_str()).filter(|route| *route != "?" && !route.is_empty())
}

/// Why the request counts as failed: the status where the server says so itself, else that the
/// connection broke. A client that went away is no failure of the server.
pub fn error_type(timeline: &Timeline) -> Option<String> {
    match (timeline.outcome, timeline.status) {
        (Some(Outcome::Reset), _) => Some("reset".to_owned()),
        (_, Some(status)) if status >= 500 => Some(status.to_string()),
        (Some(Outcome::ServerError), _) => Some("_OTHER".to_owned()),
        _ => None,
    }
}

/// What the route says of the kind of generation, where it is one of OpenAI's.
fn operation(route: &str) -> Option<&'static str> {
    match route.trim_end_matches('/') {
        "/v1/chat/completions" => Some("chat"),
        "/v1/completions" => Some("text_completion"),
        "/v1/embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// Everything that the span of a request says in attributes.
pub fn request(timeline: &Timeline, links_shown: usize) -> Vec<KeyValue> {
    let mut out = Vec::with_capacity(48);
    http(timeline, &mut out);
    evidence(timeline, &mut out);
    sums(timeline, &mut out);
    if let Some(chunks) = &timeline.chunks {
        streamed(chunks, &mut out);
    }
    steps(&timeline.links, links_shown, &mut out);
    if let Some(gpu) = &timeline.gpu {
        gpu_work(gpu, &mut out);
    }
    out
}

fn http(timeline: &Timeline, out: &mut Vec<KeyValue>) {
    if timeline.method != "?" {
        let known = method(&timeline.method);
        out.push(KeyValue::new("http.request.method", known));
        if known == "_OTHER" {
            out.push(KeyValue::new("http.request.method_original", cut(&timeline.method)));
        }
    }
    if let Some(route) = path(timeline) {
        out.push(KeyValue::new("http.route", cut(&route_label(route))));
        out.push(KeyValue::new("url.path", cut(route)));
        if let Some(operation) = operation(route) {
            out.push(KeyValue::new("gen_ai.operation.name", operation));
        }
    }
    // Nothing else is parsed yet.
    out.push(KeyValue::new("url.scheme", "http"));
    if let Some((name, version)) = timeline.protocol.split_once('/') {
        out.push(KeyValue::new("network.protocol.name", cut(name)));
        out.push(KeyValue::new("network.protocol.version", cut(version)));
    }
    if let Some(status) = timeline.status {
        out.push(KeyValue::new("http.response.status_code", i64::from(status)));
    }
    if let Some(kind) = error_type(timeline) {
        out.push(KeyValue::new("error.type", kind));
    }
    if let Some(peer) = timeline.peer {
        let address = peer.ip().to_canonical().to_string();
        out.push(KeyValue::new("client.address", address.clone()));
        out.push(KeyValue::new("network.peer.address", address));
        out.push(KeyValue::new("network.peer.port", i64::from(peer.port())));
    }
    out.push(KeyValue::new("http.request.size", int(timeline.request_bytes)));
    out.push(KeyValue::new("http.response.size", int(timeline.response_bytes)));
}

/// How the request is known, and what is missing.
fn evidence(timeline: &Timeline, out: &mut Vec<KeyValue>) {
    let arrival = match timeline.arrival {
        Arrival::Socket => "socket",
        Arrival::Read => "read",
    };
    out.push(KeyValue::new("spanprobe.arrival", arrival));
    if let Some(outcome) = timeline.outcome {
        out.push(KeyValue::new("spanprobe.outcome", outcome_name(outcome)));
    }
    out.push(KeyValue::new("spanprobe.complete", timeline.complete));
    if !timeline.incomplete.is_empty() {
        let reasons = texts(timeline.incomplete.iter().copied());
        out.push(KeyValue::new("spanprobe.incomplete", reasons));
    }
    out.push(KeyValue::new("spanprobe.start_monotonic_ns", int(timeline.start_monotonic_ns)));
    if let Some(rtt_ns) = timeline.tcp_rtt_ns {
        out.push(KeyValue::new("spanprobe.tcp.rtt_ns", int(rtt_ns)));
    }
    if timeline.tcp_retransmits > 0 {
        let segments = i64::from(timeline.tcp_retransmits);
        out.push(KeyValue::new("spanprobe.tcp.retransmits", segments));
    }
}

/// As JSON has it.
pub fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::ClientError => "client_error",
        Outcome::ServerError => "server_error",
        Outcome::Cancelled => "cancelled",
        Outcome::Reset => "reset",
    }
}

/// What a back end can sort requests by.
fn sums(timeline: &Timeline, out: &mut Vec<KeyValue>) {
    for (phase, ns) in timeline.by_phase() {
        out.push(KeyValue::new(format!("spanprobe.phase_ns.{}", phase.as_str()), int(ns)));
    }
}

fn streamed(chunks: &Chunks, out: &mut Vec<KeyValue>) {
    for (name, ns) in [
        ("spanprobe.chunks.count", chunks.count),
        ("spanprobe.chunks.first_offset_ns", chunks.first_offset_ns),
        ("spanprobe.chunks.gap_p50_ns", chunks.gaps_ns.p50),
        ("spanprobe.chunks.gap_p99_ns", chunks.gaps_ns.p99),
        ("spanprobe.chunks.gap_max_ns", chunks.gaps_ns.max),
    ] {
        out.push(KeyValue::new(name, int(ns)));
    }
}

/// The GPU steps, as the links have them: steps are no spans, and many a back end shows no links.
fn steps(links: &[Link], shown: usize, out: &mut Vec<KeyValue>) {
    if links.is_empty() {
        return;
    }
    let shown = || links.iter().take(shown);
    let numbers = |numbers: Vec<f64>| Value::Array(Array::F64(numbers));
    out.push(KeyValue::new("spanprobe.steps.count", int(links.len() as u64)));
    out.push(KeyValue::new("spanprobe.steps.id", ints(shown().map(|link| link.step_id))));
    out.push(KeyValue::new(
        "spanprobe.steps.evidence",
        texts(shown().map(|link| link.evidence.as_str())),
    ));
    let confidence = numbers(shown().map(|link| link.confidence).collect());
    out.push(KeyValue::new("spanprobe.steps.confidence", confidence));
    let share = numbers(shown().map(|link| link.share).collect());
    out.push(KeyValue::new("spanprobe.steps.share", share));
}

/// What one link says of a step.
pub fn step(link: &Link) -> Vec<KeyValue> {
    vec![
        KeyValue::new("spanprobe.step.id", int(link.step_id)),
        KeyValue::new("spanprobe.evidence", link.evidence.as_str()),
        KeyValue::new("spanprobe.confidence", link.confidence),
        KeyValue::new("spanprobe.share", link.share),
    ]
}

fn gpu_work(gpu: &GpuSummary, out: &mut Vec<KeyValue>) {
    for (name, n) in [
        ("spanprobe.gpu.step_count", u64::from(gpu.step_count)),
        ("spanprobe.gpu.busy_lower_ns", gpu.busy_lower_ns),
        ("spanprobe.gpu.busy_upper_ns", gpu.busy_upper_ns),
        ("spanprobe.gpu.h2d_bytes", gpu.h2d_bytes),
        ("spanprobe.gpu.d2h_bytes", gpu.d2h_bytes),
        ("spanprobe.gpu.launches", gpu.launches),
        ("spanprobe.gpu.graph_launches", gpu.graph_launches),
        ("spanprobe.gpu.failed_calls", u64::from(gpu.failed_calls)),
    ] {
        out.push(KeyValue::new(name, int(n)));
    }
    // Kinds and methods are few: at most 36 of these.
    for bounds in &gpu.operations {
        for (what, n) in
            [("count", bounds.count), ("lower_ns", bounds.lower_ns), ("upper_ns", bounds.upper_ns)]
        {
            let name = format!("spanprobe.gpu.{}.{}.{what}", bounds.kind, bounds.method.as_str());
            out.push(KeyValue::new(name, int(n)));
        }
    }
    if !gpu.top_kernels.is_empty() {
        let kernels = &gpu.top_kernels;
        let names = texts(kernels.iter().map(|kernel| kernel.name.as_str()));
        out.push(KeyValue::new("spanprobe.gpu.top_kernels", names));
        let launches = ints(kernels.iter().map(|kernel| kernel.launches));
        out.push(KeyValue::new("spanprobe.gpu.top_kernel_launches", launches));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"é".repeat(MAX_TEXT));
        assert!(long.len() <= MAX_TEXT && long.ends_with('…'), "{}", long.len());
    }
}
