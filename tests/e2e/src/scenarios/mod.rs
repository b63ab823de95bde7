//! Scenarios: a server, its clients, spanprobe, and what must hold.

pub mod compiled;
pub mod plans;
pub mod python;
mod reported;

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
    needs_python: bool,
}

/// Every scenario, in the order in which they run.
pub const ALL: &[Named] = &[
    Named {
        name: "thread-per-connection",
        run: compiled::thread_per_connection,
        needs_python: false,
    },
    Named { name: "saturated", run: compiled::saturated, needs_python: false },
    Named { name: "sse", run: compiled::sse, needs_python: false },
    Named { name: "late-attach", run: compiled::late_attach, needs_python: false },
    Named { name: "uvicorn", run: python::uvicorn, needs_python: true },
    Named { name: "uvicorn-alone", run: python::uvicorn_alone, needs_python: true },
    Named { name: "uvicorn-sse", run: python::uvicorn_sse, needs_python: true },
    Named { name: "gunicorn", run: python::gunicorn, needs_python: true },
];

impl Named {
    /// The scenario with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Runs it; one that cannot run here says why, one that breaks off has failed.
    pub fn run(&self, env: &Env, size: Size) -> Scenario {
        let python = if self.needs_python { env.no_python() } else { None };
        let missing = env.cannot_trace().or_else(|| env.no_driver()).or(python);
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
