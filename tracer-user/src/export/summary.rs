//! What a run's timelines add up to, in bounded memory.

use std::collections::BTreeMap;

use crate::timeline::model::Timeline;

use super::detail::render_detail;
use super::health::Health;
use super::report;
use super::route::{RouteClass, route_class};
use super::slowest::Slowest;
use super::stats::RouteStats;
use super::style::Style;

/// Longer names of services and routes are cut, bytes.
const NAME_BYTES: usize = 256;
/// Reasons of incompleteness kept by name.
const REASONS: usize = 64;

/// How much a [`Summary`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Routes with figures of their own; the others share one line, `other`.
    pub routes: usize,
    /// Slowest requests kept whole.
    pub slowest: usize,
    /// Keep percentiles per phase too, not only sums.
    pub phase_percentiles: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { routes: 128, slowest: 5, phase_percentiles: true }
    }
}

/// A route as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteName {
    /// Name of the service.
    pub service: String,
    /// Method and path.
    pub request: String,
}

/// Accumulates timelines. Memory is bounded by [`Limits`], whatever the routes are called.
#[derive(Clone, Debug)]
pub struct Summary {
    limits: Limits,
    pub(super) all: RouteStats,
    pub(super) routes: BTreeMap<String, (RouteName, RouteStats)>,
    pub(super) other: RouteStats,
    pub(super) health_checks: RouteStats,
    pub(super) slowest: Slowest,
    pub(super) slowest_incomplete: Slowest,
    incomplete: BTreeMap<&'static str, u64>,
    incomplete_total: u64,
    span: Option<(u64, u64)>,
    key: String,
}

impl Summary {
    /// An empty summary.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: RouteStats::default(),
            routes: BTreeMap::new(),
            other: RouteStats::default(),
            health_checks: RouteStats::default(),
            slowest: Slowest::new(limits.slowest),
            slowest_incomplete: Slowest::new(limits.slowest),
            incomplete: BTreeMap::new(),
            incomplete_total: 0,
            span: None,
            key: String::new(),
        }
    }

    /// Adds a request that ended; open ones are left out.
    pub fn add(&mut self, timeline: &Timeline) {
        if timeline.open {
            return;
        }
        let end = timeline.start_monotonic_ns.saturating_add(timeline.duration_ns);
        self.widen(timeline.start_monotonic_ns, end);
        if !timeline.complete {
            self.incomplete_total += 1;
            for reason in &timeline.incomplete {
                self.count_reason(reason, 1);
            }
        }
        let percentiles = self.limits.phase_percentiles;
        if route_class(&timeline.route) == RouteClass::Health {
            self.health_checks.add(timeline, percentiles);
            return;
        }
        self.all.add(timeline, percentiles);
        self.route_of(timeline).add(timeline, percentiles);
        let slowest =
            if timeline.complete { &mut self.slowest } else { &mut self.slowest_incomplete };
        slowest.offer(timeline);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        if let Some((first, last)) = other.span {
            self.widen(first, last);
        }
        self.incomplete_total += other.incomplete_total;
        for (reason, n) in &other.incomplete {
            self.count_reason(reason, *n);
        }
        self.health_checks.merge(&other.health_checks);
        self.all.merge(&other.all);
        self.other.merge(&other.other);
        for (key, (name, stats)) in &other.routes {
            if let Some((_, own)) = self.routes.get_mut(key) {
                own.merge(stats);
            } else if self.routes.len() < self.limits.routes {
                self.routes.insert(key.clone(), (name.clone(), stats.clone()));
            } else {
                self.other.merge(stats);
            }
        }
        for timeline in other.slowest.kept() {
            self.slowest.offer(timeline);
        }
        for timeline in other.slowest_incomplete.kept() {
            self.slowest_incomplete.offer(timeline);
        }
    }

    /// Requests that ended, health checks left out.
    pub fn requests(&self) -> u64 {
        self.all.requests
    }

    /// Figures of all traffic.
    pub fn all(&self) -> &RouteStats {
        &self.all
    }

    /// Routes with figures of their own, the one that took most time first.
    pub fn by_time(&self) -> Vec<(&RouteName, &RouteStats)> {
        let mut routes: Vec<_> = self.routes.values().map(|(name, stats)| (name, stats)).collect();
        routes.sort_by(|a, b| b.1.total_ns.cmp(&a.1.total_ns).then_with(|| a.0.cmp(b.0)));
        routes
    }

    /// The slowest complete requests, slowest first.
    pub fn slowest(&self) -> &[Timeline] {
        self.slowest.kept()
    }

    /// Incomplete requests slower than every slowest complete one kept, slowest first: what was
    /// lost may be why they look slow, but they must not be hidden.
    pub fn slower_incomplete(&self) -> &[Timeline] {
        let kept = self.slowest.kept();
        let full = kept.len() >= self.limits.slowest;
        let least = kept.last().filter(|_| full).map_or(0, |slow| slow.duration_ns);
        let incomplete = self.slowest_incomplete.kept();
        let n = incomplete.partition_point(|timeline| timeline.duration_ns > least);
        incomplete.get(..n).unwrap_or(&[])
    }

    /// From the first request's start to the last one's end, ns.
    pub fn span_ns(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// Incomplete timelines, health checks too.
    pub fn incomplete_total(&self) -> u64 {
        self.incomplete_total
    }

    /// Incomplete timelines by reason; one may have several.
    pub fn incomplete_by_reason(&self) -> Vec<(String, u64)> {
        self.incomplete.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect()
    }

    /// Memory in use, about, bytes; the slowest requests left out. With the default limits at most
    /// 40 MiB (twice that if allocations grew by doubling), typically below 5.
    pub fn heap_bytes(&self) -> usize {
        let route = |stats: &RouteStats| size_of::<RouteStats>() + stats.heap_bytes();
        let routes: usize = self
            .routes
            .iter()
            .map(|(key, (name, stats))| {
                key.capacity() + name.service.len() + name.request.len() + route(stats)
            })
            .sum();
        routes + route(&self.all) + route(&self.other) + route(&self.health_checks)
    }

    /// The report: figures, routes, slowest requests, losses and limits. `open`: requests that
    /// are still open.
    pub fn render(&self, health: &Health, open: &[Timeline], style: Style) -> String {
        report::render(self, health, open, style)
    }

    /// The slowest requests in full, at most `max_phases` phases of each.
    pub fn render_slowest_details(&self, style: Style, max_phases: usize) -> String {
        let all = self.slowest().iter().chain(self.slower_incomplete());
        all.map(|timeline| render_detail(timeline, style, max_phases))
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn widen(&mut self, first: u64, last: u64) {
        let (known_first, known_last) = self.span.unwrap_or((first, last));
        self.span = Some((known_first.min(first), known_last.max(last)));
    }

    fn count_reason(&mut self, reason: &'static str, n: u64) {
        let full = self.incomplete.len() >= REASONS && !self.incomplete.contains_key(reason);
        *self.incomplete.entry(if full { "other" } else { reason }).or_default() += n;
    }

    /// The figures that a timeline adds to. Once half of the names are taken, a new path that does
    /// not exist (404) gets none: a scanner would fill the table.
    fn route_of(&mut self, timeline: &Timeline) -> &mut RouteStats {
        let (service, route) = (cut(&timeline.service), cut(&timeline.route));
        self.key.clear();
        for part in [service, "\0", cut(&timeline.method), "\0", route] {
            self.key.push_str(part);
        }
        let known = self.routes.contains_key(&self.key);
        let room =
            if timeline.status == Some(404) { self.limits.routes / 2 } else { self.limits.routes };
        if !known && self.routes.len() >= room {
            return &mut self.other;
        }
        if !known {
            let request = format!("{} {route}", cut(&timeline.method));
            let name = RouteName { service: service.to_owned(), request };
            self.routes.insert(self.key.clone(), (name, RouteStats::default()));
        }
        // Always found: it was known or has just been added.
        self.routes.get_mut(&self.key).map_or(&mut self.other, |(_, stats)| stats)
    }
}

/// The head of a name that is kept.
fn cut(name: &str) -> &str {
    name.get(..name.floor_char_boundary(NAME_BYTES)).unwrap_or(name)
}
