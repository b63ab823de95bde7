//! What stands out of all that is known, in sentences.

use super::report::{Figures, RouteWhy, TracerWhy, Why};

/// A percentile that is so many times the one before has risen.
const RISEN: f64 = 1.5;
/// Fewer requests than this say nothing about percentiles.
const ENOUGH: u64 = 20;
/// A request is stuck that is open this long, or as many times the route's 99th percentile, ns.
const STUCK_NS: u64 = 10_000_000_000;
const STUCK_TIMES: u64 = 10;
/// More than this part of the requests failed: worth saying.
const ERRORS: f64 = 0.05;
/// More than this part of the timelines misses something: worth saying.
const INCOMPLETE: f64 = 0.05;

/// What stands out, the gravest first.
pub fn answer(why: &Why) -> Vec<String> {
    let mut said = Vec::new();
    if why.tracer.paused {
        said.push("tracing is paused: nothing newer is known".to_owned());
    }
    said.extend(stuck(why));
    said.extend(why.traffic.routes.iter().filter_map(risen));
    for route in &why.traffic.routes {
        let Figures { requests, errors, .. } = route.now;
        if requests > 0 && errors as f64 > ERRORS * requests as f64 {
            said.push(format!("{errors} of {requests} requests of {} failed", route.route));
        }
    }
    if why.gpu.failed_calls.0 > 0 {
        said.push(format!("{} calls of the CUDA driver failed", why.gpu.failed_calls.0));
    }
    if said.is_empty() {
        let requests: u64 = why.traffic.routes.iter().map(|route| route.now.requests).sum();
        said.push(if requests == 0 && why.queue.open == 0 {
            "no request has ended lately, and none is open".to_owned()
        } else {
            "nothing stands out".to_owned()
        });
    }
    if let Some(left_out) = &why.tracer.left_out {
        said.push(format!("to keep to the cost budget: {left_out}"));
    }
    let TracerWhy { timelines, incomplete, .. } = why.tracer;
    if incomplete as f64 > INCOMPLETE * timelines as f64 {
        said.push(format!("of {incomplete} of {timelines} requests something is missing"));
    }
    said
}

fn seconds(ns: u64) -> String {
    crate::export::text::duration(ns, false)
}

fn stuck(why: &Why) -> Option<String> {
    let oldest = why.queue.oldest.first()?;
    let known = why
        .traffic
        .routes
        .iter()
        .find(|route| route.route == oldest.route && route.service == oldest.service);
    let p99 = known.map_or(0, |route| route.now.p99_ns.max(route.before.p99_ns));
    if oldest.age_ns < STUCK_NS.max(p99.saturating_mul(STUCK_TIMES)) {
        return None;
    }
    let mut text = format!(
        "{} of process {} has been open for {}",
        oldest.route,
        oldest.pid,
        seconds(oldest.age_ns)
    );
    if let Some(now) = &oldest.now {
        let call = if now.call.is_empty() { String::new() } else { format!(" in {}", now.call) };
        let detail =
            if now.detail.is_empty() { String::new() } else { format!(": {}", now.detail) };
        text.push_str(&format!("; thread {} is {}{call}{detail}", now.tid, now.state));
    }
    let others = why.queue.open.saturating_sub(1);
    if others > 0 {
        text.push_str(&format!("; {others} others are open"));
    }
    Some(text)
}

/// Whether a route has become slower, and what of it.
fn risen(route: &RouteWhy) -> Option<String> {
    let RouteWhy { now, before, phase, .. } = route;
    let enough = now.requests >= ENOUGH && before.requests >= ENOUGH;
    let times = |now: u64, before: u64| now as f64 / before.max(1) as f64;
    let (name, from, to) = [("p95", before.p95_ns, now.p95_ns), ("p99", before.p99_ns, now.p99_ns)]
        .into_iter()
        .find(|(_, from, to)| enough && times(*to, *from) >= RISEN)?;
    let mut text =
        format!("{} of {} rose from {} to {}", name, route.route, seconds(from), seconds(to));
    if let Some(phase) = phase {
        text.push_str(&format!(
            "; most of it is `{}`: {} where {} is usual",
            phase.phase,
            seconds(phase.slow_ns),
            seconds(phase.median_ns)
        ));
    }
    let bytes = times(now.request_bytes_p50, before.request_bytes_p50);
    if bytes >= RISEN {
        text.push_str(&format!("; requests have become {bytes:.1} times as large"));
    }
    Some(text)
}
