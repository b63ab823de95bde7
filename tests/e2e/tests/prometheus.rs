//! A real Prometheus scrapes the agent while servers work: what it is asked afterwards agrees with
//! what clients, servers and the simulated driver wrote down themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Needs, env};
use e2e::client::{Client, ClientRun};
use e2e::env::Env;
use e2e::oracles::server::Line;
use e2e::prometheus::{Prometheus, http_get};
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::tracer::Tracer;
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(30);
const REQUESTS: &str = "http_server_request_duration_seconds";

/// A tracer that serves metrics, and where.
fn tracer(env: &Env, scratch: &Scratch, pid: u32) -> (Tracer, String) {
    let pid = pid.to_string();
    let args = ["--pid", &pid, "--prometheus", "127.0.0.1:0"];
    let mut tracer = Tracer::run(env, scratch, &args).unwrap();
    let says = |line: &str| line.contains("metrics on http://");
    let line = tracer.guard().wait_err("where the metrics are", SOON, says).unwrap();
    let (_, rest) = line.split_once("http://").unwrap();
    (tracer, rest.strip_suffix("/metrics").unwrap().to_owned())
}

/// One kind of request: what is asked for, how often, under which prefix of request ids.
struct Kind {
    prefix: &'static str,
    plan: &'static str,
    requests: u64,
    more: &'static [&'static str],
}

const GPU: Kind = Kind {
    prefix: "gpu-",
    plan: "h2d:65536:pinned,k:4:2000000,d2h:4096:pinned,sync:stream,sleep:29000000",
    requests: 120,
    more: &["--connections", "2"],
};
const STREAM: Kind = Kind { prefix: "stream-", plan: "chunks:5:12000000", requests: 20, more: &[] };
const DEPENDENT: Kind = Kind { prefix: "dep-", plan: "dep:20000000", requests: 15, more: &[] };
const ECHO: Kind =
    Kind { prefix: "echo-", plan: "echo", requests: 40, more: &["--body-bytes", "100000"] };
const CHECK: Kind = Kind { prefix: "check-", plan: "healthz", requests: 30, more: &[] };

fn send(env: &Env, scratch: &Scratch, server: &Server, kind: &Kind) -> ClientRun {
    let requests = kind.requests.to_string();
    let args = ["--requests", &requests, "--rid-prefix", kind.prefix, "--plan", kind.plan];
    let run = Client::run(env, scratch, &server.addr(), &[&args[..], kind.more].concat()).unwrap();
    run.all_right().unwrap();
    run
}

/// Sums over the requests of a kind: the least and the most time that its server can have taken,
/// s. It began when the bytes were in its socket, so after they were sent and before they were
/// read; and ended within its own stamps around the last write.
fn bounds(run: &ClientRun, lines: &[Line]) -> (f64, f64) {
    let served: HashMap<&str, &Line> =
        lines.iter().filter(|line| line.is_request()).map(|line| (&*line.rid, line)).collect();
    run.requests.iter().fold((0.0, 0.0), |(least, most), request| {
        let line = served[&*request.rid];
        let (read, write) = (line.read.first().unwrap(), line.write.last().unwrap());
        (
            least + write.before.saturating_sub(read.after) as f64 / 1e9,
            most + (write.after - request.send_before) as f64 / 1e9,
        )
    })
}

fn quantile(run: &ClientRun, q: f64) -> f64 {
    let mut seconds: Vec<f64> =
        run.requests.iter().map(|r| (r.last_byte - r.send_before) as f64 / 1e9).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[((seconds.len() - 1) as f64 * q) as usize]
}

/// Asks for a value that must be there.
fn value(prometheus: &Prometheus, expression: &str) -> f64 {
    prometheus.value(expression).unwrap().unwrap_or_else(|| panic!("{expression}: nothing"))
}

#[track_caller]
fn within(what: &str, value: f64, (least, most): (f64, f64)) {
    assert!((least..=most).contains(&value), "{what}: {value} is not within {least} to {most}");
}

#[test]
fn every_metric_agrees_with_the_clients_figures() {
    let Some(env) = env(Needs::Prometheus) else { return };
    let scratch = Scratch::new("prometheus").unwrap();
    let other = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let server = Server::threaded(&env, &scratch, true, &["--dependency", &other.addr()]).unwrap();
    let (tracer, metrics) = tracer(&env, &scratch, server.pid());
    let prometheus = Prometheus::start(&env, &scratch, &metrics).unwrap();
    let gpu = send(&env, &scratch, &server, &GPU);
    let streamed = send(&env, &scratch, &server, &STREAM);
    let dependent = send(&env, &scratch, &server, &DEPENDENT);
    let echoed = send(&env, &scratch, &server, &ECHO);
    send(&env, &scratch, &server, &CHECK);

    let traffic = GPU.requests + STREAM.requests + DEPENDENT.requests + ECHO.requests;
    let all = (traffic + CHECK.requests) as f64;
    prometheus.until("sum(spanprobe_timelines_total)", |count| count >= all).unwrap();
    // One scrape has everything that was said with the last timelines.
    let scrapes = value(&prometheus, "spanprobe_scrapes_total");
    prometheus.until("spanprobe_scrapes_total", |count| count >= scrapes + 6.0).unwrap();
    let ask = |expression: &str| value(&prometheus, expression);
    assert_eq!(ask("up"), 1.0);

    // Counted exactly.
    let infer = r#"{service="fixture-threaded",route="/infer",outcome="ok"}"#;
    assert_eq!(ask(&format!("{REQUESTS}_count{infer}")), (traffic - ECHO.requests) as f64);
    assert_eq!(ask(&format!("sum({REQUESTS}_count)")), traffic as f64);
    assert_eq!(ask(&format!(r#"{REQUESTS}_count{{route="/echo"}}"#)), ECHO.requests as f64);
    // What a busy machine lost is said, and where nothing was lost nothing is missing.
    let lost = ask("sum(spanprobe_events_lost_total)");
    let missing = ask(r#"spanprobe_timelines_total{complete="false"}"#);
    assert_eq!(ask("sum(spanprobe_timelines_total)"), all);
    assert!(lost > 0.0 || missing == 0.0, "{missing} are incomplete");
    let checks = r#"spanprobe_health_check_duration_seconds_count{route="/healthz"}"#;
    assert_eq!(ask(checks), CHECK.requests as f64);
    assert_eq!(ask("sum(spanprobe_tcp_rtt_seconds_count)"), traffic as f64);
    assert_eq!(ask("sum(spanprobe_input_bytes_count)"), traffic as f64);
    assert_eq!(ask("spanprobe_first_chunk_seconds_count"), STREAM.requests as f64);
    assert_eq!(ask("spanprobe_chunk_gap_seconds_count"), 4.0 * STREAM.requests as f64);
    let dependency = format!(r#"{{dependency="port {}"}}"#, other.port());
    let asked = format!("spanprobe_dependency_duration_seconds_count{dependency}");
    assert_eq!(ask(&asked), DEPENDENT.requests as f64);
    assert_eq!(ask("sum(spanprobe_label_overflow_total)"), 0.0);
    assert_eq!(ask("sum(spanprobe_requests_in_flight)"), 0.0);
    assert_eq!(ask("max(spanprobe_oldest_request_age_seconds)"), 0.0);
    assert_eq!(ask("sum(spanprobe_health_checks_in_flight)"), 0.0);
    assert_eq!(ask("spanprobe_build_info"), 1.0);
    within("retransmits", ask("spanprobe_tcp_retransmits_total"), (0.0, 1e3));
    for family in ["socket", "tcp", "cuda", "sched"] {
        let events = ask(&format!(r#"spanprobe_events_total{{family="{family}"}}"#));
        assert!(events >= traffic as f64, "{family}: {events}");
    }
    let coverage = r#"spanprobe_coverage{process="fixture-threaded",family="cuda"}"#;
    within("coverage", ask(coverage), (0.5, 1.0));

    // Phases tile the requests.
    let phases = ask("sum(spanprobe_phase_duration_seconds_sum)");
    let whole = ask(&format!("sum({REQUESTS}_sum)"));
    within("phases", phases, (whole * 0.999_999, whole * 1.000_001));
    let waited = r#"sum(spanprobe_phase_duration_seconds_sum{phase="dependency"})"#;
    within("dependency", ask(waited), (0.020 * DEPENDENT.requests as f64, whole));
    // The quantile lies in the bucket in which the client's does: 37 ms of work, from 30 to 50 ms.
    for q in [0.5, 0.9] {
        let slow = quantile(&gpu, q);
        let seen = ask(&format!(
            r#"histogram_quantile({q}, sum by (le) (rate({REQUESTS}_bucket{{route="/infer"}}[5m])))"#
        ));
        // Three quarters of these requests are of the kind that the quantile is of.
        if (0.03..=0.05).contains(&slow) && q < 0.6 {
            within("median", seen, (0.03, 0.05));
        }
        within("quantile", seen, (0.020, quantile(&gpu, 1.0).max(0.1)));
    }
    within_bytes(&ask, &echoed);

    let names: BTreeSet<String> = prometheus.names().unwrap().into_iter().collect();
    documented(&env.root, &names);
    linted(&env, &http_get(&metrics, "/metrics").unwrap());

    // What the server and the driver wrote down comes with their ends.
    let records = server.finish().unwrap();
    let all_runs = [&gpu, &streamed, &dependent, &echoed];
    let sums: Vec<(f64, f64)> = all_runs.iter().map(|run| bounds(run, &records.lines)).collect();
    let total = sums.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    within("durations", whole, total);
    let echo = ask(&format!(r#"{REQUESTS}_sum{{route="/echo"}}"#));
    within("durations of /echo", echo, sums[3]);
    let truth: u64 = records.sim.ops.iter().map(|op| op.end_ns - op.start_ns).sum();
    let truth = truth as f64 / 1e9;
    let busy = |bound: &str| {
        ask(&format!(
            r#"spanprobe_gpu_step_busy_seconds_total{{process="fixture-threaded",bound="{bound}"}}"#
        ))
    };
    within("GPU time", truth, (busy("lower"), busy("upper")));
    prometheus.stop().unwrap();
    let traced = tracer.finish().unwrap();
    let incomplete = traced.timelines.iter().filter(|timeline| !timeline.complete).count();
    assert_eq!((traced.timelines.len() as f64, incomplete as f64), (all, missing));
}

/// The requests' bytes: bodies, and heads that are not long.
fn within_bytes(ask: &impl Fn(&str) -> f64, echoed: &ClientRun) {
    let count = echoed.requests.len() as f64;
    let read = ask(r#"spanprobe_input_bytes_sum{route="/echo"}"#);
    within("bytes read", read, (count * 100_000.0, count * 101_000.0));
}

/// Every metric that `docs/metrics.md` says is exported is there, and no other.
fn documented(root: &Path, names: &BTreeSet<String>) {
    let text = std::fs::read_to_string(root.join("docs/metrics.md")).unwrap();
    let (exported, _) = text.split_once("## What is not there").unwrap();
    // Here nothing goes to a collector.
    let rows = exported.lines().filter(|line| !line.ends_with("| without `--otlp` |"));
    let cells = rows.filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<String> = cells.map(|(name, _)| name.to_owned()).collect();
    let family = |name: &str| {
        let suffixes = ["_bucket", "_count", "_sum"];
        let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
        base.filter(|base| documented.contains(*base)).unwrap_or(name).to_owned()
    };
    // Prometheus adds some of its own about each target; what GPUs say is another test's.
    let gpus = std::fs::read_to_string(root.join("docs/nvml.md")).unwrap();
    let own = |name: &&String| {
        !name.starts_with("scrape_") && *name != "up" && !gpus.contains(name.as_str())
    };
    let exported: BTreeSet<String> = names.iter().filter(own).map(|name| family(name)).collect();
    assert_eq!(exported, documented, "exported on the left, documented on the right");
}

/// Prometheus' own tool finds nothing wrong with the text.
fn linted(env: &Env, text: &str) {
    let tool = env.prometheus.as_ref().unwrap().with_file_name("promtool");
    if !tool.is_file() {
        return common::skipped("no promtool beside Prometheus: the text is not checked");
    }
    let mut command = Command::new(tool);
    command.args(["check", "metrics"]);
    let mut guard = e2e::child::Guard::spawn("promtool", &mut command).unwrap();
    text.lines().for_each(|line| guard.say(line).unwrap());
    guard.hang_up();
    let status = guard.wait(SOON).unwrap();
    assert!(status.success(), "{}{}", guard.out(), guard.err());
}

#[test]
fn a_hung_server_is_obvious() {
    let Some(env) = env(Needs::Prometheus) else { return };
    let scratch = Scratch::new("hung").unwrap();
    let mut server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let (tracer, metrics) = tracer(&env, &scratch, server.pid());
    let prometheus = Prometheus::start(&env, &scratch, &metrics).unwrap();
    let args = ["--connections", "3", "--requests", "3", "--plan", "sleep:4000000000"];
    let client = Client::start(&env, &scratch, &server.addr(), &args).unwrap();
    prometheus.until("sum(spanprobe_requests_in_flight)", |open| open == 3.0).unwrap();
    server.guard().signal(Signal::STOP);
    let age = "max(spanprobe_oldest_request_age_seconds)";
    let first = prometheus.until(age, |age| age > 1.0).unwrap();
    // Longer than the requests would have taken: nothing but the server is at fault.
    prometheus.until(age, |age| age > first + 4.0).unwrap();
    let open = r#"spanprobe_requests_in_flight{service="fixture-threaded",route="/infer"}"#;
    assert_eq!(value(&prometheus, open), 3.0);
    assert_eq!(value(&prometheus, &format!("sum({REQUESTS}_count) or vector(0)")), 0.0);
    server.guard().signal(Signal::CONT);
    client.finish().unwrap().all_right().unwrap();
    prometheus.until("sum(spanprobe_requests_in_flight)", |open| open == 0.0).unwrap();
    prometheus.until(&format!("{REQUESTS}_count"), |count| count == 3.0).unwrap();
    assert_eq!(value(&prometheus, age), 0.0);
    prometheus.stop().unwrap();
    tracer.stop().unwrap();
}
