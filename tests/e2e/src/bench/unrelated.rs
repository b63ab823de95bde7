//! What a process loses that is not traced while another is. The tracepoints of the scheduler and
//! of system calls are the machine's: every process comes by them.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::bpftrace::{self, Empty};
use super::throughput::{pairs, ratios};
use super::verdict::Verdict;
use super::{Args, Results};
use crate::child::Guard;
use crate::client::Client;
use crate::env::Env;
use crate::measure::Interval;
use crate::ping_pong::Round;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tracer::Tracer;

/// With ÷ without, at least.
const LIMIT: f64 = 0.95;
/// Where the two threads run. Judged is the first, which runs as processes mostly run.
const JUDGED: &str = "ping_pong";
const WAYS: [(&str, &[&str]); 3] = [
    (JUDGED, &[]),
    ("ping_pong_two_cpus", &["--cpus", "0", "1"]),
    ("ping_pong_one_cpu", &["--cpus", "0", "0"]),
];
const PATIENCE: Duration = Duration::from_secs(60);

/// Two threads that hand a byte to and fro (`e2e ping-pong`).
struct PingPong(Guard);

impl PingPong {
    fn start(args: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let guard = Guard::spawn("ping-pong", command.arg("ping-pong").args(args))?;
        guard.next_out("that it is ready", PATIENCE)?;
        Ok(Self(guard))
    }

    fn round(&mut self) -> Result<Round> {
        self.0.say("go")?;
        let line = self.0.next_out("a round", PATIENCE)?;
        serde_json::from_str(&line).context(line)
    }
}

/// The part `unrelated`: a byte handed to and fro wherever the kernel puts the two threads, on two
/// processors, and on one; the same with programs that do nothing in place of spanprobe's; and a
/// server on a socket.
pub fn run(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    let scratch = Scratch::new("unrelated")?;
    let target = Server::threaded(env, &scratch, true, &[])?;
    let pid = target.pid().to_string();
    let attach = || Tracer::run(env, &scratch, &["--pid", &pid]);
    let mut figures = Map::new();
    for (name, pinned) in WAYS {
        let mut untraced = PingPong::start(pinned)?;
        let pairs = pairs(args.alternations, || untraced.round(), attach)?;
        figures.insert(name.to_owned(), value(results, name, &rates(&pairs)));
        let more = pairs.iter().map(|(with, without)| with.cpu_ns - without.cpu_ns);
        let without = pairs.iter().map(|(_, without)| without.cpu_ns);
        let cpu = json!({ "extra": Interval::of(more), "without": Interval::of(without) });
        figures.insert(format!("{name}_cpu_ns"), cpu);
    }
    let peer = bpftrace::version();
    for (name, pinned) in WAYS.into_iter().filter(|_| peer.is_some()) {
        let mut untraced = PingPong::start(pinned)?;
        let pairs = pairs(args.alternations, || untraced.round(), Empty::start)?;
        let interval = Interval::of(rates(&pairs));
        if let Some(Interval { median, low, high, .. }) = interval {
            results.note(format!(
                "{name} beside programs that do nothing: {median:.3} ({low:.3}–{high:.3})"
            ));
        }
        figures.insert(format!("{name}_empty"), json!({ "ratio": interval }));
    }
    let other = Server::threaded(env, &scratch, false, &[])?;
    let load = ["--connections", "1", "--for", "2", "--plan", "healthz"];
    let rate = || {
        let run = Client::run(env, &scratch, &other.addr(), &load)?;
        run.all_right()?;
        Ok(run.summary.rps)
    };
    let ratios = ratios(args.alternations, rate, attach)?;
    figures.insert("server".to_owned(), value(results, "server", &ratios));
    results.set("unrelated_ratio", figures);
    Ok(())
}

/// Rates with ÷ rates without.
fn rates(pairs: &[(Round, Round)]) -> Vec<f64> {
    pairs.iter().map(|(with, without)| with.rate / without.rate).collect()
}

fn value(results: &mut Results, name: &str, ratios: &[f64]) -> Value {
    let words = format!("{name} beside a traced process, with ÷ without, wanted ≥ {LIMIT}");
    let judge = |interval| Verdict::at_least(interval, LIMIT);
    let Some((interval, verdict)) = results.judge(&words, ratios, judge, name == JUDGED) else {
        return Value::Null;
    };
    json!({ "ratio": interval, "verdict": verdict.as_str(), "judged": name == JUDGED })
}
