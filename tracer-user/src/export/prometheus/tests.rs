//! What is exported, and that it stays within its bounds.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use prometheus_client::{encoding::prometheus_text, registry::Registry};
use proptest::prelude::*;

use super::{
    Counting, Now, Prometheus,
    routes::{MAX_ROUTES, MAX_SERVICES},
    server::{Limits, Server, Shared},
};
use crate::{
    cost::Costs,
    export::{
        health::Lost,
        tests::{
            props,
            samples::{embedding, failed, open, request, stream},
        },
    },
    nvml::metrics::{Metric, Series},
    pipeline::Families,
    stream::reason,
    timeline::{
        figures::{Figures, Outgoing},
        model::{Outcome, PhaseName, Timeline},
    },
};

/// A text read back: samples by name and labels as written.
#[derive(Debug, Default)]
struct Parsed {
    types: BTreeMap<String, String>,
    samples: BTreeMap<(String, String), f64>,
}

impl Parsed {
    /// Panics where the text breaks the grammar of the format.
    fn of(text: &str) -> Self {
        let mut parsed = Self::default();
        assert!(text.ends_with('\n'));
        // Not `lines`: a carriage return ends no line here.
        for line in text.trim_end_matches('\n').split('\n') {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(parsed.types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name}");
            } else if !line.starts_with("# HELP ") {
                parsed.sample(line);
            }
        }
        parsed
    }

    fn sample(&mut self, line: &str) {
        let end = line.find(['{', ' ']).unwrap();
        let (name, rest) = line.split_at(end);
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line:?}");
        let close = if rest.starts_with('{') { closing(rest) } else { 0 };
        let (labels, value) = rest.split_at(close);
        let value = value.strip_prefix(' ').unwrap().parse().unwrap();
        let key = (name.to_owned(), labels.to_owned());
        assert!(self.samples.insert(key, value).is_none(), "twice: {line:?}");
    }

    /// Sum of the samples whose labels hold all of these.
    fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        self.of_name(name, labels).map(|(_, value)| value).sum()
    }

    fn of_name(&self, name: &str, labels: &[&str]) -> impl Iterator<Item = (&str, f64)> {
        self.samples
            .iter()
            .filter(move |((of, have), _)| of == name && labels.iter().all(|l| have.contains(l)))
            .map(|((_, have), value)| (have.as_str(), *value))
    }

    /// Values of a label, over all samples.
    fn values(&self, label: &str) -> BTreeSet<&str> {
        let start = format!("{label}=\"");
        let value = |labels: &'_ str| -> Option<(usize, usize)> {
            let from = labels.find(&start)? + start.len();
            Some((from, from + labels.get(from..)?.find('"')?))
        };
        let all = self.samples.keys().map(|(_, labels)| labels);
        all.filter_map(|labels| value(labels).and_then(|(from, to)| labels.get(from..to))).collect()
    }
}

/// Where the labels end, the brace included; inside quotes a backslash takes the next character.
fn closing(text: &str) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => {
                assert!(matches!(c, '\\' | '"' | 'n'), "{text:?}");
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return at + 1,
            _ => {}
        }
    }
    panic!("no end: {text:?}");
}

/// How things stand where nothing has happened.
fn nothing(costs: &Costs) -> Now<'_> {
    Now {
        open: &[],
        families: Families::default(),
        lost: &[],
        figures: &[],
        gpus: Vec::new(),
        costs,
        unsent: &[],
    }
}

struct Bench {
    registry: Registry,
    counting: Counting,
}

impl Bench {
    fn new() -> Self {
        let mut registry = Registry::default();
        let counting = Counting::new(&mut registry);
        Self { registry, counting }
    }

    fn take(&mut self, timelines: &[Timeline]) {
        timelines.iter().for_each(|timeline| self.counting.take(timeline));
    }

    fn round(&mut self, open: &[Timeline]) {
        self.counting.round(Now { open, ..nothing(&Costs::default()) });
    }

    fn text(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).unwrap();
        text
    }

    fn parsed(&self) -> Parsed {
        Parsed::of(&self.text())
    }
}

const REQUESTS: &str = "http_server_request_duration_seconds";

#[test]
fn requests_are_counted_with_their_phases() {
    let mut bench = Bench::new();
    bench.take(&[embedding(), embedding(), stream(), failed()]);
    let parsed = bench.parsed();
    let ok = [r#"service="uvicorn""#, r#"route="/v1/embeddings""#, r#"outcome="ok""#];
    assert_eq!(parsed.types[REQUESTS], "histogram");
    assert_eq!(parsed.sum(&format!("{REQUESTS}_count"), &ok), 2.0);
    let seconds = embedding().duration_ns as f64 / 1e9;
    let sum = parsed.sum(&format!("{REQUESTS}_sum"), &ok);
    assert!((sum - 2.0 * seconds).abs() < 1e-9, "{sum}");
    // 41.2 ms.
    let bucket = format!("{REQUESTS}_bucket");
    let upto = |le: &str| parsed.sum(&bucket, &[&ok[..], &[le]].concat());
    assert_eq!((upto(r#"le="0.03""#), upto(r#"le="0.05""#), upto(r#"le="+Inf""#)), (0.0, 2.0, 2.0));
    // Two stretches of a request's `cpu` are one observation.
    let cpu = [r#"phase="cpu""#, r#"route="/v1/embeddings""#];
    assert_eq!(parsed.sum("spanprobe_phase_duration_seconds_count", &cpu), 2.0);
    let cpu = parsed.sum("spanprobe_phase_duration_seconds_sum", &cpu);
    assert!((cpu - 2.0 * 0.0069).abs() < 1e-9, "{cpu}");
    // What a request does not have is not there.
    assert_eq!(
        parsed.of_name("spanprobe_phase_duration_seconds_count", &[r#"phase="io""#]).count(),
        0
    );
    let errors = [r#"service="tritonserver""#, r#"outcome="server_error""#];
    assert_eq!(parsed.sum(&format!("{REQUESTS}_count"), &errors), 1.0);
    assert_eq!(parsed.sum("spanprobe_tcp_retransmits_total", &["tritonserver"]), 2.0);
    assert_eq!(parsed.sum("spanprobe_tcp_rtt_seconds_count", &["uvicorn"]), 3.0);
    assert_eq!(parsed.sum("spanprobe_input_bytes_sum", &["/v1/embeddings"]), 2.0 * 1_234.0);
    assert_eq!(parsed.sum("spanprobe_first_chunk_seconds_count", &[]), 1.0);
    assert_eq!(parsed.sum("spanprobe_chunk_gap_seconds_count", &[]), 2.0);
    let timelines = |complete| parsed.sum("spanprobe_timelines_total", &[complete]);
    assert_eq!((timelines(r#""true""#), timelines(r#""false""#)), (3.0, 1.0));
    assert_eq!(parsed.sum("spanprobe_build_info", &[env!("CARGO_PKG_VERSION")]), 1.0);
}

#[test]
fn health_checks_and_scrapes_are_apart() {
    let mut bench = Bench::new();
    let check = |route: &str| request(route, embedding().phases);
    bench.take(&[embedding(), check("/healthz"), check("/metrics"), check("/v2/health/ready")]);
    bench.round(&[check("/livez")]);
    let parsed = bench.parsed();
    assert_eq!(parsed.sum(&format!("{REQUESTS}_count"), &[]), 1.0);
    assert_eq!(parsed.sum("spanprobe_health_check_duration_seconds_count", &[]), 3.0);
    for name in ["spanprobe_phase_duration_seconds_count", "spanprobe_input_bytes_count"] {
        assert_eq!(parsed.of_name(name, &["health"]).count(), 0, "{name}");
    }
    assert_eq!(parsed.sum("spanprobe_requests_in_flight", &[]), 0.0);
    assert_eq!(parsed.sum("spanprobe_health_checks_in_flight", &["uvicorn"]), 1.0);
}

#[test]
fn where_the_start_or_the_end_is_not_known_there_is_no_duration() {
    for why in [reason::MID_REQUEST, reason::REQUEST_NOT_SEEN, reason::END_NOT_SEEN] {
        let mut bench = Bench::new();
        let mut timeline = stream();
        (timeline.complete, timeline.incomplete) = (false, vec![why]);
        bench.take(&[timeline]);
        let parsed = bench.parsed();
        assert_eq!(parsed.sum(&format!("{REQUESTS}_count"), &[]), 0.0);
        assert_eq!(parsed.sum("spanprobe_phase_duration_seconds_count", &[]), 0.0);
        let first = if why == reason::END_NOT_SEEN { 1.0 } else { 0.0 };
        assert_eq!(parsed.sum("spanprobe_first_chunk_seconds_count", &[]), first);
        assert_eq!(parsed.sum("spanprobe_chunk_gap_seconds_count", &[]), 2.0);
        assert_eq!(parsed.sum("spanprobe_timelines_total", &[r#""false""#]), 1.0);
    }
}

#[test]
fn open_requests_come_and_go() {
    let mut bench = Bench::new();
    bench.round(&[open(7_000), open(4_000), open(10)]);
    let parsed = bench.parsed();
    // One that is open for a moment only does not make a route known, nor is there need.
    assert_eq!(parsed.sum("spanprobe_requests_in_flight", &["completions"]), 3.0);
    assert_eq!(parsed.sum("spanprobe_oldest_request_age_seconds", &["completions"]), 7.0);
    bench.round(&[]);
    let parsed = bench.parsed();
    for name in ["spanprobe_requests_in_flight", "spanprobe_oldest_request_age_seconds"] {
        let values: Vec<f64> = parsed.of_name(name, &[]).map(|(_, value)| value).collect();
        assert_eq!(values, [0.0], "{name}");
    }
}

#[test]
fn readings_of_gpus_keep_their_names_and_kinds() {
    let mut bench = Bench::new();
    let metric = |name, counter, label: &str| Metric {
        name,
        help: "help",
        counter,
        series: vec![Series { labels: vec![("gpu", label.to_owned())], value: 2.5 }],
    };
    let gpus =
        vec![metric("hw_power_watts", false, "\"\\\n"), metric("hw_energy_joules", true, "G")];
    bench.counting.round(Now { gpus, ..nothing(&Costs::default()) });
    let parsed = bench.parsed();
    assert_eq!(parsed.types["hw_power_watts"], "gauge");
    assert_eq!(parsed.types["hw_energy_joules_total"], "counter");
    assert_eq!(parsed.sum("hw_power_watts", &[]), 2.5);
    assert_eq!(parsed.sum("hw_energy_joules_total", &[r#"gpu="G""#]), 2.5);
}

#[test]
fn how_things_stand_is_what_the_last_round_said() {
    let mut bench = Bench::new();
    let figures = |service: &str, hooked| Figures {
        service: service.to_owned(),
        uses_gpu: true,
        gpu_lower_ns: 1_500_000_000,
        gpu_upper_ns: 2_000_000_000,
        hooked,
        sites: 100,
    };
    let lost = |count| Lost { name: "socket", family: "socket", place: "kernel", count };
    for count in [0, 5] {
        bench.counting.round(Now {
            open: &[],
            families: Families {
                socket: 10,
                tcp: 20,
                cuda: 30,
                process: 40,
                sched: 50,
                launches: 60,
            },
            lost: &[lost(count)],
            figures: &[figures("a", 100), figures("b", 50)],
            gpus: Vec::new(),
            costs: &Costs {
                family_seconds: [("sched".to_owned(), 1.5)].into(),
                ..Costs::default()
            },
            unsent: &[("traces", "queue-full", 3)],
        });
        let parsed = bench.parsed();
        let cost = parsed.sum("spanprobe_probe_cost_seconds_total", &[r#"family="sched""#]);
        assert_eq!(cost, 1.5);
        let at = [r#"family="socket""#, r#"where="kernel""#];
        assert_eq!(parsed.sum("spanprobe_events_lost_total", &at), count as f64);
    }
    let parsed = bench.parsed();
    assert_eq!(parsed.sum("spanprobe_events_total", &[r#""sched""#]), 50.0);
    assert_eq!(parsed.types["spanprobe_gpu_step_busy_seconds_total"], "counter");
    let unsent = [r#"signal="traces""#, r#"reason="queue-full""#];
    assert_eq!(parsed.sum("spanprobe_otlp_dropped_total", &unsent), 3.0);
    let busy = |bound| parsed.sum("spanprobe_gpu_step_busy_seconds_total", &[r#""a""#, bound]);
    assert_eq!((busy("lower"), busy("upper")), (1.5, 2.0));
    assert_eq!(parsed.sum("spanprobe_coverage", &[r#"process="b""#, r#"family="cuda""#]), 0.5);
}

#[test]
fn dependencies_are_told_apart_by_port() {
    let mut bench = Bench::new();
    for port in [Some(6_333), Some(6_333), Some(80), None] {
        let service = "uvicorn".to_owned();
        bench.counting.asked(&Outgoing { service, port, duration_ns: 20_000_000 });
    }
    let parsed = bench.parsed();
    let count = |labels| parsed.sum("spanprobe_dependency_duration_seconds_count", &[labels]);
    assert_eq!(count(r#"dependency="port 6333""#), 2.0);
    assert_eq!(count(r#"dependency="unknown""#), 1.0);
    assert_eq!(count(r#"service="uvicorn""#), 4.0);
}

#[test]
fn whatever_names_come_the_series_are_bounded() {
    let mut bench = Bench::new();
    let all: Vec<_> = PhaseName::ALL.into_iter().cycle().take(34).collect();
    let mut full = stream();
    full.phases = all
        .iter()
        .map(|phase| crate::timeline::model::Phase { phase: *phase, ..full.phases[0].clone() })
        .collect();
    let outcomes = [
        None,
        Some(Outcome::Ok),
        Some(Outcome::ClientError),
        Some(Outcome::ServerError),
        Some(Outcome::Cancelled),
        Some(Outcome::Reset),
    ];
    let (mut taken, mut lens) = (0.0, Vec::new());
    for n in 0..60_000_u32 {
        full.service = format!("service-{}", n % 500).into();
        full.route = format!("/{}/{}", "r".repeat(50), word(n % 20_000)).into();
        full.outcome = outcomes[n as usize % outcomes.len()];
        bench.take(std::slice::from_ref(&full));
        bench.counting.asked(&Outgoing {
            service: full.service.to_string(),
            port: Some(n as u16),
            duration_ns: u64::from(n),
        });
        taken += 1.0;
        if n % 20_000 == 19_999 {
            bench.round(&[]);
            lens.push(bench.text().len());
        }
    }
    let text = bench.text();
    let parsed = Parsed::of(&text);
    assert_eq!(parsed.sum(&format!("{REQUESTS}_count"), &[]), taken);
    assert!(parsed.values("service").len() <= MAX_SERVICES + 1);
    assert!(parsed.values("route").len() <= MAX_ROUTES + 1);
    assert!(parsed.values("dependency").len() <= 65);
    for label in ["service", "route", "dependency"] {
        assert!(parsed.sum("spanprobe_label_overflow_total", &[label]) > 10_000.0, "{label}");
    }
    // It has stopped to grow, but for digits.
    assert!(lens[2] < lens[1] + lens[1] / 20, "{lens:?}");
    assert!(text.len() < 16 << 20, "{} bytes", text.len());
}

#[test]
fn paths_that_do_not_exist_take_no_place() {
    let mut bench = Bench::new();
    let mut scan = embedding();
    (scan.status, scan.outcome) = (Some(404), Some(Outcome::ClientError));
    for n in 0..1_000_u32 {
        scan.route = format!("/wp-{}", word(n)).into();
        bench.take(std::slice::from_ref(&scan));
    }
    bench.take(&[embedding()]);
    let parsed = bench.parsed();
    assert_eq!(parsed.values("route"), BTreeSet::from(["/v1/embeddings", "other"]));
    assert_eq!(parsed.sum(&format!("{REQUESTS}_count"), &[r#"route="other""#]), 1_000.0);
    assert_eq!(parsed.sum("spanprobe_label_overflow_total", &[]), 0.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Every line follows the grammar, buckets only grow, and the last is the count.
    #[test]
    fn any_timelines_give_a_text_that_parses(
        timelines in proptest::collection::vec(props::timeline(), 0..12),
    ) {
        let mut bench = Bench::new();
        bench.take(&timelines);
        bench.round(&timelines);
        let parsed = bench.parsed();
        let counted = parsed.sum(&format!("{REQUESTS}_count"), &[])
            + parsed.sum("spanprobe_health_check_duration_seconds_count", &[]);
        prop_assert_eq!(counted, timelines.len() as f64);
        for (name, kind) in &parsed.types {
            if kind != "histogram" {
                continue;
            }
            for (labels, count) in parsed.of_name(&format!("{name}_count"), &[]) {
                let begin = labels.trim_end_matches('}');
                let mut buckets: Vec<(f64, f64)> = parsed
                    .of_name(&format!("{name}_bucket"), &[])
                    .filter(|(of, _)| of.starts_with(begin))
                    .filter_map(|(of, n)| {
                        let le = of.get(begin.len()..)?.strip_prefix(",le=\"")?;
                        let le = le.strip_suffix("\"}")?;
                        Some((if le == "+Inf" { f64::INFINITY } else { le.parse().ok()? }, n))
                    })
                    .collect();
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                prop_assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{} {:?}", name, buckets);
                prop_assert_eq!(buckets.last().map(|b| b.1), Some(count), "{}", labels);
            }
        }
    }
}

/// A word without digits for each number.
fn word(mut n: u32) -> String {
    let mut word = String::new();
    loop {
        word.push(char::from(b'a' + (n % 26) as u8));
        n /= 26;
        if n == 0 {
            return word;
        }
    }
}

/// Says something to the server and takes its answer.
fn ask(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A reset after the answer is as good as an end.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[test]
fn scrapes_are_answered() {
    let mut prometheus = Prometheus::open(loopback()).unwrap();
    let address = prometheus.address();
    prometheus.take(&[embedding()]);
    prometheus.round(nothing(&Costs::default()));
    let answer = get(address, "/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert_eq!(Parsed::of(body).sum(&format!("{REQUESTS}_count"), &[]), 1.0);
    let head = ask(address, "HEAD /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    assert!(get(address, "/").starts_with("HTTP/1.1 404 "));
    let posted = ask(address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    assert!(!ask(address, &long).contains("200 OK"));
    assert!(!ask(address, "\x16\x03\x01 this is no HTTP\r\n\r\n").contains("200 OK"));
    prometheus.close();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn an_address_in_use_is_an_error() {
    let first = Prometheus::open(loopback()).unwrap();
    assert!(Prometheus::open(first.address()).is_err());
    first.close();
}

#[test]
fn silent_and_slow_scrapers_are_cut_and_others_answered() {
    let mut registry = Registry::default();
    let mut counting = Counting::new(&mut registry);
    counting.take(&embedding());
    let limits = Limits { connections: 2, time: Duration::from_millis(300) };
    let shared = Arc::new(Shared::new(registry));
    let server = Server::start(loopback(), shared, limits).unwrap();
    let address = server.address();
    // More than there are places for: they say nothing, or half a word, or do not read.
    let holders: Vec<TcpStream> = (0..6)
        .map(|n| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(["", "GET /met"][n % 2].as_bytes()).unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    assert!(get(address, "/metrics").starts_with("HTTP/1.1 200 "));
    // Three pairs, 0.3 s each; far from the minutes that a patient server would give them.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(holders);
    let scraped = get(address, "/metrics");
    let parsed = Parsed::of(scraped.split_once("\r\n\r\n").unwrap().1);
    assert_eq!(parsed.sum("spanprobe_scrapes_total", &[]), 1.0, "handed out again while fresh");
    server.stop();
}

/// `cargo test --release -p tracer-user --lib counting_is_quick -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn counting_is_quick() {
    const ROUNDS: u32 = 200_000;
    let mut bench = Bench::new();
    let timelines = [embedding(), stream(), failed()];
    bench.take(&timelines);
    let began = Instant::now();
    for _ in 0..ROUNDS {
        bench.take(&timelines);
    }
    let each = began.elapsed() / (ROUNDS * timelines.len() as u32);
    let began = Instant::now();
    let len = bench.text().len();
    eprintln!("{each:?} for each timeline; {len} bytes in {:?}", began.elapsed());
    assert!(each < Duration::from_micros(10));
}
