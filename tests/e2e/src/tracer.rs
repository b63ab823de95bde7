//! spanprobe, attached as a user attaches it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use crate::child::Guard;
use crate::clock::now_ns;
use crate::env::Env;
use crate::scratch::Scratch;
use crate::session::Session;
use crate::timeline::{Timeline, read_lines};

/// How long attaching may take on a busy machine.
const ATTACHING: Duration = Duration::from_secs(60);
/// How long the end may take: everything that waits is handed out.
const ENDING: Duration = Duration::from_secs(120);

/// A spanprobe that runs.
#[derive(Debug)]
pub struct Tracer {
    guard: Guard,
    jsonl: PathBuf,
    control: PathBuf,
    session: Option<PathBuf>,
    ready_ns: u64,
}

/// What it reported.
#[derive(Debug)]
pub struct Traced {
    /// Requests that ended.
    pub timelines: Vec<Timeline>,
    /// Requests that were open when it ended.
    pub open: Vec<Timeline>,
    /// The recording, where one was made.
    pub session: Option<Session>,
    /// Its file.
    pub session_file: Option<PathBuf>,
    /// The JSON lines as they were written.
    pub jsonl: PathBuf,
    /// What it printed.
    pub out: String,
    /// Its notes.
    pub err: String,
    /// When it said that it traces, ns of `CLOCK_MONOTONIC`.
    pub ready_ns: u64,
}

impl Tracer {
    /// `spanprobe run SELECTORS…`; returns when it says whom it traces.
    ///
    /// # Errors
    /// Where it does not say so.
    pub fn run(env: &Env, scratch: &Scratch, args: &[&str]) -> Result<Self> {
        Self::start(env, scratch, args, &[], None)
    }

    /// As [`Tracer::run`], with variables in its environment.
    ///
    /// # Errors
    /// Where it does not say whom it traces.
    pub fn run_with(
        env: &Env,
        scratch: &Scratch,
        args: &[&str],
        vars: &[(&str, &str)],
    ) -> Result<Self> {
        Self::start(env, scratch, args, vars, None)
    }

    /// `spanprobe record SELECTORS…`; returns when it says whom it traces.
    ///
    /// # Errors
    /// Where it does not say so.
    pub fn record(env: &Env, scratch: &Scratch, args: &[&str]) -> Result<Self> {
        Self::start(env, scratch, args, &[], Some(scratch.file("session.spr")))
    }

    fn start(
        env: &Env,
        scratch: &Scratch,
        args: &[&str],
        vars: &[(&str, &str)],
        session: Option<PathBuf>,
    ) -> Result<Self> {
        let jsonl = scratch.file("timelines.jsonl");
        let mut command = Command::new(&env.spanprobe);
        command.arg(if session.is_some() { "record" } else { "run" });
        command.envs(vars.iter().copied());
        command.args(args).args(["--quiet", "--beside"]).arg("--jsonl").arg(&jsonl);
        // What is judged is what tracing sees, not what it leaves out at loads far above a budget.
        if !args.contains(&"--budget") {
            command.args(["--budget", "0"]);
        }
        let control = scratch.file("control.sock");
        command.arg("--control").arg(&control);
        if let Some(session) = &session {
            command.arg("--output").arg(session);
        }
        let guard = Guard::spawn("spanprobe", &mut command)?;
        let tracing = |line: &str| {
            line.contains("tracing ") && line.contains(" process")
                || line.contains("no process matches")
        };
        guard.wait_err("that it traces", ATTACHING, tracing)?;
        Ok(Self { guard, jsonl, control, session, ready_ns: now_ns() })
    }

    /// Its process.
    pub fn guard(&mut self) -> &mut Guard {
        &mut self.guard
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.guard.pid()
    }

    /// The file that it writes timelines to.
    pub fn jsonl(&self) -> &Path {
        &self.jsonl
    }

    /// Asks it as `spanprobe why`, `status`, `pause` and `resume` do, and reads the JSON answer.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn ask(&self, env: &Env, args: &[&str]) -> Result<serde_json::Value> {
        let mut command = Command::new(&env.spanprobe);
        command.args(args).arg("--json").arg("--control").arg(&self.control);
        let answer = command.output().context("spanprobe cannot be run")?;
        ensure!(
            answer.status.success(),
            "spanprobe {args:?}: {}",
            String::from_utf8_lossy(&answer.stderr)
        );
        serde_json::from_slice(&answer.stdout).context("the answer is not JSON")
    }

    /// The socket on which it answers.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Ends it as Ctrl-C does and reads what it reported.
    ///
    /// # Errors
    /// Where it does not end with 0, or its lines are not as described.
    pub fn stop(mut self) -> Result<Traced> {
        self.guard.signal(Signal::INT);
        self.finish()
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// As [`Tracer::stop`].
    pub fn finish(mut self) -> Result<Traced> {
        let status = self.guard.wait(ENDING)?;
        ensure!(
            status.success(),
            "spanprobe ended with {status}:\n{}{}",
            self.guard.out(),
            self.guard.err()
        );
        let lines: Vec<Timeline> = read_lines(&self.jsonl)?;
        let (open, timelines) = lines.into_iter().partition(|timeline| timeline.open);
        let session = self.session.as_deref().map(Session::read).transpose()?;
        Ok(Traced {
            timelines,
            open,
            session,
            session_file: self.session.clone(),
            jsonl: self.jsonl.clone(),
            out: self.guard.out(),
            err: self.guard.err(),
            ready_ns: self.ready_ns,
        })
    }
}

impl Traced {
    /// The recording.
    ///
    /// # Errors
    /// Where none was made.
    pub fn session(&self) -> Result<&Session> {
        self.session.as_ref().context("nothing was recorded")
    }
}
