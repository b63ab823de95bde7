//! A trace in a back end with a user interface, read back whole through its own interface: Arize
//! Phoenix, where `cargo xtask otlp --real` has brought it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::{Needs, env, skipped};
use e2e::child::Guard;
use e2e::client::Client;
use e2e::clock::until;
use e2e::raw::Raw;
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::timeline::Timeline;
use e2e::tracer::Tracer;
use serde_json::Value;

/// Phoenix makes its database first.
const STARTING: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);

/// A Phoenix that listens.
struct Phoenix {
    http: u16,
    grpc: u16,
    _guard: Guard,
}

/// Free a moment ago; nobody else takes one of these by number.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Phoenix {
    fn start(scratch: &Scratch) -> Option<Self> {
        let Some(venv) = std::env::var_os("SPANPROBE_PHOENIX").map(PathBuf::from) else {
            skipped("no Phoenix (SPANPROBE_PHOENIX, as `cargo xtask otlp --real` makes it)");
            return None;
        };
        let (http, grpc) = (free_port(), free_port());
        let mut command = Command::new(venv.join("bin/phoenix"));
        command
            .arg("serve")
            .env("PHOENIX_HOST", "127.0.0.1")
            .env("PHOENIX_PORT", http.to_string())
            .env("PHOENIX_GRPC_PORT", grpc.to_string())
            .env("PHOENIX_WORKING_DIR", scratch.file("phoenix"))
            .env("PHOENIX_TELEMETRY_ENABLED", "false")
            .env("PHOENIX_ALLOW_EXTERNAL_RESOURCES", "false");
        let guard = Guard::spawn("phoenix", &mut command).unwrap();
        let phoenix = Self { http, grpc, _guard: guard };
        until("Phoenix", STARTING, || phoenix.get("/v1/projects").map(drop)).unwrap();
        Some(phoenix)
    }

    /// What it answers, where it does so with a document.
    fn get(&self, path: &str) -> Option<Value> {
        let mut raw = Raw::connect(self.http).ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        raw.send(request.as_bytes()).ok()?;
        let response = raw.response().ok()?;
        let body = response.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        serde_json::from_slice(&response[body..]).ok()
    }

    /// The spans of a trace, once as many are there.
    fn trace(&self, trace_id: &str, count: usize) -> Vec<Value> {
        let path = format!("/v1/projects/default/spans?limit=1000&trace_id={trace_id}");
        until("the trace", SOON, || {
            let spans = self.get(&path)?["data"].as_array()?.clone();
            (spans.len() >= count).then_some(spans)
        })
        .unwrap()
    }
}

/// Microseconds since the Unix epoch of a time as Phoenix writes it, of this day: `…THH:MM:SS.ffffff…`.
fn micros(time: &Value) -> i64 {
    let text = time.as_str().unwrap();
    let clock = text.split_once('T').unwrap().1;
    let (h, m) = (clock[0..2].parse::<i64>().unwrap(), clock[3..5].parse::<i64>().unwrap());
    let seconds: String =
        clock[6..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    ((h * 60 + m) * 60) * 1_000_000 + (seconds.parse::<f64>().unwrap() * 1e6).round() as i64
}

fn same(spans: &[Value], timeline: &Timeline) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let id = |span: &Value| text(&span["context"]["span_id"]);
    let own = spans.iter().find(|span| id(span) == timeline.span_id).expect("the request");
    assert_eq!(text(&own["name"]), format!("{} {}", timeline.method, timeline.route));
    let start = micros(&own["start_time"]);
    let close = |a: i64, ns: u64| (a - (ns / 1_000) as i64).abs() <= 2;
    assert!(close(micros(&own["end_time"]) - start, timeline.duration_ns), "{own}");
    let attributes = &own["attributes"];
    assert_eq!(attributes["http.route"], timeline.route.as_str(), "{attributes:#}");
    assert_eq!(attributes["http.response.status_code"], timeline.status.unwrap());
    let mut phases: Vec<_> =
        spans.iter().filter(|span| text(&span["parent_id"]) == timeline.span_id).collect();
    assert_eq!(phases.len(), timeline.phases.len());
    phases.sort_by_key(|span| (micros(&span["start_time"]), micros(&span["end_time"])));
    let mut wanted: Vec<_> = timeline.phases.iter().collect();
    wanted.sort_by_key(|phase| (phase.offset_ns, phase.duration_ns));
    for (span, phase) in phases.iter().zip(wanted) {
        let offset = micros(&span["start_time"]) - start;
        assert!(close(offset, phase.offset_ns), "{span} {phase:?}");
        assert!(close(micros(&span["end_time"]) - start, phase.offset_ns + phase.duration_ns));
    }
    let names = |list: Vec<String>| {
        let mut list = list;
        list.sort();
        list
    };
    assert_eq!(
        names(phases.iter().map(|span| text(&span["name"])).collect()),
        names(timeline.phases.iter().map(|phase| phase.phase.clone()).collect())
    );
}

#[test]
fn a_trace_is_read_back_whole() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("phoenix").unwrap();
    let Some(phoenix) = Phoenix::start(&scratch) else { return };
    for http in [false, true] {
        let scratch = Scratch::new("traced").unwrap();
        let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
        let (pid, port) =
            (server.pid().to_string(), if http { phoenix.http } else { phoenix.grpc });
        let endpoint = format!("http://127.0.0.1:{port}");
        let vars = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", if http { "http/protobuf" } else { "grpc" }),
            // It takes traces only.
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_LOGS_EXPORTER", "none"),
        ];
        let args = ["--pid", &pid, "--otlp", &endpoint];
        let tracer = Tracer::run_with(&env, &scratch, &args, &vars).unwrap();
        let plan =
            "h2d:1048576,k:40:200000,sync:stream,d2h:65536,sync:stream,spin:2000000,resp:500";
        let requests =
            ["--requests", "10", "--connections", "2", "--plan", plan, "--plan", "chunks:5:900000"];
        Client::run(&env, &scratch, &server.addr(), &requests).unwrap().all_right().unwrap();
        let traced = tracer.stop().unwrap();
        assert!(traced.err.contains("10 requests sent, none dropped"), "{}", traced.err);
        for timeline in &traced.timelines {
            let spans = phoenix.trace(&timeline.trace_id, 1 + timeline.phases.len());
            same(&spans, timeline);
        }
    }
    hold(&phoenix);
}

/// With `SPANPROBE_LOOK`, keeps Phoenix until a line comes on standard input, for whoever wants to
/// look at the traces in a browser.
fn hold(phoenix: &Phoenix) {
    if std::env::var_os("SPANPROBE_LOOK").is_some() {
        eprintln!("look at http://127.0.0.1:{} and press Enter", phoenix.http);
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
}
