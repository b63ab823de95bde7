//! What a traced server loses, and what an untraced one beside it loses: rates of the same client,
//! with and without, alternating which comes first.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::{Map, Value, json};

use super::{Args, Results};
use crate::child::Guard;
use crate::client::Client;
use crate::clock::until;
use crate::env::Env;
use crate::measure::Interval;
use crate::scratch::Scratch;
use crate::server::{Python, Server};
use crate::tracer::Tracer;

/// Length of one measurement, s.
const SECONDS: &str = "2";
const INFER: &str = r#"json:/infer:{"launches":5,"kernel_ns":20000,"reply":200}"#;

/// Rates with ÷ rates without.
fn ratios(
    alternations: usize,
    mut rate: impl FnMut() -> Result<f64>,
    mut attach: impl FnMut() -> Result<Tracer>,
) -> Result<Vec<f64>> {
    let mut ratios = Vec::new();
    for round in 0..alternations {
        let first = if round % 2 == 1 { Some(rate()?) } else { None };
        let tracer = attach()?;
        let traced = rate()?;
        tracer.stop()?;
        let untraced = first.map_or_else(&mut rate, Ok)?;
        ratios.push(traced / untraced);
    }
    Ok(ratios)
}

fn as_json(ratios: &[f64]) -> Value {
    json!(Interval::of(ratios.iter().copied()))
}

fn fastapi(env: &Env, args: &Args) -> Result<Value> {
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
    Ok(as_json(&ratios(args.alternations, rate, attach)?))
}

/// nginx with an answer of its own, and the port that it listens on.
fn start_nginx(scratch: &Scratch) -> Result<(Guard, u16)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let folder: &Path = scratch.path();
    let configuration: PathBuf = folder.join("nginx.conf");
    let here = folder.display();
    let text = format!(
        "worker_processes 1;\npid {here}/nginx.pid;\nerror_log {here}/error.log;\nuser root;\n\
         events {{ worker_connections 256; }}\nhttp {{\n  access_log off;\n  \
         keepalive_requests 1000000000;\n  client_body_temp_path {here}/body;\n  \
         proxy_temp_path {here}/proxy;\n  fastcgi_temp_path {here}/fastcgi;\n  \
         uwsgi_temp_path {here}/uwsgi;\n  scgi_temp_path {here}/scgi;\n  server {{\n    \
         listen 127.0.0.1:{port};\n    location / {{ return 200 \"hello\\n\"; }}\n  }}\n}}\n"
    );
    std::fs::write(&configuration, text)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder).arg("-c").arg(&configuration).args(["-g", "daemon off;"]);
    let guard = Guard::spawn("nginx", &mut command)?;
    until("nginx", Duration::from_secs(20), || {
        std::net::TcpStream::connect(("127.0.0.1", port)).ok().map(drop)
    })?;
    Ok((guard, port))
}

/// Requests per second that wrk reaches.
fn wrk(port: u16) -> Result<f64> {
    let url = format!("http://127.0.0.1:{port}/");
    let duration = format!("-d{SECONDS}s");
    let output = Command::new("wrk").args(["-t1", "-c16", &duration, &url]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find_map(|line| line.trim().strip_prefix("Requests/sec:"))
        .and_then(|rate| rate.trim().parse().ok())
        .with_context(|| format!("wrk said {text}"))
}

fn nginx(env: &Env, args: &Args) -> Result<Value> {
    let scratch = Scratch::new("nginx")?;
    let (mut guard, port) = start_nginx(&scratch)?;
    let selector = port.to_string();
    let attach = || Tracer::run(env, &scratch, &["--port", &selector]);
    let measured = ratios(args.alternations, || wrk(port), attach)?;
    guard.signal(Signal::TERM);
    guard.wait(Duration::from_secs(20))?;
    Ok(as_json(&measured))
}

fn there(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok()
}

/// The part `throughput`.
pub fn run(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    let mut figures = Map::new();
    let value = match env.no_python() {
        None => fastapi(env, args)?,
        Some(reason) => {
            results.note(format!("throughput_ratio.fastapi: left out, {reason}"));
            Value::Null
        }
    };
    figures.insert("fastapi".to_owned(), value);
    let value = if there("nginx", "-v") && there("wrk", "-v") {
        nginx(env, args)?
    } else {
        results.note("throughput_ratio.nginx: left out, there is no nginx or no wrk".into());
        Value::Null
    };
    figures.insert("nginx".to_owned(), value);
    results.set("throughput_ratio", figures);
    Ok(())
}

/// The part `unrelated`: a server that is not traced, while another one is.
pub fn unrelated(env: &Env, args: &Args, results: &mut Results) -> Result<()> {
    let scratch = Scratch::new("unrelated")?;
    let target = Server::threaded(env, &scratch, true, &[])?;
    let other = Server::threaded(env, &scratch, false, &[])?;
    let load = ["--connections", "1", "--for", SECONDS, "--plan", "healthz"];
    let rate = || {
        let run = Client::run(env, &scratch, &other.addr(), &load)?;
        run.all_right()?;
        Ok(run.summary.rps)
    };
    let pid = target.pid().to_string();
    let attach = || Tracer::run(env, &scratch, &["--pid", &pid]);
    let measured = ratios(args.alternations, rate, attach)?;
    results.set("unrelated_ratio", as_json(&measured));
    Ok(())
}
