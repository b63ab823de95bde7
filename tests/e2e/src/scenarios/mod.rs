//! Scenarios: a server, its clients, spanprobe, and what must hold.

pub mod compiled;
pub mod handed;
pub mod plans;
pub mod python;
mod reported;
pub mod stalls;
mod stamped;
pub mod tinygrad;

use anyhow::Result;

use crate::env::Env;
use crate::report::Scenario;

/// How to run them.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Requests of each scenario.
    pub requests: u64,
}

/// A scenario by its name.
pub struct Named {
    /// Its name.
    pub name: &'static str,
    run: fn(&Env, &str, Size) -> Result<Scenario>,
    /// Why it cannot run here for a reason of its own.
    missing: fn(&Env) -> Option<String>,
}

const fn compiled(name: &'static str, run: fn(&Env, &str, Size) -> Result<Scenario>) -> Named {
    Named { name, run, missing: |_| None }
}

const fn python(name: &'static str, run: fn(&Env, &str, Size) -> Result<Scenario>) -> Named {
    Named { name, run, missing: Env::no_python }
}

const fn tinygrad(name: &'static str, run: fn(&Env, &str, Size) -> Result<Scenario>) -> Named {
    Named { name, run, missing: Env::no_tinygrad }
}

/// Every scenario, in the order in which they run.
pub const ALL: &[Named] = &[
    compiled("thread-per-connection", compiled::thread_per_connection),
    compiled("saturated", compiled::saturated),
    compiled("sse", compiled::sse),
    compiled("late-attach", compiled::late_attach),
    compiled("threadpool-light", handed::run),
    compiled("threadpool-saturated", handed::run),
    compiled("threadpool-pipe", handed::run),
    compiled("threadpool-sem", handed::run),
    compiled("event-loop", handed::run),
    compiled("mutex", handed::run),
    compiled("dependency", handed::run),
    compiled("fan", handed::run),
    compiled("spin", handed::run),
    compiled("tokio", handed::run),
    compiled("stall-receive", stalls::stalled),
    compiled("stall-queue", stalls::stalled),
    compiled("stall-cpu", stalls::stalled),
    compiled("stall-lock", stalls::stalled),
    compiled("stall-dependency", stalls::stalled),
    compiled("stall-h2d", stalls::stalled),
    compiled("stall-kernel", stalls::stalled),
    compiled("stall-d2h", stalls::stalled),
    compiled("stall-gpu", stalls::stalled),
    compiled("stall-send", stalls::stalled),
    compiled("two-stalls", stalls::stalled),
    compiled("no-stall", stalls::none),
    python("fastapi-4", python::kept),
    python("fastapi-16", python::kept),
    python("fastapi-32", python::kept),
    python("fastapi-64", python::kept),
    python("fastapi-pool-4", python::kept),
    python("asyncio-gather", python::kept),
    python("asyncio-to-thread", python::kept),
    python("asyncio-inline", python::kept),
    python("gunicorn-threads", python::kept),
    python("uvicorn", python::kept),
    python("uvicorn-alone", python::kept),
    python("uvicorn-sse", python::kept),
    python("gunicorn", python::gunicorn),
    tinygrad("tinygrad", tinygrad::late),
    tinygrad("tinygrad-early", tinygrad::early),
];

/// The names, as `--help` lists them.
pub fn names() -> String {
    let names: Vec<&str> = ALL.iter().map(|scenario| scenario.name).collect();
    format!("Scenarios: {}", names.join(", "))
}

impl Named {
    /// The scenario with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Runs it; one that cannot run here says why, one that breaks off has failed.
    pub fn run(&self, env: &Env, size: Size) -> Scenario {
        let missing = env.cannot_trace().or_else(|| env.no_driver());
        let missing = missing.or_else(|| (self.missing)(env));
        if let Some(reason) = missing {
            return Scenario::skipped(self.name, reason);
        }
        match (self.run)(env, self.name, size) {
            Ok(scenario) => scenario,
            Err(error) => Scenario {
                name: self.name.to_owned(),
                ran: true,
                failures: vec![format!("broke off: {error:#}")],
                ..Scenario::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenarios_that_are_promised_are_there_once() {
        for name in [
            "thread-per-connection",
            "threadpool-light",
            "threadpool-saturated",
            "event-loop",
            "sse",
            "late-attach",
            "stall-receive",
            "stall-queue",
            "stall-cpu",
            "stall-lock",
            "stall-dependency",
            "stall-h2d",
            "stall-kernel",
            "stall-d2h",
            "stall-gpu",
            "stall-send",
            "two-stalls",
            "no-stall",
            "fastapi-4",
            "fastapi-16",
            "fastapi-32",
            "fastapi-64",
            "fastapi-pool-4",
            "asyncio-gather",
            "asyncio-to-thread",
            "gunicorn",
            "gunicorn-threads",
            "mutex",
            "dependency",
            "tokio",
            "spin",
            "fan",
            "tinygrad",
            "tinygrad-early",
        ] {
            assert_eq!(ALL.iter().filter(|scenario| scenario.name == name).count(), 1, "{name}");
            assert!(names().contains(name), "{name}");
        }
    }
}
