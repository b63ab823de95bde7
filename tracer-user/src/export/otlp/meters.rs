//! Metrics: what requests add up to, for each service, and what spanprobe says of itself.
//!
//! Distributions are kept by the SDK and collected when they are sent. A service here is every
//! traced process of one executable. Health checks and scrapes are left out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use opentelemetry::{
    InstrumentationScope, KeyValue, StringValue,
    metrics::{Counter, Gauge, Histogram, Meter, MeterProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Temporality,
        data::ResourceMetrics, reader::MetricReader,
    },
};

use super::{attributes, counts::Counts, devices::Devices, resource::Resources};
use crate::{
    export::{
        buckets::DURATIONS,
        health::Lost,
        route::{RouteClass, route_class, route_label},
    },
    nvml::metrics::Metric,
    pipeline::Families,
    timeline::model::Timeline,
};

/// Services kept apart; the rest is `other`.
const MAX_SERVICES: usize = 16;
/// Routes of one service kept apart; the rest is `other`.
const MAX_ROUTES: usize = 64;
/// What is beyond a cap is called this.
const OTHER: &str = "other";
/// There is no such route: a name that only such answers had gets no place.
const NOT_FOUND: u16 = 404;

/// A reader that is held at both ends: the provider registers it, we collect from it.
#[derive(Clone, Debug)]
struct Shared(Arc<ManualReader>);

impl MetricReader for Shared {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

/// Where metrics are collected: one place for each service and one for spanprobe.
#[derive(Clone, Debug, Default)]
pub struct Readers(Arc<Mutex<Vec<(SdkMeterProvider, Shared)>>>);

impl Readers {
    /// How many there are. They only grow, up to a cap.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What one of them has gathered; none where it has nothing.
    pub fn collect(&self, place: usize) -> Option<ResourceMetrics> {
        let reader = {
            let readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            readers.get(place).map(|(_, reader)| reader.clone())?
        };
        let mut metrics = ResourceMetrics::default();
        reader.collect(&mut metrics).ok()?;
        Some(metrics)
    }

    fn add(&self, provider: SdkMeterProvider, reader: Shared) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((provider, reader));
    }
}

/// What spanprobe says of itself, as of the last round.
#[derive(Debug, Default)]
struct Figures {
    families: Families,
    lost: Vec<Lost>,
    other_services: u64,
    other_routes: u64,
}

/// Makes meters, each with a resource of its own.
struct Maker {
    scope: InstrumentationScope,
    temporality: Temporality,
    readers: Readers,
}

impl Maker {
    fn meter(&self, resource: Resource) -> Meter {
        let reader =
            Shared(Arc::new(ManualReader::builder().with_temporality(self.temporality).build()));
        let provider =
            SdkMeterProvider::builder().with_reader(reader.clone()).with_resource(resource).build();
        let meter = provider.meter_with_scope(self.scope.clone());
        self.readers.add(provider, reader);
        meter
    }
}

/// Everything that is measured.
pub struct Meters {
    resources: Resources,
    maker: Maker,
    services: BTreeMap<String, Service>,
    devices: Devices,
    figures: Arc<Mutex<Figures>>,
}

/// How things stand.
pub struct Round<'a> {
    /// Now, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// Requests that are open.
    pub open: &'a [Timeline],
    /// Events seen so far.
    pub families: Families,
    /// What was lost so far.
    pub lost: &'a [Lost],
    /// What the GPUs said last.
    pub gpus: Vec<Metric>,
}

impl Meters {
    /// Measures for this run; what is measured is collected at [`Self::readers`].
    pub fn new(
        resources: Resources,
        scope: InstrumentationScope,
        temporality: Temporality,
        counts: Arc<Counts>,
    ) -> Self {
        let maker = Maker { scope, temporality, readers: Readers::default() };
        let figures = Arc::default();
        let agent = maker.meter(resources.agent());
        observe(&agent, &figures, counts);
        let devices = Devices::new(agent);
        Self { resources, maker, services: BTreeMap::new(), devices, figures }
    }

    /// Where it is collected.
    pub fn readers(&self) -> Readers {
        self.maker.readers.clone()
    }

    /// The service of this name, or the one for all others.
    fn service(&mut self, name: &str) -> &mut Service {
        let full = self.services.len() >= MAX_SERVICES && !self.services.contains_key(name);
        if full {
            self.figures().other_services += 1;
        }
        let name = if full { OTHER } else { name };
        let (resources, make) = (&self.resources, &self.maker);
        self.services
            .entry(name.to_owned())
            .or_insert_with(|| Service::new(&make.meter(resources.service(name))))
    }

    fn figures(&self) -> std::sync::MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has ended.
    pub fn add(&mut self, timeline: &Timeline) {
        if route_class(&timeline.route) == RouteClass::Health {
            return;
        }
        let folded = self.service(&timeline.service).add(timeline);
        if folded {
            self.figures().other_routes += 1;
        }
    }

    /// Time has passed.
    pub fn round(&mut self, round: Round<'_>) {
        let Round { now_ns, open, families, lost, gpus } = round;
        self.devices.round(gpus);
        for timeline in open {
            if route_class(&timeline.route) == RouteClass::Traffic {
                let age_ns = now_ns.saturating_sub(timeline.start_monotonic_ns);
                let service = self.service(&timeline.service);
                service.open += 1;
                service.oldest_ns = service.oldest_ns.max(age_ns);
            }
        }
        for service in self.services.values_mut() {
            service.round();
        }
        let mut figures = self.figures();
        figures.families = families;
        figures.lost = lost.to_vec();
    }
}

/// Counters that are read when they are collected.
fn observe(meter: &Meter, figures: &Arc<Mutex<Figures>>, counts: Arc<Counts>) {
    let of = Arc::clone(figures);
    meter
        .u64_observable_counter("spanprobe.events")
        .with_unit("{event}")
        .with_description("Events seen, by family")
        .with_callback(move |observer| {
            let families = of.lock().unwrap_or_else(PoisonError::into_inner).families;
            for (family, n) in [
                ("socket", families.socket),
                ("tcp", families.tcp),
                ("cuda", families.cuda),
                ("process", families.process),
                ("sched", families.sched),
            ] {
                observer.observe(n, &[KeyValue::new("spanprobe.family", family)]);
            }
        })
        .build();
    let of = Arc::clone(figures);
    meter
        .u64_observable_counter("spanprobe.events_lost")
        .with_unit("{event}")
        .with_description("Events, or what was made of them, lost; and where")
        .with_callback(move |observer| {
            let lost = of.lock().unwrap_or_else(PoisonError::into_inner).lost.clone();
            for Lost { family, place, count, .. } in lost {
                let attributes = [
                    KeyValue::new("spanprobe.family", family),
                    KeyValue::new("spanprobe.where", place),
                ];
                observer.observe(count, &attributes);
            }
        })
        .build();
    let of = Arc::clone(figures);
    meter
        .u64_observable_counter("spanprobe.label_overflow")
        .with_description("Requests counted under `other`, since a cap on names was reached")
        .with_callback(move |observer| {
            let (services, routes) = {
                let figures = of.lock().unwrap_or_else(PoisonError::into_inner);
                (figures.other_services, figures.other_routes)
            };
            observer.observe(services, &[KeyValue::new("spanprobe.label", "service")]);
            observer.observe(routes, &[KeyValue::new("spanprobe.label", "route")]);
        })
        .build();
    meter
        .u64_observable_counter("spanprobe.otlp.dropped")
        .with_description("What could not be sent over OTLP, by signal and reason")
        .with_callback(move |observer| {
            for (signal, reason, n) in counts.dropped() {
                let attributes = [
                    KeyValue::new("spanprobe.signal", signal),
                    KeyValue::new("spanprobe.reason", reason),
                ];
                observer.observe(n, &attributes);
            }
        })
        .build();
}

/// What is measured of one service.
struct Service {
    duration: Histogram<f64>,
    phase: Histogram<f64>,
    timelines: Counter<u64>,
    in_flight: Gauge<u64>,
    oldest: Gauge<f64>,
    routes: BTreeMap<String, StringValue>,
    open: u64,
    oldest_ns: u64,
}

impl Service {
    fn new(meter: &Meter) -> Self {
        Self {
            duration: meter
                .f64_histogram("http.server.request.duration")
                .with_unit("s")
                .with_description("Duration of HTTP server requests")
                .with_boundaries(DURATIONS.to_vec())
                .build(),
            phase: meter
                .f64_histogram("spanprobe.phase.duration")
                .with_unit("s")
                .with_description("Time that a request spent in each phase")
                .with_boundaries(DURATIONS.to_vec())
                .build(),
            timelines: meter
                .u64_counter("spanprobe.timelines")
                .with_unit("{timeline}")
                .with_description("Requests that have ended, by whether all is known of them")
                .build(),
            in_flight: meter
                .u64_gauge("spanprobe.requests_in_flight")
                .with_unit("{request}")
                .with_description("Requests that are not answered yet")
                .build(),
            oldest: meter
                .f64_gauge("spanprobe.oldest_request_age")
                .with_unit("s")
                .with_description("Age of the oldest request that is not answered yet")
                .build(),
            routes: BTreeMap::new(),
            open: 0,
            oldest_ns: 0,
        }
    }

    /// Counts a request in; whether its route is one too many.
    fn add(&mut self, timeline: &Timeline) -> bool {
        let admitted = timeline.status != Some(NOT_FOUND);
        let (route, folded) = self.route(&route_label(&timeline.route), admitted);
        let route = KeyValue::new("http.route", route);
        let mut labels = vec![
            route.clone(),
            KeyValue::new("http.request.method", attributes::method(&timeline.method)),
            KeyValue::new("url.scheme", "http"),
        ];
        if let Some(status) = timeline.status {
            labels.push(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        if let Some(outcome) = timeline.outcome {
            labels.push(KeyValue::new("spanprobe.outcome", attributes::outcome_name(outcome)));
        }
        if let Some(kind) = attributes::error_type(timeline) {
            labels.push(KeyValue::new("error.type", kind));
        }
        self.duration.record(seconds(timeline.duration_ns), &labels);
        for (phase, ns) in timeline.by_phase() {
            let name = KeyValue::new("spanprobe.phase", phase.as_str());
            self.phase.record(seconds(ns), &[route.clone(), name]);
        }
        self.timelines.add(1, &[KeyValue::new("spanprobe.complete", timeline.complete)]);
        folded
    }

    /// The name of a route, `other` where it gets no place; whether there was none left.
    fn route(&mut self, route: &str, admitted: bool) -> (StringValue, bool) {
        if let Some(known) = self.routes.get(route) {
            return (known.clone(), false);
        }
        let full = self.routes.len() >= MAX_ROUTES;
        if full || !admitted {
            return (OTHER.into(), full);
        }
        let name = StringValue::from(Arc::<str>::from(attributes::cut(route)));
        self.routes.insert(route.to_owned(), name.clone());
        (name, false)
    }

    fn round(&mut self) {
        self.in_flight.record(std::mem::take(&mut self.open), &[]);
        self.oldest.record(seconds(std::mem::take(&mut self.oldest_ns)), &[]);
    }
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
