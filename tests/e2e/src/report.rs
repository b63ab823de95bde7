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

    /// Several runs as one: ratios by the requests of each, distances of the worst. The runs' further
    /// figures stand under their numbers.
    pub fn joined(name: &str, parts: Vec<Self>) -> Self {
        let ratio = |of: fn(&Self) -> Option<f64>| {
            let known: Vec<(f64, f64)> =
                parts.iter().filter_map(|part| Some((of(part)?, part.requests as f64))).collect();
            let requests: f64 = known.iter().map(|(_, requests)| requests).sum();
            let sum: f64 = known.iter().map(|(ratio, requests)| ratio * requests).sum();
            (requests > 0.0).then(|| sum / requests)
        };
        let worst = |of: fn(Percentiles) -> f64| {
            let errors = parts.iter().filter_map(|part| part.instant_error_us.map(of));
            errors.reduce(f64::max)
        };
        let mut joined = Self {
            name: name.to_owned(),
            ran: parts.iter().all(|part| part.ran),
            requests: parts.iter().map(|part| part.requests).sum(),
            reported_once_ratio: ratio(|part| part.reported_once_ratio),
            instant_error_us: worst(|error| error.p50)
                .zip(worst(|error| error.p99))
                .map(|(p50, p99)| Percentiles { p50, p99 }),
            gpu_bounds_contain_ratio: ratio(|part| part.gpu_bounds_contain_ratio),
            gpu_bounds_width_ratio: ratio(|part| part.gpu_bounds_width_ratio),
            link_precision: ratio(|part| part.link_precision),
            link_recall: ratio(|part| part.link_recall),
            ambiguous_ratio: ratio(|part| part.ambiguous_ratio),
            unattributed_ratio: ratio(|part| part.unattributed_ratio),
            phases_tile_ratio: ratio(|part| part.phases_tile_ratio),
            ..Self::default()
        };
        for (number, part) in (1..).zip(parts) {
            joined.add(&format!("run_{number}"), part.more);
            joined.failures.extend(part.failures);
        }
        joined
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

/// The table's columns but for the name and the verdict, with their widths.
const COLUMNS: [(&str, usize); 12] = [
    ("requests", 9),
    ("once", 10),
    ("error p50/p99 µs", 18),
    ("named", 10),
    ("false", 9),
    ("bounds", 10),
    ("width", 8),
    ("precision", 11),
    ("recall", 10),
    ("ambiguous", 11),
    ("unattributed", 14),
    ("tiles", 10),
];

/// One scenario's cells, a column each.
fn cells(one: &Scenario) -> [String; COLUMNS.len()] {
    let dash = || "-".to_owned();
    let error = |e: Percentiles| format!("{:.1}/{:.1}", e.p50, e.p99);
    [
        one.requests.to_string(),
        percent(one.reported_once_ratio),
        one.instant_error_us.map_or_else(dash, error),
        percent(one.stage_named_ratio),
        percent(one.false_stage_ratio),
        percent(one.gpu_bounds_contain_ratio),
        one.gpu_bounds_width_ratio.map_or_else(dash, |width| format!("{width:.2}")),
        percent(one.link_precision),
        percent(one.link_recall),
        percent(one.ambiguous_ratio),
        percent(one.unattributed_ratio),
        percent(one.phases_tile_ratio),
    ]
}

/// The scenarios as a table.
pub fn table(scenarios: &[Scenario]) -> String {
    let mut out = format!("{:<24}", "scenario");
    for (name, width) in COLUMNS {
        let _ = write!(out, "{name:>width$}");
    }
    out.push_str("  verdict\n");
    for one in scenarios {
        let _ = write!(out, "{:<24}", one.name);
        for (cell, (_, width)) in cells(one).iter().zip(COLUMNS) {
            let _ = write!(out, "{cell:>width$}");
        }
        let _ = match (&one.reason, one.passed()) {
            (Some(reason), _) => writeln!(out, "  SKIPPED: {reason}"),
            (None, true) => writeln!(out, "  passed"),
            (None, false) => writeln!(out, "  FAILED"),
        };
        for failure in &one.failures {
            let _ = writeln!(out, "    {failure}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_there_in_every_run() {
        let value = serde_json::to_value(Scenario::skipped("x", "because".to_owned())).unwrap();
        for key in [
            "name",
            "ran",
            "reason",
            "requests",
            "reported_once_ratio",
            "instant_error_us",
            "stage_named_ratio",
            "false_stage_ratio",
            "gpu_bounds_contain_ratio",
            "gpu_bounds_width_ratio",
            "link_precision",
            "link_recall",
            "ambiguous_ratio",
            "unattributed_ratio",
            "phases_tile_ratio",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn runs_are_joined_by_their_requests() {
        let part = |requests, recall, p99| {
            let error = Some(Percentiles { p50: 1.0, p99 });
            let link_recall = Some(recall);
            Scenario { requests, link_recall, instant_error_us: error, ..Scenario::default() }
        };
        let mut bad = part(300, 1.0, 9.0);
        bad.failures.push("something".to_owned());
        let joined = Scenario::joined("x", vec![part(100, 0.6, 12.0), bad]);
        assert_eq!((joined.requests, joined.link_recall), (400, Some(0.9)));
        assert_eq!(joined.instant_error_us.unwrap().p99, 12.0);
        assert_eq!(joined.link_precision, None);
        assert_eq!(joined.failures, ["something"]);
    }

    #[test]
    fn the_table_names_what_was_missed() {
        let mut one = Scenario { name: "x".to_owned(), ran: true, ..Scenario::default() };
        one.stage_named_ratio = Some(0.5);
        one.demand_share("named right", Share { good: 1, all: 2 }, 1.0);
        let shown = table(&[one]);
        assert!(shown.contains("50.000%") && shown.contains("FAILED"), "{shown}");
        assert!(shown.contains("named right: 1 of 2"), "{shown}");
    }
}
