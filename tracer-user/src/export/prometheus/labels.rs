//! Labels, and how many values each may take: whatever names the traffic brings, the number of
//! series is bounded. What finds no place is `other`, and counted.

use std::{collections::HashMap, sync::Arc};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

/// What stands for the names beyond a cap.
pub(super) const OTHER: &str = "other";
/// What stands for a name that is not known.
pub(super) const UNKNOWN: &str = "unknown";

/// Of a service, or of a process: processes are named by their executable, as services are.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ServiceLabels {
    pub(super) service: Arc<str>,
}

/// Of a route.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct RouteLabels {
    pub(super) service: Arc<str>,
    pub(super) route: Arc<str>,
}

/// Of requests that ended in one way.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct OutcomeLabels {
    pub(super) service: Arc<str>,
    pub(super) route: Arc<str>,
    pub(super) outcome: &'static str,
}

/// Of a phase.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct PhaseLabels {
    pub(super) phase: &'static str,
    pub(super) service: Arc<str>,
    pub(super) route: Arc<str>,
}

/// Of requests that a service made of others.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct DependencyLabels {
    pub(super) service: Arc<str>,
    pub(super) dependency: Arc<str>,
}

/// Of timelines.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct CompleteLabels {
    pub(super) complete: bool,
}

/// Of a label whose cap was reached.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct OverflowLabels {
    pub(super) label: &'static str,
}

/// How often a name found no place, by label.
pub(super) type Overflows = Family<OverflowLabels, Counter>;

/// The values of one label.
#[derive(Debug)]
pub(super) struct Names {
    cap: usize,
    known: HashMap<Box<str>, Arc<str>>,
    other: Arc<str>,
    overflow: Counter,
}

impl Names {
    /// At most `cap` of them, beside `other`.
    pub(super) fn new(label: &'static str, cap: usize, overflows: &Overflows) -> Self {
        let overflow = overflows.get_or_create_owned(&OverflowLabels { label });
        Self { cap, known: HashMap::new(), other: OTHER.into(), overflow }
    }

    /// The label's value for a name.
    pub(super) fn of(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.cap {
            self.overflow.inc();
            return Arc::clone(&self.other);
        }
        let value: Arc<str> = if name.is_empty() { UNKNOWN.into() } else { name.into() };
        self.known.insert(name.into(), Arc::clone(&value));
        value
    }
}
