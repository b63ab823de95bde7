//! What the integration tests share.
#![allow(dead_code, reason = "each test uses its part")]

use e2e::env::Env;

/// Needs of a test beyond spanprobe itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    Driver,
    Nvml,
    Python,
    /// The driver, and a Prometheus server.
    Prometheus,
    /// The driver, and tinygrad's server.
    Tinygrad,
}

/// Where things are; `None`, said loudly, where the test cannot run here.
pub fn env(needs: Needs) -> Option<Env> {
    let env = Env::new().expect("this program knows where it lies");
    let driver = if needs == Needs::Nothing { None } else { env.no_driver() };
    let own = match needs {
        Needs::Nothing | Needs::Driver => None,
        Needs::Python => env.no_python(),
        Needs::Nvml => env.no_nvml(),
        Needs::Prometheus => env.no_prometheus(),
        Needs::Tinygrad => env.no_tinygrad(),
    };
    match env.cannot_trace().or(driver).or(own) {
        None => Some(env),
        Some(reason) => {
            skipped(&reason);
            None
        }
    }
}

/// Says that a test does not run here, and why.
pub fn skipped(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}
