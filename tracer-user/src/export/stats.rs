//! What is known about the requests of one route.

use std::collections::BTreeMap;

use crate::timeline::model::{Arrival, GpuSummary, Outcome, PhaseName, Timeline, phase_sums};

use super::bar::Cell;
use super::dist::Dist;
use super::palette;

/// Figures of one phase over many requests.
#[derive(Clone, Debug, Default)]
pub struct PhaseStats {
    /// Requests that had the phase.
    pub requests: u64,
    /// Sum over all requests, ns.
    pub total_ns: u128,
    /// Part of it that was estimated, inferred or undivided, ns.
    pub hatched_ns: u128,
    /// Time in the phase per request that had it; empty where percentiles are not kept.
    pub dist: Dist,
}

/// How requests ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// 5xx.
    pub server_error: u64,
    /// 4xx.
    pub client_error: u64,
    /// Connection reset, or closed by the server.
    pub reset: u64,
    /// The client went away.
    pub cancelled: u64,
}

impl Outcomes {
    /// Everything that did not end well.
    pub fn errors(self) -> u64 {
        self.server_error + self.client_error + self.reset + self.cancelled
    }

    fn add(&mut self, outcome: Option<Outcome>) {
        match outcome {
            None | Some(Outcome::Ok) => {}
            Some(Outcome::ClientError) => self.client_error += 1,
            Some(Outcome::ServerError) => self.server_error += 1,
            Some(Outcome::Cancelled) => self.cancelled += 1,
            Some(Outcome::Reset) => self.reset += 1,
        }
    }

    fn merge(&mut self, other: Self) {
        self.server_error += other.server_error;
        self.client_error += other.client_error;
        self.reset += other.reset;
        self.cancelled += other.cancelled;
    }
}

/// Streamed responses.
#[derive(Clone, Debug, Default)]
pub struct StreamStats {
    /// Chunks of all streams.
    pub chunks: u64,
    /// Time to the first chunk.
    pub first: Dist,
    /// Each stream's own 99th percentile of gaps between chunks.
    pub gap_p99: Dist,
    /// The longest gap, ns.
    pub gap_max_ns: u64,
}

/// GPU work. A step that several requests waited for counts in each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuStats {
    /// Requests with GPU work.
    pub requests: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Of these, launches of opaque ones.
    pub graph_opaque: u64,
    /// Kernels in the others.
    pub graph_kernels: u64,
    /// Bytes copied to the device.
    pub h2d_bytes: u64,
    /// Bytes copied from the device.
    pub d2h_bytes: u64,
    /// Least GPU time, ns.
    pub busy_lower_ns: u128,
    /// Most GPU time, ns.
    pub busy_upper_ns: u128,
    /// Driver calls that failed.
    pub failed_calls: u64,
}

impl GpuStats {
    fn add(&mut self, gpu: &GpuSummary) {
        self.requests += 1;
        self.launches = self.launches.saturating_add(gpu.launches);
        self.graph_launches = self.graph_launches.saturating_add(gpu.graph_launches);
        self.graph_opaque = self.graph_opaque.saturating_add(gpu.graph_opaque);
        self.graph_kernels = self.graph_kernels.saturating_add(gpu.graph_kernels);
        self.h2d_bytes = self.h2d_bytes.saturating_add(gpu.h2d_bytes);
        self.d2h_bytes = self.d2h_bytes.saturating_add(gpu.d2h_bytes);
        self.busy_lower_ns += u128::from(gpu.busy_lower_ns);
        self.busy_upper_ns += u128::from(gpu.busy_upper_ns);
        self.failed_calls += u64::from(gpu.failed_calls);
    }

    fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.launches = self.launches.saturating_add(other.launches);
        self.graph_launches = self.graph_launches.saturating_add(other.graph_launches);
        self.graph_opaque = self.graph_opaque.saturating_add(other.graph_opaque);
        self.graph_kernels = self.graph_kernels.saturating_add(other.graph_kernels);
        self.h2d_bytes = self.h2d_bytes.saturating_add(other.h2d_bytes);
        self.d2h_bytes = self.d2h_bytes.saturating_add(other.d2h_bytes);
        self.busy_lower_ns += other.busy_lower_ns;
        self.busy_upper_ns += other.busy_upper_ns;
        self.failed_calls += other.failed_calls;
    }
}

/// Figures of one route, or of all of them.
#[derive(Clone, Debug, Default)]
pub struct RouteStats {
    /// Requests that ended.
    pub requests: u64,
    /// Those of them that miss something.
    pub incomplete: u64,
    /// Those of them timed from the server's read only.
    pub arrival_read: u64,
    /// How they ended.
    pub outcomes: Outcomes,
    /// How long they took.
    pub duration: Dist,
    /// Sum of durations, ns.
    pub total_ns: u128,
    /// Where the time went.
    pub phases: BTreeMap<PhaseName, PhaseStats>,
    /// Streamed responses.
    pub streams: StreamStats,
    /// GPU work.
    pub gpu: GpuStats,
}

impl RouteStats {
    /// Adds a request that ended; `percentiles`: also each phase's distribution.
    pub fn add(&mut self, timeline: &Timeline, percentiles: bool) {
        self.requests += 1;
        self.incomplete += u64::from(!timeline.complete);
        self.arrival_read += u64::from(timeline.arrival == Arrival::Read);
        self.outcomes.add(timeline.outcome);
        self.duration.record(timeline.duration_ns);
        self.total_ns += u128::from(timeline.duration_ns);
        self.add_phases(timeline, percentiles);
        if let Some(chunks) = &timeline.chunks {
            let streams = &mut self.streams;
            streams.chunks = streams.chunks.saturating_add(chunks.count);
            streams.first.record(chunks.first_offset_ns);
            if chunks.count > 1 {
                streams.gap_p99.record(chunks.gaps_ns.p99);
                streams.gap_max_ns = streams.gap_max_ns.max(chunks.gaps_ns.max);
            }
        }
        if let Some(gpu) = &timeline.gpu {
            self.gpu.add(gpu);
        }
    }

    fn add_phases(&mut self, timeline: &Timeline, percentiles: bool) {
        let sums = phase_sums(&timeline.phases);
        let hatched = phase_sums(timeline.phases.iter().filter(|phase| palette::hatched(phase)));
        for (name, (sum, hatched)) in PhaseName::ALL.into_iter().zip(sums.into_iter().zip(hatched))
        {
            if sum == 0 {
                continue;
            }
            let stats = self.phases.entry(name).or_default();
            stats.requests += 1;
            stats.total_ns += u128::from(sum);
            stats.hatched_ns += u128::from(hatched);
            if percentiles {
                stats.dist.record(sum);
            }
        }
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.incomplete += other.incomplete;
        self.arrival_read += other.arrival_read;
        self.outcomes.merge(other.outcomes);
        self.duration.merge(&other.duration);
        self.total_ns += other.total_ns;
        for (name, more) in &other.phases {
            let stats = self.phases.entry(*name).or_default();
            stats.requests += more.requests;
            stats.total_ns += more.total_ns;
            stats.hatched_ns += more.hatched_ns;
            stats.dist.merge(&more.dist);
        }
        self.streams.chunks = self.streams.chunks.saturating_add(other.streams.chunks);
        self.streams.first.merge(&other.streams.first);
        self.streams.gap_p99.merge(&other.streams.gap_p99);
        self.streams.gap_max_ns = self.streams.gap_max_ns.max(other.streams.gap_max_ns);
        self.gpu.merge(&other.gpu);
    }

    /// The bar of all requests together, phases in display order: its parts and their lengths.
    pub fn parts(&self) -> impl Iterator<Item = (Cell, u64)> {
        let scaled = |ns: u128| u64::try_from(ns / self.scale()).unwrap_or(u64::MAX);
        self.in_order().flat_map(move |(phase, stats)| {
            let solid = stats.total_ns.saturating_sub(stats.hatched_ns);
            [
                (Cell { phase, hatched: false }, scaled(solid)),
                (Cell { phase, hatched: true }, scaled(stats.hatched_ns)),
            ]
        })
    }

    /// Phases that occurred, in display order.
    pub fn in_order(&self) -> impl Iterator<Item = (PhaseName, &PhaseStats)> {
        PhaseName::ALL.into_iter().filter_map(|name| self.phases.get(&name).map(|s| (name, s)))
    }

    /// Memory beside the struct itself, about, bytes.
    pub fn heap_bytes(&self) -> usize {
        let phases: usize =
            self.phases.values().map(|p| size_of::<PhaseStats>() + p.dist.heap_bytes()).sum();
        phases
            + self.duration.heap_bytes()
            + self.streams.first.heap_bytes()
            + self.streams.gap_p99.heap_bytes()
    }

    /// Brings sums of time into 64 bits: 1 up to 584 years.
    fn scale(&self) -> u128 {
        self.total_ns / u128::from(u64::MAX) + 1
    }
}
