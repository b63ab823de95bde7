//! Small servers, one system call family or one protocol each (`python/peers.py`).

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::child::Guard;
use crate::env::Env;

/// One of them.
#[derive(Debug)]
pub struct Peer {
    /// The process.
    pub guard: Guard,
    /// Port, or path of the Unix socket.
    pub at: String,
    /// Processes that serve.
    pub pids: Vec<u32>,
}

/// A Python with nothing but its standard library.
fn python() -> Command {
    Command::new("python3")
}

/// Why they cannot run here.
pub fn missing() -> Option<String> {
    let found = python().arg("--version").output().is_ok_and(|output| output.status.success());
    (!found).then(|| "there is no python3".to_owned())
}

impl Peer {
    /// Starts one.
    ///
    /// # Errors
    /// Where it does not come up.
    pub fn start(env: &Env, args: &[&str]) -> Result<Self> {
        let mut command = python();
        command.arg(env.root.join("tests/e2e/python/peers.py")).args(args);
        env.with_driver(&mut command);
        let guard = Guard::spawn("a small server", &mut command)?;
        let listens = |line: &str| line.starts_with("listening ");
        let line = guard.wait_out("listening", Duration::from_secs(30), listens)?;
        let mut words = line.split_whitespace().skip(1);
        let at = words.next().context("it does not say where")?.to_owned();
        let pids = words.map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { guard, at, pids })
    }

    /// The port.
    ///
    /// # Errors
    /// Where it listens on none.
    pub fn port(&self) -> Result<u16> {
        self.at.parse().with_context(|| self.at.clone())
    }
}
