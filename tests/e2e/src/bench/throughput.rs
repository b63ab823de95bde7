//! What a traced server loses: rates of the same client, with and without, alternating which comes
//! first.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::nginx::{self, Nginx};
use super::verdict::Verdict;
use super::{Args, Results};
use crate::client::Client;
use crate::env::Env;
use crate::measure::Interval;
use crate::scratch::Scratch;
use crate::server::{Python, Server};
use crate::tracer::Tracer;

/// Least share of its throughput that each keeps.
const FASTAPI: f64 = 0.95;
const NGINX: f64 = 0.60;
/// Length of one measurement, s.
const SECONDS: &str = "2";
const INFER: &str = r#"json:/infer:{"launches":5,"kernel_ns":20000,"reply":200}"#;

/// What a measurement is made with, and without.
pub(super) trait Attached {
    /// Takes it away again.
    fn detach(self) -> Result<()>;
}

impl Attached for Tracer {
    fn detach(self) -> Result<()> {
        self.stop().map(drop)
    }
}

/// What is measured with and without, alternating which comes first.
pub(super) fn pairs<T, A: Attached>(
    alternations: usize,
    mut measure: impl FnMut() -> Result<T>,
    mut attach: impl FnMut() -> Result<A>,
) -> Result<Vec<(T, T)>> {
    let mut pairs = Vec::new();
    for round in 0..alternations {
        let first = if round % 2 == 1 { Some(measure()?) } else { None };
        let tracer = attach()?;
        let traced = measure()?;
        tracer.detach()?;
        pairs.push((traced, first.map_or_else(&mut measure, Ok)?));
    }
    Ok(pairs)
}

/// Rates with ÷ rates without.
pub(super) fn ratios(
    alternations: usize,
    rate: impl FnMut() -> Result<f64>,
    attach: impl FnMut() -> Result<Tracer>,
) -> Result<Vec<f64>> {
    let pairs = pairs(alternations, rate, attach)?;
    Ok(pairs.into_iter().map(|(traced, untraced)| traced / untraced).collect())
}

/// The interval, and what it says of the limit.
fn judged(results: &mut Results, name: &str, ratios: &[f64], limit: f64) -> Value {
    let words = format!("throughput_ratio.{name}, wanted ≥ {limit}");
    let judge = |interval: Interval| Verdict::at_least(interval, limit);
    match results.judge(&words, ratios, judge, true) {
        None => Value::Null,
        Some((interval, verdict)) => {
            let Interval { median, low, high, count } = interval;
            let verdict = verdict.as_str();
            json!({
                "median": median, "low": low, "high": high, "count": count, "verdict": verdict
            })
        }
    }
}

fn fastapi(env: &Env, args: &Args) -> Result<Vec<f64>> {
    let scratch = Scratch::new("fastapi")?;
    let server = Server::python(env, &scratch, Python::FastApi, &["--threads", "8"])?;
    server.warm_up(env, &scratch, INFER, 64)?;
    let load = ["--connections", "8", "--for", SECONDS, "--plan", INFER];
    let rate = || {
        let run = Client::run(env, &scratch, &server.addr(), &load)?;
        run.all_right()?;
        Ok(run.summary.rps)
    };
    let pid = server.pid().to_string();
    let attach = || Tracer::run(env, &scratch, &["--pid", &pid]);
    ratios(args.alternations, rate, attach)
}

fn nginx(env: &Env, args: &Args) -> Result<Vec<f64>> {
    let scratch = Scratch::new("nginx")?;
    let nginx = Nginx::start(&scratch)?;
    let selector = nginx.port().to_string();
    let attach = || Tracer::run(env, &scratch, &["--port", &selector]);
    let measured = ratios(args.alternations, || nginx.rate(SECONDS), attach)?;
    nginx.stop()?;
    Ok(measured)
}

/// The part `throughput`.
pub fn run(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    let mut figures = Map::new();
    let value = match env.no_python() {
        None => judged(results, "fastapi", &fastapi(env, args)?, FASTAPI),
        Some(reason) => {
            results.note(format!("throughput_ratio.fastapi: left out, {reason}"));
            Value::Null
        }
    };
    figures.insert("fastapi".to_owned(), value);
    let value = match nginx::missing() {
        None => judged(results, "nginx", &nginx(env, args)?, NGINX),
        Some(reason) => {
            results.note(format!("throughput_ratio.nginx: left out, {reason}"));
            Value::Null
        }
    };
    figures.insert("nginx".to_owned(), value);
    results.set("throughput_ratio", figures);
    Ok(())
}
