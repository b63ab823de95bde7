//! A real Prometheus server that scrapes the agent, and what it answers when asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use serde::Deserialize;

use crate::child::Guard;
use crate::clock::until;
use crate::env::Env;
use crate::scratch::Scratch;

/// How long it may take to come up, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// One that runs.
#[derive(Debug)]
pub struct Prometheus {
    guard: Guard,
    /// `127.0.0.1:PORT`.
    address: String,
}

/// One value, with its labels.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Labels, the name among them as `__name__`.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: T,
}

#[derive(Deserialize)]
struct Vector {
    result: Vec<Element>,
}

#[derive(Deserialize)]
struct Element {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

impl Prometheus {
    /// Starts it and lets it scrape `HOST:PORT` twice a second; returns when it does.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn start(env: &Env, scratch: &Scratch, target: &str) -> Result<Self> {
        let config = scratch.file("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\nscrape_configs:\n\
             - job_name: spanprobe\n  static_configs:\n  - targets: ['{target}']\n"
        );
        fs::write(&config, text)?;
        let program = env.prometheus.as_ref().context("no Prometheus server")?;
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", scratch.file("prometheus").display()))
            .arg("--web.listen-address=127.0.0.1:0");
        let guard = Guard::spawn("Prometheus", &mut command)?;
        let listens = |line: &str| line.contains("\"Listening on\"") && line.contains("address=");
        let line = guard.wait_err("where it listens", PATIENCE, listens)?;
        let address = line
            .split_once("address=")
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .with_context(|| format!("no address in {line:?}"))?
            .to_owned();
        guard
            .wait_err("that it is ready", PATIENCE, |line| line.contains("is ready to receive"))?;
        let prometheus = Self { guard, address };
        // It takes up its targets a few seconds later.
        prometheus.until("up", |up| up == 1.0)?;
        Ok(prometheus)
    }

    /// Asks for the present value of an expression.
    ///
    /// # Errors
    /// Where it does not answer, or finds the expression wrong.
    pub fn ask(&self, expression: &str) -> Result<Vec<Sample>> {
        let path = format!("/api/v1/query?query={}", quoted(expression));
        let vector: Vector = answer(&http_get(&self.address, &path)?)?;
        let samples = vector.result.into_iter().map(|element| {
            let value = element.value.1.parse().context("a value that is no number")?;
            Ok(Sample { labels: element.metric, value })
        });
        samples.collect()
    }

    /// Asks for one value; `None` where there is none.
    ///
    /// # Errors
    /// As [`Prometheus::ask`], and where there are several.
    pub fn value(&self, expression: &str) -> Result<Option<f64>> {
        match self.ask(expression)?.as_slice() {
            [] => Ok(None),
            [sample] => Ok(Some(sample.value)),
            several => bail!("{expression}: {} values", several.len()),
        }
    }

    /// Asks until an expression has a value that will do.
    ///
    /// # Errors
    /// Where it does not get one; with the last that it had.
    pub fn until(&self, expression: &str, wanted: impl Fn(f64) -> bool) -> Result<f64> {
        let mut last = None;
        let found = until(expression, PATIENCE, || {
            last = self.value(expression).ok()?.or(last);
            last.filter(|value| wanted(*value))
        });
        found.with_context(|| format!("{expression}: {last:?} at last"))
    }

    /// Names of all metrics.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn names(&self) -> Result<Vec<String>> {
        answer(&http_get(&self.address, "/api/v1/label/__name__/values")?)
    }

    /// Ends it.
    ///
    /// # Errors
    /// Where it does not end.
    pub fn stop(mut self) -> Result<()> {
        self.guard.signal(Signal::TERM);
        self.guard.wait(PATIENCE).map(drop)
    }
}

fn answer<T: for<'a> Deserialize<'a>>(body: &str) -> Result<T> {
    let answer: Answer<T> = serde_json::from_str(body).with_context(|| body.to_owned())?;
    Ok(answer.data)
}

/// The body of an answer of `HOST:PORT` that is 200.
///
/// # Errors
/// Where there is none.
pub fn http_get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // 1.0: the answer ends with the connection, and is not chunked.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| text.clone())?;
    let first = head.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) != Some("200") {
        bail!("{path}: {first}: {body}");
    }
    Ok(body.to_owned())
}

fn quoted(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}
