//! From the flight recorder to the answer: two parts of a window held against each other.

use std::collections::VecDeque;

use super::{
    answer::answer,
    recorder::{FlightRecorder, RouteKey},
    report::{
        Figures, GpuWhy, OpenWhy, PhaseWhy, QueueWhy, RouteWhy, SCHEMA, Share, Slow, State,
        TracerWhy, Traffic, Why,
    },
    sample::{SLOT_NS, Sample, Slot, quantile},
};
use crate::{
    export::{device, route::route_label},
    timeline::model::{PhaseName, Timeline},
};

/// The last part of the window is *now*, the rest is *before*: one in so many.
const RECENT_PART: u64 = 5;
/// What is told at most, of each kind.
const ROUTES_TOLD: usize = 12;
const SLOWEST_TOLD: usize = 3;
const EVENTS_TOLD: usize = 50;

/// Slots of one part of the window.
struct Part<'a> {
    slots: Vec<&'a Slot>,
    length_ns: u64,
}

impl<'a> Part<'a> {
    fn samples(&self) -> impl Iterator<Item = (&'a Sample, f64)> + '_ {
        self.slots.iter().flat_map(|slot| {
            let weight = slot.weight();
            slot.samples.iter().map(move |sample| (sample, weight))
        })
    }

    fn sum(&self, of: impl Fn(&Slot) -> u64) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.saturating_add(of(slot)))
    }

    fn quantile(&self, of: impl Fn(&Sample) -> u64, part: f64) -> u64 {
        let mut values: Vec<_> =
            self.samples().map(|(sample, weight)| (of(sample), weight)).collect();
        quantile(&mut values, part)
    }

    fn figures(&self) -> Figures {
        let mut durations: Vec<_> =
            self.samples().map(|(sample, weight)| (sample.duration_ns, weight)).collect();
        let requests = self.sum(|slot| slot.requests);
        Figures {
            requests,
            per_second: requests as f64 * 1e9 / self.length_ns.max(1) as f64,
            errors: self.sum(|slot| slot.errors),
            incomplete: self.sum(|slot| slot.incomplete),
            p50_ns: quantile(&mut durations, 0.5),
            p95_ns: quantile(&mut durations, 0.95),
            p99_ns: quantile(&mut durations, 0.99),
            max_ns: self.slots.iter().map(|slot| slot.max_ns).max().unwrap_or(0),
            request_bytes_p50: self.quantile(|sample| sample.request_bytes, 0.5),
        }
    }

    /// Each phase's part of all the time, in the order of [`PhaseName::ALL`].
    fn shares(&self) -> Vec<f64> {
        let mut sums = [0.0; PhaseName::ALL.len()];
        let mut all = 0.0;
        for (sample, weight) in self.samples() {
            for (sum, (_, ns)) in sums.iter_mut().zip(sample.phases()) {
                *sum += ns as f64 * weight;
                all += ns as f64 * weight;
            }
        }
        sums.iter().map(|sum| if all > 0.0 { sum / all } else { 0.0 }).collect()
    }

    fn median_of(&self, name: PhaseName) -> u64 {
        self.quantile(|sample| time_in(sample, name), 0.5)
    }
}

fn time_in(sample: &Sample, name: PhaseName) -> u64 {
    sample.phases().find(|(phase, _)| *phase == name).map_or(0, |(_, ns)| ns)
}

impl FlightRecorder {
    /// Why the last `since_ns` were as they were.
    pub fn why(&self, since_ns: u64, state: &State<'_>) -> Why {
        let now_ns = state.now_ns;
        let begin = now_ns.saturating_sub(since_ns).max(self.from_ns.unwrap_or(now_ns));
        let known_ns = now_ns.saturating_sub(begin);
        // Whole slots, the one that has just begun left to the last part.
        let recent_ns = (known_ns / RECENT_PART).clamp(SLOT_NS, known_ns.max(SLOT_NS));
        let recent = now_ns.saturating_sub(recent_ns) / SLOT_NS;
        let windows = Windows { first: begin / SLOT_NS, recent, now_ns, begin_ns: begin };
        let mut routes: Vec<RouteWhy> =
            self.routes.iter().filter_map(|(key, slots)| windows.route(key, slots)).collect();
        let busy = |route: &RouteWhy| {
            (route.now.requests as f64) * route.now.p50_ns as f64 + route.before.requests as f64
        };
        routes.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
        let all = || self.routes.values().flat_map(|slots| slots.iter());
        let failed = |recent: bool| {
            let slots = all().filter(|slot| slot.number >= windows.first);
            let slots = slots.filter(|slot| (slot.number >= windows.recent) == recent);
            slots.fold(0, |sum, slot| sum + slot.failed_calls)
        };
        let unix = |ns: u64| ns.saturating_add_signed(state.realtime_offset_ns);
        let since = unix(now_ns.saturating_sub(since_ns));
        let events = self.happenings.iter().rev().filter(|event| event.unix_ns >= since);
        let mut why = Why {
            schema: SCHEMA,
            now_unix_ns: unix(now_ns),
            since_ns,
            known_ns,
            recent_ns,
            answer: Vec::new(),
            gpu: GpuWhy {
                failed_calls: (failed(true), failed(false)),
                readings: state.gpus.iter().map(|gpu| device::sentence(gpu, now_ns)).collect(),
            },
            queue: queue(state.open),
            events: events.take(EVENTS_TOLD).cloned().collect(),
            tracer: tracer(state, &routes),
            traffic: Traffic { routes_left_out: routes.len().saturating_sub(ROUTES_TOLD), routes },
        };
        why.answer = answer(&why);
        why.traffic.routes.truncate(ROUTES_TOLD);
        why
    }
}

/// Where the parts of the window begin.
struct Windows {
    /// Number of its first slot.
    first: u64,
    /// Number of the first slot that is *now*.
    recent: u64,
    begin_ns: u64,
    now_ns: u64,
}

impl Windows {
    /// `None` where nothing of the route lies in the window.
    fn route(&self, key: &RouteKey, slots: &VecDeque<Slot>) -> Option<RouteWhy> {
        let within = || slots.iter().filter(|slot| slot.number >= self.first);
        let border = self.recent.saturating_mul(SLOT_NS);
        let now = Part {
            slots: within().filter(|slot| slot.number >= self.recent).collect(),
            length_ns: self.now_ns.saturating_sub(border.max(self.begin_ns)),
        };
        let before = Part {
            slots: within().filter(|slot| slot.number < self.recent).collect(),
            length_ns: border.saturating_sub(self.begin_ns),
        };
        let mut slowest: Vec<Slow> =
            within().flat_map(|slot| slot.slowest.iter().cloned()).collect();
        if slowest.is_empty() {
            return None;
        }
        slowest.sort_by_key(|slow| std::cmp::Reverse(slow.duration_ns));
        slowest.truncate(SLOWEST_TOLD);
        let mut shares: Vec<Share> = PhaseName::ALL
            .into_iter()
            .zip(now.shares().into_iter().zip(before.shares()))
            .filter(|(_, (now, before))| *now > 0.0 || *before > 0.0)
            .map(|(phase, (now, before))| Share { phase: phase.as_str().to_owned(), now, before })
            .collect();
        shares.sort_by(|a, b| b.now.total_cmp(&a.now).then(b.before.total_cmp(&a.before)));
        let (service, route) = key;
        Some(RouteWhy {
            service: service.to_string(),
            route: route.to_string(),
            phase: excess(&now, &before),
            now: now.figures(),
            before: before.figures(),
            shares,
            slowest,
        })
    }
}

/// The phase in which the slowest twentieth spends most beyond the phase's median.
fn excess(now: &Part<'_>, before: &Part<'_>) -> Option<PhaseWhy> {
    let slow_from = now.quantile(|sample| sample.duration_ns, 0.95);
    let slow: Vec<(&Sample, f64)> =
        now.samples().filter(|(sample, _)| sample.duration_ns >= slow_from).collect();
    let weight: f64 = slow.iter().map(|(_, weight)| weight).sum();
    if weight <= 0.0 {
        return None;
    }
    let usual = if before.slots.is_empty() { now } else { before };
    let mut phases: Vec<PhaseWhy> = PhaseName::ALL
        .into_iter()
        .filter_map(|name| {
            let sum: f64 = slow.iter().map(|(s, weight)| time_in(s, name) as f64 * weight).sum();
            let (slow_ns, median_ns) = ((sum / weight) as u64, usual.median_of(name));
            let excess_ns = slow_ns.saturating_sub(median_ns);
            let phase = name.as_str().to_owned();
            (excess_ns > 0).then_some(PhaseWhy { phase, slow_ns, median_ns, excess_ns, share: 0.0 })
        })
        .collect();
    let all: u64 = phases.iter().map(|phase| phase.excess_ns).sum();
    phases.sort_by_key(|phase| std::cmp::Reverse(phase.excess_ns));
    let first = phases.into_iter().next()?;
    let share = first.excess_ns as f64 / all.max(1) as f64;
    Some(PhaseWhy { share, ..first })
}

fn queue(open: &[Timeline]) -> QueueWhy {
    let phase = |timeline: &Timeline| timeline.phases.last().map(|phase| phase.phase);
    let waits = |timeline: &&Timeline| {
        let waiting = [
            PhaseName::AcceptQueue,
            PhaseName::SocketWait,
            PhaseName::ThreadBusy,
            PhaseName::Queue,
        ];
        phase(timeline).is_some_and(|phase| waiting.contains(&phase))
    };
    let mut oldest: Vec<&Timeline> = open.iter().collect();
    oldest.sort_by(|a, b| b.duration_ns.cmp(&a.duration_ns).then(a.span_id.cmp(&b.span_id)));
    let oldest = oldest.into_iter().take(SLOWEST_TOLD).map(|timeline| OpenWhy {
        trace_id: timeline.trace_id.to_string(),
        service: timeline.service.to_string(),
        pid: timeline.pid,
        route: format!("{} {}", timeline.method, route_label(&timeline.route)),
        age_ns: timeline.duration_ns,
        phase: phase(timeline).map_or("", PhaseName::as_str).to_owned(),
        now: timeline.now.clone(),
    });
    QueueWhy {
        open: open.len(),
        waiting: open.iter().filter(waits).count(),
        oldest: oldest.collect(),
    }
}

fn tracer(state: &State<'_>, routes: &[RouteWhy]) -> TracerWhy {
    let sum = |of: fn(&Figures) -> u64| {
        routes.iter().map(|route| of(&route.now) + of(&route.before)).sum()
    };
    TracerWhy {
        paused: state.paused,
        left_out: state.left_out.map(str::to_owned),
        events_seen: state.health.map_or(0, |health| health.events_seen),
        events_lost: state.health.map(|health| health.events_lost.clone()).unwrap_or_default(),
        timelines: sum(|figures| figures.requests),
        incomplete: sum(|figures| figures.incomplete),
        notes: state.health.map(|health| health.notes.clone()).unwrap_or_default(),
    }
}
