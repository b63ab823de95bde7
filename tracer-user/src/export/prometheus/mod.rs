//! Prometheus: every metric of `docs/metrics.md`, over HTTP, in the text format.
//!
//! Timelines are counted on the pipeline's thread, into histograms whose handles are kept; how
//! things stand is swapped in once a second; a thread of its own answers scrapes. The number of
//! series is bounded whatever names the traffic brings ([`labels`]), and so is what a scraper can
//! ask of the agent ([`server`]).

mod buckets;
mod devices;
mod families;
mod labels;
mod routes;
mod series;
mod server;
mod standing;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc};

use prometheus_client::registry::Registry;

use self::{
    families::Families,
    labels::{DependencyLabels, Names, ServiceLabels},
    routes::Routes,
    server::{Limits, Server, Shared},
    standing::{
        BusyLabels, CostLabels, CoverageLabels, Latest, LossLabels, OpenRequests, Standing,
        UnsentLabels,
    },
};
use super::{
    health::Lost,
    route::{RouteClass, route_class, route_label},
};
use crate::{
    cost::Costs,
    nvml::metrics::Metric,
    pipeline,
    timeline::{
        figures::{Figures, Outgoing},
        model::Timeline,
    },
};

/// Dependencies told apart.
const MAX_DEPENDENCIES: usize = 64;
/// A request that is open for so long gets its route told apart, ns; before, its answer may show
/// that there is no such route.
const ADMITTED_NS: u64 = 1_000_000_000;
/// There is no such route.
const NOT_FOUND: u16 = 404;

/// What is known about once a second.
pub struct Now<'a> {
    /// Requests that are open.
    pub open: &'a [Timeline],
    /// Events seen so far.
    pub families: pipeline::Families,
    /// Events lost so far, by place; those that lost nothing too.
    pub lost: &'a [Lost],
    /// What the processes of each service did so far.
    pub figures: &'a [Figures],
    /// What the GPUs said of themselves.
    pub gpus: Vec<Metric>,
    /// What tracing has cost so far.
    pub costs: &'a Costs,
    /// What could not be sent over OTLP so far, by signal and reason; empty where nothing is sent.
    pub unsent: &'a [(&'static str, &'static str, u64)],
}

/// The exporter.
#[derive(Debug)]
pub struct Prometheus {
    counting: Counting,
    shared: Arc<Shared>,
    server: Server,
}

/// Everything that is counted on the pipeline's thread.
#[derive(Debug)]
struct Counting {
    families: Families,
    routes: Routes,
    dependencies: Names,
    checks: BTreeMap<Arc<str>, u64>,
    latest: Latest,
}

impl Prometheus {
    /// Listens on an address; port 0 is a free one.
    ///
    /// # Errors
    /// Where it cannot be listened on.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let mut registry = Registry::default();
        let counting = Counting::new(&mut registry);
        let shared = Arc::new(Shared::new(registry));
        let server = Server::start(address, Arc::clone(&shared), Limits::default())?;
        Ok(Self { counting, shared, server })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Counts requests that ended.
    pub fn take(&mut self, timelines: &[Timeline]) {
        timelines.iter().for_each(|timeline| self.counting.take(timeline));
    }

    /// Counts requests that services made of others.
    pub fn asked(&mut self, outgoing: &[Outgoing]) {
        outgoing.iter().for_each(|outgoing| self.counting.asked(outgoing));
    }

    /// Time has passed.
    pub fn round(&mut self, now: Now<'_>) {
        self.counting.round(now);
        self.shared.moved();
    }

    /// Stops listening.
    pub fn close(self) {
        self.server.stop();
    }
}

impl Counting {
    fn new(registry: &mut Registry) -> Self {
        let families = Families::register(registry);
        let latest = Latest::default();
        registry.register_collector(Box::new(latest.clone()));
        let overflows = &families.overflows;
        Self {
            routes: Routes::new(overflows),
            dependencies: Names::new("dependency", MAX_DEPENDENCIES, overflows),
            checks: BTreeMap::new(),
            latest,
            families,
        }
    }

    fn take(&mut self, timeline: &Timeline) {
        let whole = &self.families;
        if timeline.complete { &whole.complete } else { &whole.incomplete }.inc();
        let route = route_label(&timeline.route);
        let admitted = timeline.status != Some(NOT_FOUND);
        let Some(series) = self.routes.at(&timeline.service, &route, admitted) else { return };
        match route_class(&timeline.route) {
            RouteClass::Traffic => series.request(timeline, &self.families),
            RouteClass::Health => series.check(timeline, &self.families),
        }
    }

    fn asked(&mut self, outgoing: &Outgoing) {
        let port = outgoing.port.map(|port| format!("port {port}")).unwrap_or_default();
        let labels = DependencyLabels {
            service: self.routes.service(&outgoing.service),
            dependency: self.dependencies.of(&port),
        };
        let histogram = self.families.dependencies.get_or_create_owned(&labels);
        histogram.observe(buckets::seconds(outgoing.duration_ns));
    }

    fn round(&mut self, now: Now<'_>) {
        self.checks.values_mut().for_each(|count| *count = 0);
        for series in self.routes.iter_mut() {
            series.open = OpenRequests { seen: series.open.seen, ..OpenRequests::default() };
            if series.has_checks() && !self.checks.contains_key(&series.labels().service) {
                self.checks.insert(Arc::clone(&series.labels().service), 0);
            }
        }
        now.open.iter().for_each(|timeline| self.open(timeline));
        let open = self.routes.iter_mut().filter(|series| series.has_traffic());
        let mut standing = Standing {
            open: open.map(|series| (series.labels().clone(), series.open)).collect(),
            events: now.families,
            lost: now.lost.iter().map(loss).collect(),
            gpus: now.gpus,
            costs: now
                .costs
                .family_seconds
                .iter()
                .map(|(family, seconds)| (CostLabels { family: family.clone() }, *seconds))
                .collect(),
            unsent: now.unsent.iter().map(unsent).collect(),
            ..Standing::default()
        };
        standing.checks.extend(
            self.checks
                .iter()
                .map(|(service, count)| (ServiceLabels { service: Arc::clone(service) }, *count)),
        );
        now.figures.iter().for_each(|figures| self.figures(figures, &mut standing));
        self.latest.set(standing);
    }

    fn open(&mut self, timeline: &Timeline) {
        if route_class(&timeline.route) == RouteClass::Health {
            let service = self.routes.service(&timeline.service);
            *self.checks.entry(service).or_default() += 1;
            return;
        }
        let route = route_label(&timeline.route);
        let admitted = timeline.duration_ns >= ADMITTED_NS && timeline.status != Some(NOT_FOUND);
        let Some(series) = self.routes.at(&timeline.service, &route, admitted) else { return };
        series.open.count += 1;
        series.open.oldest_ns = series.open.oldest_ns.max(timeline.duration_ns);
        series.open.seen = true;
    }

    fn figures(&mut self, figures: &Figures, standing: &mut Standing) {
        if !figures.uses_gpu && figures.sites == 0 {
            return;
        }
        let process = self.routes.service(&figures.service);
        let mut busy = |bound, ns| {
            add(&mut standing.busy, BusyLabels { process: Arc::clone(&process), bound }, ns)
        };
        if figures.uses_gpu {
            busy("lower", figures.gpu_lower_ns);
            busy("upper", figures.gpu_upper_ns);
        }
        if figures.sites > 0 {
            let share = figures.hooked as f64 / figures.sites as f64;
            let labels = CoverageLabels { process, family: "cuda" };
            // Of those that share a name, the one of which least is seen.
            match standing.coverage.iter_mut().find(|(known, _)| *known == labels) {
                Some((_, least)) => *least = least.min(share),
                None => standing.coverage.push((labels, share)),
            }
        }
    }
}

/// Adds to what has the same labels: several services may be `other`.
fn add<L: PartialEq>(to: &mut Vec<(L, u64)>, labels: L, value: u64) {
    match to.iter_mut().find(|(known, _)| *known == labels) {
        Some((_, sum)) => *sum = sum.saturating_add(value),
        None => to.push((labels, value)),
    }
}

fn loss(lost: &Lost) -> (LossLabels, u64) {
    (LossLabels { family: lost.family, r#where: lost.place }, lost.count)
}

fn unsent(&(signal, reason, count): &(&'static str, &'static str, u64)) -> (UnsentLabels, u64) {
    (UnsentLabels { signal, reason }, count)
}
