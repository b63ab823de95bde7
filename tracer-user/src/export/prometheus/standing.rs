//! How things stand: what is known once a second rather than with each timeline.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeLabelSet, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

use super::{
    buckets::seconds,
    devices,
    labels::{RouteLabels, ServiceLabels},
};
use crate::{nvml::metrics::Metric, pipeline::Families};

pub(super) type Encoded = Result<(), std::fmt::Error>;

/// Open requests of one route.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenRequests {
    /// How many.
    pub(super) count: u64,
    /// Age of the oldest, ns.
    pub(super) oldest_ns: u64,
    /// There ever was one.
    pub(super) seen: bool,
}

/// What was lost of one family in one place.
#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
pub(super) struct LossLabels {
    pub(super) family: &'static str,
    pub(super) r#where: &'static str,
}

/// A family of the kernel's programs.
#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
pub(super) struct CostLabels {
    pub(super) family: String,
}

/// What could not be sent of one signal, and why.
#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
pub(super) struct UnsentLabels {
    pub(super) signal: &'static str,
    pub(super) reason: &'static str,
}

/// GPU time of a service's processes.
#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
pub(super) struct BusyLabels {
    pub(super) process: Arc<str>,
    pub(super) bound: &'static str,
}

/// What is hooked in a service's processes.
#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
pub(super) struct CoverageLabels {
    pub(super) process: Arc<str>,
    pub(super) family: &'static str,
}

/// Everything as of the last round.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// By route.
    pub(super) open: Vec<(RouteLabels, OpenRequests)>,
    /// Health checks that are open.
    pub(super) checks: Vec<(ServiceLabels, u64)>,
    /// Events seen.
    pub(super) events: Families,
    /// Events lost.
    pub(super) lost: Vec<(LossLabels, u64)>,
    /// Time spent in the kernel's programs, s.
    pub(super) costs: Vec<(CostLabels, f64)>,
    /// What could not be sent over OTLP.
    pub(super) unsent: Vec<(UnsentLabels, u64)>,
    /// GPU time, ns.
    pub(super) busy: Vec<(BusyLabels, u64)>,
    /// Hooked sites by sites that exist.
    pub(super) coverage: Vec<(CoverageLabels, f64)>,
    /// What the GPUs said of themselves.
    pub(super) gpus: Vec<Metric>,
}

/// The latest, for whoever scrapes. Neither side waits for the other: what lies here is swapped
/// whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Latest(Arc<Mutex<Arc<Standing>>>);

impl Latest {
    /// Replaces it.
    pub(super) fn set(&self, standing: Standing) {
        let new = Arc::new(standing);
        let old = std::mem::replace(&mut *self.lock(), new);
        // Freed here, outside the lock.
        drop(old);
    }

    /// It.
    pub(super) fn get(&self) -> Arc<Standing> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<Standing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Latest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Encoded {
        let now = self.get();
        now.requests(&mut encoder)?;
        now.gpu(&mut encoder)?;
        devices::encode(&now.gpus, &mut encoder)?;
        now.sight(&mut encoder)
    }
}

impl Standing {
    fn requests(&self, to: &mut DescriptorEncoder<'_>) -> Encoded {
        gauges(
            to,
            ("spanprobe_requests_in_flight", "Requests that are open"),
            self.open.iter().map(|(labels, open)| (labels, open.count as f64)),
        )?;
        gauges(
            to,
            (
                "spanprobe_oldest_request_age_seconds",
                "How long the oldest open request has been open, 0 where none is",
            ),
            self.open.iter().map(|(labels, open)| (labels, seconds(open.oldest_ns))),
        )?;
        gauges(
            to,
            ("spanprobe_health_checks_in_flight", "Health checks and scrapes that are open"),
            self.checks.iter().map(|(labels, count)| (labels, *count as f64)),
        )
    }

    fn gpu(&self, to: &mut DescriptorEncoder<'_>) -> Encoded {
        counters(
            to,
            (
                "spanprobe_gpu_step_busy_seconds",
                "GPU time of all steps, linked to a request or not: no less than lower, no more \
                 than upper",
            ),
            self.busy.iter().map(|(labels, ns)| (labels, seconds(*ns))),
        )
    }

    fn sight(&self, to: &mut DescriptorEncoder<'_>) -> Encoded {
        let Families { socket, tcp, cuda, process, sched, launches: _ } = self.events;
        let events = [
            ([("family", "socket")], socket),
            ([("family", "tcp")], tcp),
            ([("family", "cuda")], cuda),
            ([("family", "process")], process),
            ([("family", "sched")], sched),
        ];
        counters(
            to,
            ("spanprobe_events", "Events taken in"),
            events.iter().map(|(labels, count)| (labels, *count)),
        )?;
        counters(
            to,
            ("spanprobe_events_lost", "Events, or what was made of them, lost; and where"),
            self.lost.iter().map(|(labels, count)| (labels, *count)),
        )?;
        counters(
            to,
            ("spanprobe_probe_cost_seconds", "Processor time spent in the kernel's programs"),
            self.costs.iter().map(|(labels, seconds)| (labels, *seconds)),
        )?;
        if !self.unsent.is_empty() {
            counters(
                to,
                ("spanprobe_otlp_dropped", "What could not be sent over OTLP"),
                self.unsent.iter().map(|(labels, count)| (labels, *count)),
            )?;
        }
        gauges(
            to,
            ("spanprobe_coverage", "Sites hooked by sites that exist"),
            self.coverage.iter().map(|(labels, share)| (labels, *share)),
        )
    }
}

pub(super) fn gauges<'a, L: EncodeLabelSet + 'a>(
    to: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    values: impl Iterator<Item = (&'a L, f64)>,
) -> Encoded {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    each(values, &mut family, |metric, value| metric.encode_gauge(&value))
}

pub(super) fn counters<'a, L: EncodeLabelSet + 'a, V: EncodeCounterValue>(
    to: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    values: impl Iterator<Item = (&'a L, V)>,
) -> Encoded {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    each(values, &mut family, |metric, value| {
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    })
}

fn each<'a, L: EncodeLabelSet + 'a, V>(
    values: impl Iterator<Item = (&'a L, V)>,
    family: &mut MetricEncoder<'_>,
    encode: impl Fn(&mut MetricEncoder<'_>, V) -> Encoded,
) -> Encoded {
    for (labels, value) in values {
        encode(&mut family.encode_family(labels)?, value)?;
    }
    Ok(())
}
