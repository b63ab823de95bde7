//! The servers that are traced: the compiled fixture, FastAPI on uvicorn, Flask on gunicorn,
//! tinygrad's.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use crate::child::Guard;
use crate::client::Client;
use crate::clock::until;
use crate::env::Env;
use crate::oracles::python::PythonRequest;
use crate::oracles::server::{self, Line};
use crate::oracles::sim::Sim;
use crate::scratch::Scratch;
use crate::timeline::read_lines;

/// How long a server may take to come up, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one may take to load a model, compile its kernels and run it once.
const WARMING: Duration = Duration::from_secs(300);

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    guard: Guard,
    port: u16,
    oracle: PathBuf,
    sim: Option<PathBuf>,
}

/// A compiled fixture.
#[derive(Debug, Clone, Copy)]
pub struct Fixture<'a> {
    /// The program's name.
    pub program: &'a str,
    /// On the simulated driver, or without any.
    pub gpu: bool,
    /// Its arguments.
    pub args: &'a [&'a str],
    /// What differs about the simulated device: variables of `tests/cudasim`.
    pub device: &'a [(&'a str, &'a str)],
}

impl Default for Fixture<'_> {
    fn default() -> Self {
        Self { program: "fixture-threaded", gpu: true, args: &[], device: &[] }
    }
}

/// Which Python server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Python {
    /// Flask on gunicorn's sync workers.
    Flask,
    /// FastAPI on uvicorn.
    FastApi,
    /// tinygrad's OpenAI-compatible server, with a tiny model.
    Tinygrad,
}

/// What a server and its driver wrote down.
#[derive(Debug, Default)]
pub struct Records<T> {
    /// The server's lines.
    pub lines: Vec<T>,
    /// The simulated driver's.
    pub sim: Sim,
}

impl Server {
    /// Starts the compiled fixture; with `gpu`, on the simulated driver.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn threaded(env: &Env, scratch: &Scratch, gpu: bool, args: &[&str]) -> Result<Self> {
        Self::threaded_at(env, scratch, &env.fixture("fixture-threaded"), gpu, args)
    }

    /// As [`Server::threaded`], from a copy of the fixture.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn threaded_at(
        env: &Env,
        scratch: &Scratch,
        program: &Path,
        gpu: bool,
        args: &[&str],
    ) -> Result<Self> {
        Self::fixture_at(env, scratch, program, &Fixture { gpu, args, ..Fixture::default() })
    }

    /// Starts a compiled fixture.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn fixture(env: &Env, scratch: &Scratch, fixture: &Fixture<'_>) -> Result<Self> {
        Self::fixture_at(env, scratch, &env.fixture(fixture.program), fixture)
    }

    fn fixture_at(
        env: &Env,
        scratch: &Scratch,
        program: &Path,
        fixture: &Fixture<'_>,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(fixture.args).arg("--exit-on-stdin-eof");
        command.envs(fixture.device.iter().copied());
        if !fixture.gpu {
            command.arg("--no-gpu");
        }
        Self::start(env, scratch, command, fixture.gpu)
    }

    /// Starts a Python server; with the simulated driver where there is one.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn python(env: &Env, scratch: &Scratch, which: Python, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(env.python.as_ref().context("no Python environment")?);
        command.arg(&env.serve).arg(match which {
            Python::Flask => "flask",
            Python::FastApi => "fastapi",
            Python::Tinygrad => "tinygrad",
        });
        command.args(args);
        if which == Python::Tinygrad {
            // So that the device's time shows beside the interpreter's.
            command.env("CUDASIM_KERNEL_BASE_NS", "50000");
        }
        let gpu = env.sim.is_some();
        if !gpu {
            command.arg("--no-gpu");
        }
        Self::start(env, scratch, command, gpu)
    }

    fn start(env: &Env, scratch: &Scratch, mut command: Command, gpu: bool) -> Result<Self> {
        let oracle = scratch.file("server.jsonl");
        // So that a second server does not take the name before this one writes.
        std::fs::write(&oracle, "")?;
        command.arg("--oracle").arg(&oracle);
        let mut sim = None;
        if gpu {
            let file = scratch.file("sim.jsonl");
            std::fs::write(&file, "")?;
            command.env("CUDASIM_ORACLE", &file);
            env.with_driver(&mut command);
            sim = Some(file);
        }
        let guard = Guard::spawn("the server", &mut command)?;
        let line =
            guard.wait_out("listening PORT", PATIENCE, |line| line.starts_with("listening "))?;
        let port = line
            .strip_prefix("listening ")
            .and_then(|port| port.trim().parse().ok())
            .with_context(|| format!("no port in {line:?}"))?;
        Ok(Self { guard, port, oracle, sim })
    }

    /// Its process; of gunicorn, the master.
    pub fn pid(&self) -> u32 {
        self.guard.pid()
    }

    /// Where it listens.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The file that the simulated driver writes, where there is one.
    pub fn device_oracle(&self) -> Option<&Path> {
        self.sim.as_deref()
    }

    /// The process itself.
    pub fn guard(&mut self) -> &mut Guard {
        &mut self.guard
    }

    /// Asks until it has answered: the first answer waits for the server to come up.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn warm_up(&self, env: &Env, scratch: &Scratch, plan: &str, requests: u64) -> Result<()> {
        let requests = requests.to_string();
        until("the server's first answer", PATIENCE, || {
            let args = ["--requests", &requests, "--connections", "4", "--plan", plan];
            let prefix = ["--rid-prefix", "warm-"];
            Client::run(env, scratch, &self.addr(), &[&args[..], &prefix[..]].concat())
                .ok()
                .filter(|run| run.summary.errors == 0)
                .map(drop)
        })
    }

    /// Waits until it takes connections, which one that warms a model up does late.
    ///
    /// # Errors
    /// Where it does not.
    pub fn wait_up(&self) -> Result<()> {
        until("the model's warm-up", WARMING, || TcpStream::connect(self.addr()).ok().map(drop))
    }

    /// Waits until so many of its threads have carried out the plan of `--warm`.
    ///
    /// # Errors
    /// Where they do not.
    pub fn wait_warm(&self, threads: usize) -> Result<()> {
        until("warm threads", PATIENCE, || {
            let text = std::fs::read_to_string(&self.oracle).ok()?;
            (text.matches(r#"{"t":"warm""#).count() >= threads).then_some(())
        })
    }

    /// Ends it and reads what it wrote down.
    ///
    /// # Errors
    /// Where it does not end, or its lines are not as described.
    pub fn finish(self) -> Result<Records<Line>> {
        self.end(server::read)
    }

    /// Ends a Python server and reads what it wrote down.
    ///
    /// # Errors
    /// As [`Server::finish`].
    pub fn finish_python(self) -> Result<Records<PythonRequest>> {
        self.end(read_lines)
    }

    fn end<T>(mut self, read: impl Fn(&Path) -> Result<Vec<T>>) -> Result<Records<T>> {
        self.guard.signal(Signal::TERM);
        self.guard.wait(PATIENCE)?;
        let lines = read(&self.oracle)?;
        let sim = match &self.sim {
            Some(file) => Sim::read(file)?,
            None => Sim::default(),
        };
        Ok(Records { lines, sim })
    }
}
