//! Every metric that is counted timeline by timeline, under the names of the contract.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram, info::Info},
    registry::Registry,
};

use super::{
    buckets,
    labels::{
        CompleteLabels, DependencyLabels, OutcomeLabels, Overflows, PhaseLabels, RouteLabels,
        ServiceLabels,
    },
};

/// Histograms with one set of labels.
pub(super) type Histograms<L> = Family<L, Histogram>;

/// The metrics that timelines are counted in.
#[derive(Clone, Debug)]
pub(super) struct Families {
    pub(super) requests: Histograms<OutcomeLabels>,
    pub(super) checks: Histograms<OutcomeLabels>,
    pub(super) phases: Histograms<PhaseLabels>,
    pub(super) first_chunk: Histograms<RouteLabels>,
    pub(super) chunk_gaps: Histograms<RouteLabels>,
    pub(super) input: Histograms<RouteLabels>,
    pub(super) dependencies: Histograms<DependencyLabels>,
    pub(super) round_trips: Histograms<ServiceLabels>,
    pub(super) retransmits: Family<ServiceLabels, Counter>,
    pub(super) complete: Counter,
    pub(super) incomplete: Counter,
    pub(super) overflows: Overflows,
}

impl Families {
    /// Registers all of them.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let timelines = Family::<CompleteLabels, Counter>::default();
        let families = Self {
            requests: Family::new_with_constructor(buckets::durations),
            checks: Family::new_with_constructor(buckets::durations),
            phases: Family::new_with_constructor(buckets::durations),
            first_chunk: Family::new_with_constructor(buckets::durations),
            chunk_gaps: Family::new_with_constructor(buckets::durations),
            input: Family::new_with_constructor(buckets::bytes),
            dependencies: Family::new_with_constructor(buckets::durations),
            round_trips: Family::new_with_constructor(buckets::round_trips),
            retransmits: Family::default(),
            complete: timelines.get_or_create_owned(&CompleteLabels { complete: true }),
            incomplete: timelines.get_or_create_owned(&CompleteLabels { complete: false }),
            overflows: Family::default(),
        };
        families.register_requests(registry);
        families.register_network(registry);
        registry.register(
            "spanprobe_timelines",
            "Requests that ended, health checks among them, by whether anything of them is missing",
            timelines,
        );
        registry.register(
            "spanprobe_label_overflow",
            "Times that a name found no place among the values of a label and became \"other\"",
            families.overflows.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("spanprobe_build", "The spanprobe that says all this", build);
        families
    }

    fn register_requests(&self, registry: &mut Registry) {
        registry.register(
            "http_server_request_duration_seconds",
            "Requests: from the first byte in the server's socket to the last write of the response",
            self.requests.clone(),
        );
        registry.register(
            "spanprobe_health_check_duration_seconds",
            "Health checks and scrapes, which are in no other metric of requests",
            self.checks.clone(),
        );
        registry.register(
            "spanprobe_phase_duration_seconds",
            "Time that a request spent in a phase, for each request that had it",
            self.phases.clone(),
        );
        registry.register(
            "spanprobe_first_chunk_seconds",
            "Streamed responses: from the request's start to the write of the first chunk",
            self.first_chunk.clone(),
        );
        registry.register(
            "spanprobe_chunk_gap_seconds",
            "Streamed responses: time between two chunks",
            self.chunk_gaps.clone(),
        );
        registry.register(
            "spanprobe_input_bytes",
            "Requests: bytes read, the head included",
            self.input.clone(),
        );
    }

    fn register_network(&self, registry: &mut Registry) {
        registry.register(
            "spanprobe_dependency_duration_seconds",
            "Requests that a service made of another, by the other's port",
            self.dependencies.clone(),
        );
        registry.register(
            "spanprobe_tcp_rtt_seconds",
            "Smoothed round-trip time of the connection, at the begin of each request",
            self.round_trips.clone(),
        );
        registry.register(
            "spanprobe_tcp_retransmits",
            "Segments that this host sent again while a request was open on the connection",
            self.retransmits.clone(),
        );
    }
}
