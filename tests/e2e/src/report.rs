//! The figures of `e2e oracle`: every key is there in every run.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::measure::{Share, Spread};

/// 50th and 99th percentile.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99th.
    pub p99: f64,
}

/// One scenario's figures; a key is null only where it has no meaning.
#[derive(Debug, Clone, Default, Serialize)]
#[allow(missing_docs, reason = "the names are the project's own")]
pub struct Scenario {
    pub name: String,
    pub ran: bool,
    pub reason: Option<String>,
    pub requests: u64,
    pub reported_once_ratio: Option<f64>,
    pub instant_error_us: Option<Percentiles>,
    pub stage_named_ratio: Option<f64>,
    pub false_stage_ratio: Option<f64>,
    pub gpu_bounds_contain_ratio: Option<f64>,
    pub gpu_bounds_width_ratio: Option<f64>,
    pub link_precision: Option<f64>,
    pub link_recall: Option<f64>,
    pub ambiguous_ratio: Option<f64>,
    pub unattributed_ratio: Option<f64>,
    pub phases_tile_ratio: Option<f64>,
    /// Further figures.
    pub more: Map<String, Value>,
    /// What was missed; empty where everything holds.
    pub failures: Vec<String>,
}

impl Scenario {
    /// One that could not run: it counts as not passed.
    pub fn skipped(name: &str, reason: String) -> Self {
        Self { name: name.to_owned(), reason: Some(reason), ..Self::default() }
    }

    /// Whether it ran and everything holds.
    pub fn passed(&self) -> bool {
        self.ran && self.failures.is_empty()
    }

    /// Notes what was missed where `holds` is false.
    pub fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(what());
        }
    }

    /// Demands that a share is at least `least`; nothing to judge is a miss.
    pub fn demand_share(&mut self, what: &str, share: Share, least: f64) {
        let ratio = share.ratio().unwrap_or(0.0);
        self.demand(ratio >= least, || {
            format!("{what}: {} of {} ({ratio:.5}), wanted {least}", share.good, share.all)
        });
    }

    /// Adds a figure.
    pub fn add(&mut self, name: &str, value: impl Into<Value>) {
        self.more.insert(name.to_owned(), value.into());
    }

    /// Adds a share with the lower end of its 95 % interval.
    pub fn add_share(&mut self, name: &str, share: Share) {
        let value = json!({
            "ratio": share.ratio(), "low95": share.low95(), "good": share.good, "all": share.all,
        });
        self.add(name, value);
    }

    /// Adds a distribution.
    pub fn add_spread(&mut self, name: &str, spread: Option<Spread>) {
        self.add(name, json!(spread));
    }
}

impl From<Spread> for Percentiles {
    fn from(spread: Spread) -> Self {
        Self { p50: spread.p50, p99: spread.p99 }
    }
}

/// Writes a document where it is wanted.
///
/// # Errors
/// Where it cannot be written.
pub fn write_json(file: Option<&Path>, value: &Value) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(file, text + "\n").with_context(|| file.display().to_string())
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.3}%", ratio * 100.0))
}

/// The scenarios as a table.
pub fn table(scenarios: &[Scenario]) -> String {
    let mut out = format!(
        "{:<24}{:>9}{:>10}{:>16}{:>10}{:>8}{:>11}{:>10}{:>14}{:>9}  verdict\n",
        "scenario",
        "requests",
        "once",
        "error p50/p99 µs",
        "bounds",
        "width",
        "precision",
        "recall",
        "unattributed",
        "tiles"
    );
    for one in scenarios {
        let error = one
            .instant_error_us
            .map_or_else(|| "-".to_owned(), |e| format!("{:.1}/{:.1}", e.p50, e.p99));
        let width = one
            .gpu_bounds_width_ratio
            .map_or_else(|| "-".to_owned(), |width| format!("{width:.2}"));
        let verdict = match (&one.reason, one.passed()) {
            (Some(reason), _) => format!("SKIPPED: {reason}"),
            (None, true) => "passed".to_owned(),
            (None, false) => "FAILED".to_owned(),
        };
        let _ = writeln!(
            out,
            "{:<24}{:>9}{:>10}{:>16}{:>10}{:>8}{:>11}{:>10}{:>14}{:>9}  {verdict}",
            one.name,
            one.requests,
            percent(one.reported_once_ratio),
            error,
            percent(one.gpu_bounds_contain_ratio),
            width,
            percent(one.link_precision),
            percent(one.link_recall),
            percent(one.unattributed_ratio),
            percent(one.phases_tile_ratio),
        );
        for failure in &one.failures {
            let _ = writeln!(out, "    {failure}");
        }
    }
    out
}
