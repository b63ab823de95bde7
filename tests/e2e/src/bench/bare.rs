//! The fixture's bare launch loop: ns per launch call, a round at a time.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::child::Guard;
use crate::env::Env;

const PATIENCE: Duration = Duration::from_secs(120);

/// A loop that waits for its next round.
pub struct BareLoop {
    guard: Guard,
}

#[derive(Deserialize)]
struct Round {
    launches: u64,
    ns_min: f64,
}

impl BareLoop {
    /// Starts it. With `plain`, every launch takes another stream than the last, so that no two
    /// coalesce.
    pub fn start(env: &Env, plain: bool) -> Result<Self> {
        let mut command = Command::new(env.fixture("fixture-threaded"));
        command.args(["--bare-launch-loop", "20000", "--bare-repeats", "11"]);
        if plain {
            command.arg("--bare-alternate");
        }
        env.with_driver(&mut command);
        let guard = Guard::spawn("the launch loop", &mut command)?;
        guard.next_out("that it is ready", PATIENCE)?;
        Ok(Self { guard })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.guard.pid()
    }

    /// Runs a round: launches made, and ns per launch of the best of its repeats: what else runs on
    /// the machine only adds.
    pub fn round(&mut self) -> Result<(u64, f64)> {
        self.guard.say("go")?;
        let line = self.guard.next_out("a round", PATIENCE)?;
        let round: Round = serde_json::from_str(&line).context(line)?;
        Ok((round.launches, round.ns_min))
    }
}
