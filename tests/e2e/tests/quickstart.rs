//! A stranger types what the README says, and nothing else: the first timeline is there within a
//! minute; latency in a real Prometheus, and a trace in a back end, within five.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use collector::{Behaviour, Collector};
use common::{Needs, env};
use e2e::child::Guard;
use e2e::env::Env;
use e2e::prometheus::Prometheus;
use e2e::scratch::Scratch;
use e2e::server::Server;
use rustix::process::Signal;

const FIRST_TIMELINE: Duration = Duration::from_secs(60);
const EVERYWHERE: Duration = Duration::from_secs(300);
/// What stands for the program, a process and ports in the README.
const PROGRAM: &str = "target/release/spanprobe";
const METRICS: &str = "127.0.0.1:9464";
const BACK_END: &str = "127.0.0.1:4317";

/// The lines of the README's code blocks.
struct Readme(Vec<String>);

impl Readme {
    fn read() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
        let text = fs::read_to_string(file).unwrap();
        let mut inside = false;
        let lines = text.lines().filter(|line| {
            let fence = line.starts_with("```");
            inside ^= fence;
            inside && !fence
        });
        Self(lines.map(str::to_owned).collect())
    }

    /// The line that begins and goes on like this, without its comment.
    fn line(&self, begin: &str, with: &str) -> String {
        let line = self.0.iter().find(|line| line.starts_with(begin) && line.contains(with));
        let line = line.unwrap_or_else(|| panic!("the README has no `{begin} … {with}`"));
        line.split(" # ").next().unwrap().trim().to_owned()
    }

    /// The command, with what is another's on each machine put in.
    fn command(&self, env: &Env, with: &str, put: &[(&str, &str)]) -> Command {
        let mut line = self.line(&format!("sudo {PROGRAM}"), with);
        for (from, to) in put {
            line = line.replace(from, to);
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        // These tests are root already, and the program lies where it was built.
        assert_eq!(
            (words.next().as_deref(), words.next().as_deref()),
            (Some("sudo"), Some(PROGRAM))
        );
        let mut command = Command::new(&env.spanprobe);
        // Another test's agent, or a real one, may be tracing on this machine.
        command.args(words).env("SPANPROBE_BESIDE", "true").env("SPANPROBE_NO_CONTROL", "true");
        command
    }
}

/// A client that asks and asks.
fn traffic(env: &Env, server: &Server) -> Guard {
    let mut client = Command::new(env.fixture("fixture-client"));
    client.args(["--addr", &server.addr(), "--for", "600", "--connections", "2"]);
    client.args(["--plan", "h2d:65536,k:20:200000,sync:stream,d2h:4096,resp:500"]);
    client.args(["--oracle", "/dev/null"]);
    Guard::spawn("the client", &mut client).unwrap()
}

#[test]
fn what_the_readme_says_leads_to_timelines_metrics_and_traces() {
    let Some(env) = env(Needs::Prometheus) else { return };
    let scratch = Scratch::new("quickstart").unwrap();
    let readme = Readme::read();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let (pid, port) = (server.pid().to_string(), server.port().to_string());
    let client = traffic(&env, &server);

    let begun = Instant::now();
    let doctor = readme.command(&env, "doctor --pid", &[("1234", &pid)]).output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains(&pid), "{said}");
    let mut run = readme.command(&env, "run --port 8000", &[("8000", &port)]);
    let mut agent = Guard::spawn("spanprobe", &mut run).unwrap();
    agent.wait_out("a timeline", FIRST_TIMELINE, |line| line.contains("POST /infer")).unwrap();
    eprintln!("quickstart: the first timeline after {:.1} s", begun.elapsed().as_secs_f64());
    agent.signal(Signal::INT);
    agent.wait(FIRST_TIMELINE).unwrap();

    let begun = Instant::now();
    let back_end = Collector::grpc(Behaviour::Takes);
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let taken = back_end.endpoint();
    let put =
        [("8000", &*port), (METRICS, &metrics), (BACK_END, taken.trim_start_matches("http://"))];
    let mut run = readme.command(&env, "--prometheus", &put);
    let mut agent = Guard::spawn("spanprobe", &mut run).unwrap();
    let prometheus = Prometheus::start(&env, &scratch, &metrics).unwrap();
    for begin in ["histogram_quantile", "sum by (phase)"] {
        let query = format!("max({})", readme.line(begin, ""));
        let value = prometheus.until(&query, |value| value > 0.0).unwrap();
        let at = begun.elapsed().as_secs_f64();
        eprintln!("quickstart: {query} is {value:.6} after {at:.1} s");
    }
    back_end.wait("a trace", |all| all.spans().into_iter().find(|s| s.span.name == "POST /infer"));
    eprintln!("quickstart: metrics and a trace after {:.1} s", begun.elapsed().as_secs_f64());
    assert!(begun.elapsed() < EVERYWHERE);
    agent.signal(Signal::INT);
    agent.wait(FIRST_TIMELINE).unwrap();
    drop(client);
}
