//! The load client, whose record says which requests there were.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::child::Guard;
use crate::env::Env;
use crate::oracles::client::{ClientRequest, Summary};
use crate::scratch::Scratch;
use crate::timeline::read_lines;

/// Longest run of a client.
const LONGEST: Duration = Duration::from_secs(900);

/// A client that has been started.
#[derive(Debug)]
pub struct Client {
    guard: Guard,
    oracle: PathBuf,
}

/// What it saw.
#[derive(Debug, Clone)]
pub struct ClientRun {
    /// Its requests.
    pub requests: Vec<ClientRequest>,
    /// Its figures.
    pub summary: Summary,
}

impl Client {
    /// Starts it.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(env: &Env, scratch: &Scratch, addr: &str, args: &[&str]) -> Result<Self> {
        let oracle = scratch.file("client.jsonl");
        std::fs::write(&oracle, "")?;
        let mut command = Command::new(env.fixture("fixture-client"));
        command.args(["--addr", addr]).args(args).arg("--oracle").arg(&oracle);
        Ok(Self { guard: Guard::spawn("the client", &mut command)?, oracle })
    }

    /// Starts the real `openai` client (`openai_client.py`).
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn openai(env: &Env, scratch: &Scratch, addr: &str, args: &[&str]) -> Result<Self> {
        let oracle = scratch.file("client.jsonl");
        std::fs::write(&oracle, "")?;
        let mut command = Command::new(env.python.as_ref().context("no Python environment")?);
        command.arg(env.serve.with_file_name("openai_client.py"));
        command.args(["--addr", addr]).args(args).arg("--oracle").arg(&oracle);
        Ok(Self { guard: Guard::spawn("the openai client", &mut command)?, oracle })
    }

    /// Starts it and waits until all its connections are open; [`Client::go`] lets it send.
    ///
    /// # Errors
    /// Where it does not connect.
    pub fn open_first(env: &Env, scratch: &Scratch, addr: &str, args: &[&str]) -> Result<Self> {
        let args = [args, &["--open-first"]].concat();
        let client = Self::start(env, scratch, addr, &args)?;
        let connected = |line: &str| line == "connected";
        client.guard.wait_out("connected", Duration::from_secs(30), connected)?;
        Ok(client)
    }

    /// Lets a client that waits send.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn go(&mut self) -> Result<()> {
        self.guard.say("go")
    }

    /// Its process.
    pub fn guard(&mut self) -> &mut Guard {
        &mut self.guard
    }

    /// Waits for its end and reads what it wrote down. Whether all its requests succeeded stands in
    /// the summary.
    ///
    /// # Errors
    /// Where it does not end, or could not run.
    pub fn finish(mut self) -> Result<ClientRun> {
        let status = self.guard.wait(LONGEST)?;
        ensure!(
            matches!(status.code(), Some(0 | 1)),
            "the client ended with {status}: {}",
            self.guard.err()
        );
        let out = self.guard.out();
        let last = out.lines().last().context("the client said nothing")?;
        let summary = serde_json::from_str(last).with_context(|| last.to_owned())?;
        Ok(ClientRun { requests: read_lines(&self.oracle)?, summary })
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// As [`Client::finish`].
    pub fn run(env: &Env, scratch: &Scratch, addr: &str, args: &[&str]) -> Result<ClientRun> {
        Self::start(env, scratch, addr, args)?.finish()
    }
}

impl ClientRun {
    /// Every request succeeded.
    ///
    /// # Errors
    /// Where one did not.
    pub fn all_right(&self) -> Result<()> {
        let Summary { errors, requests, first_error, .. } = &self.summary;
        ensure!(*errors == 0, "{errors} of {requests} requests failed: {first_error:?}");
        Ok(())
    }
}
