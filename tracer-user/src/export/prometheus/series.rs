//! What is counted for one route of one service. Handles of its series are kept, so that counting a
//! timeline looks nothing up.

use std::sync::Arc;

use prometheus_client::metrics::{counter::Counter, histogram::Histogram};

use super::{
    buckets::seconds,
    families::{Families, Histograms},
    labels::{OutcomeLabels, PhaseLabels, RouteLabels, ServiceLabels, UNKNOWN},
    standing::OpenRequests,
};
use crate::{
    stream::reason,
    timeline::model::{Chunks, Outcome, PhaseName, Timeline},
};

const PHASES: usize = PhaseName::ALL.len();
/// How requests end, and `unknown`.
const OUTCOMES: usize = 6;

/// Series of one route. Each is made when first needed: what never happened is not exported.
#[derive(Debug)]
pub(super) struct Series {
    labels: RouteLabels,
    requests: [Option<Histogram>; OUTCOMES],
    checks: [Option<Histogram>; OUTCOMES],
    phases: [Option<Histogram>; PHASES],
    first_chunk: Option<Histogram>,
    chunk_gaps: Option<Histogram>,
    input: Option<Histogram>,
    round_trips: Option<Histogram>,
    retransmits: Option<Counter>,
    /// Requests that are open now.
    pub(super) open: OpenRequests,
}

impl Series {
    /// Nothing counted yet.
    pub(super) fn new(labels: RouteLabels) -> Self {
        Self {
            labels,
            requests: Default::default(),
            checks: Default::default(),
            phases: Default::default(),
            first_chunk: None,
            chunk_gaps: None,
            input: None,
            round_trips: None,
            retransmits: None,
            open: OpenRequests::default(),
        }
    }

    /// Its labels.
    pub(super) fn labels(&self) -> &RouteLabels {
        &self.labels
    }

    /// Whether a request that is no health check was ever counted or open here.
    pub(super) fn has_traffic(&self) -> bool {
        self.open.seen || self.input.is_some()
    }

    /// Whether a health check was ever counted here.
    pub(super) fn has_checks(&self) -> bool {
        self.checks.iter().any(Option::is_some)
    }

    /// Counts a health check or a scrape.
    pub(super) fn check(&mut self, timeline: &Timeline, families: &Families) {
        if has_duration(timeline) {
            let to = &families.checks;
            ended(timeline, &self.labels, &mut self.checks, to);
        }
    }

    /// Counts a request.
    pub(super) fn request(&mut self, timeline: &Timeline, families: &Families) {
        let labels = &self.labels;
        let service = || ServiceLabels { service: Arc::clone(&labels.service) };
        if has_duration(timeline) {
            ended(timeline, labels, &mut self.requests, &families.requests);
            for (name, ns) in timeline.by_phase() {
                let Some(slot) = self.phases.get_mut(name as usize) else { continue };
                let phase = || PhaseLabels {
                    phase: name.as_str(),
                    service: Arc::clone(&labels.service),
                    route: Arc::clone(&labels.route),
                };
                kept(slot, &families.phases, phase).observe(seconds(ns));
            }
        }
        if let Some(chunks) = timeline.chunks.as_ref().filter(|_| start_is_known(timeline)) {
            let first = kept(&mut self.first_chunk, &families.first_chunk, || labels.clone());
            first.observe(seconds(chunks.first_offset_ns));
        }
        if let Some(chunks) = &timeline.chunks {
            let gaps = kept(&mut self.chunk_gaps, &families.chunk_gaps, || labels.clone());
            gaps_of(chunks).for_each(|ns| gaps.observe(seconds(ns)));
        }
        kept(&mut self.input, &families.input, || labels.clone())
            .observe(timeline.request_bytes as f64);
        if let Some(ns) = timeline.tcp_rtt_ns {
            kept(&mut self.round_trips, &families.round_trips, service).observe(seconds(ns));
        }
        let again = self
            .retransmits
            .get_or_insert_with(|| families.retransmits.get_or_create_owned(&service()));
        again.inc_by(u64::from(timeline.tcp_retransmits));
    }
}

fn start_is_known(timeline: &Timeline) -> bool {
    let without = [reason::MID_REQUEST, reason::REQUEST_NOT_SEEN];
    !timeline.incomplete.iter().any(|why| without.contains(why))
}

/// Where only an end was seen, or none, what there is is no duration.
fn has_duration(timeline: &Timeline) -> bool {
    start_is_known(timeline) && !timeline.incomplete.contains(&reason::END_NOT_SEEN)
}

fn ended(
    timeline: &Timeline,
    labels: &RouteLabels,
    slots: &mut [Option<Histogram>; OUTCOMES],
    family: &Histograms<OutcomeLabels>,
) {
    let (at, outcome) = match timeline.outcome {
        Some(Outcome::Ok) => (0, "ok"),
        Some(Outcome::ClientError) => (1, "client_error"),
        Some(Outcome::ServerError) => (2, "server_error"),
        Some(Outcome::Cancelled) => (3, "cancelled"),
        Some(Outcome::Reset) => (4, "reset"),
        None => (5, UNKNOWN),
    };
    let Some(slot) = slots.get_mut(at) else { return };
    let labels = || OutcomeLabels {
        service: Arc::clone(&labels.service),
        route: Arc::clone(&labels.route),
        outcome,
    };
    kept(slot, family, labels).observe(seconds(timeline.duration_ns));
}

/// The handle of a series, asked for once.
fn kept<'a, L: Clone + std::hash::Hash + Eq>(
    slot: &'a mut Option<Histogram>,
    family: &Histograms<L>,
    labels: impl FnOnce() -> L,
) -> &'a Histogram {
    slot.get_or_insert_with(|| family.get_or_create_owned(&labels()))
}

fn gaps_of(chunks: &Chunks) -> impl Iterator<Item = u64> {
    let times = &chunks.offsets_ns;
    times.iter().zip(times.iter().skip(1)).map(|(from, to)| to.saturating_sub(*from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_has_the_slot_of_its_place() {
        for (at, name) in PhaseName::ALL.into_iter().enumerate() {
            assert_eq!(name as usize, at);
        }
    }
}
