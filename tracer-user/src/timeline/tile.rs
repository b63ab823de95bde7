//! Phases that tile: contiguous, without overlap, their sum the request's duration.

use std::{borrow::Cow, collections::BTreeMap};

use super::model::{Method, Phase, PhaseName};

/// Most phases of one request; what comes behind is one `unattributed` phase that says so.
pub const MAX_PHASES: usize = 1024;

/// A stretch of time with a name, before it is made to fit its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Begin, ns of `CLOCK_MONOTONIC`.
    pub from_ns: u64,
    /// End, ns.
    pub to_ns: u64,
    /// Name.
    pub phase: PhaseName,
    /// How it is known.
    pub method: Method,
    /// Bounds of the GPU time in it, ns; `None` where its length is what is meant.
    pub bounds: Option<(u64, u64)>,
    /// More, in words.
    pub detail: Cow<'static, str>,
}

impl Stretch {
    /// A stretch between two events.
    pub fn observed(phase: PhaseName, from_ns: u64, to_ns: u64) -> Self {
        let method = Method::Observed;
        Self { from_ns, to_ns, phase, method, bounds: None, detail: Cow::Borrowed("") }
    }
}

/// Lays stretches over `[start, end]` in the order given: an earlier one keeps what it covers. What
/// none covers is `unattributed`.
pub fn tile<'a>(
    start_ns: u64,
    end_ns: u64,
    stretches: impl IntoIterator<Item = &'a Stretch>,
) -> Vec<Phase> {
    let mut laid = BTreeMap::new();
    for stretch in stretches {
        let from = stretch.from_ns.max(start_ns);
        let to = stretch.to_ns.min(end_ns);
        lay(&mut laid, from, to, stretch);
    }
    let mut phases = Vec::with_capacity(laid.len() + 1);
    let mut at = start_ns;
    for (from_ns, Laid { to_ns, stretch }) in laid {
        // This one, what is free before it, and what is free behind it must fit.
        if phases.len() + 3 > MAX_PHASES {
            let rest = Stretch { detail: "too many phases".into(), ..unattributed(at, end_ns) };
            phases.push(phase(start_ns, at, end_ns, &rest));
            return phases;
        }
        if from_ns > at {
            phases.push(phase(start_ns, at, from_ns, &unattributed(at, from_ns)));
        }
        phases.push(phase(start_ns, from_ns, to_ns, stretch));
        at = to_ns;
    }
    if at < end_ns || phases.is_empty() {
        phases.push(phase(start_ns, at, end_ns, &unattributed(at, end_ns)));
    }
    phases
}

/// What is left of a stretch where it was laid.
struct Laid<'a> {
    to_ns: u64,
    stretch: &'a Stretch,
}

fn unattributed(from_ns: u64, to_ns: u64) -> Stretch {
    Stretch::observed(PhaseName::Unattributed, from_ns, to_ns)
}

/// Adds what earlier stretches, by their begin, leave free of `[from, to)`.
fn lay<'a>(laid: &mut BTreeMap<u64, Laid<'a>>, from: u64, to: u64, stretch: &'a Stretch) {
    let mut at = from;
    if let Some((_, before)) = laid.range(..=from).next_back() {
        at = at.max(before.to_ns);
    }
    if at >= to {
        return;
    }
    let inside: Vec<(u64, u64)> = laid.range(at..to).map(|(from, s)| (*from, s.to_ns)).collect();
    for (begin, end) in inside.into_iter().chain([(to, to)]) {
        if begin > at {
            laid.insert(at, Laid { to_ns: begin, stretch });
        }
        at = at.max(end);
    }
}

/// The part of a stretch from `from_ns` to `to_ns`.
fn phase(start_ns: u64, from_ns: u64, to_ns: u64, stretch: &Stretch) -> Phase {
    let length = to_ns - from_ns;
    let (lower_ns, upper_ns) = match stretch.bounds {
        // A stretch that was cut cannot hold more than its own length.
        Some((lower, upper)) => (lower.min(length), upper),
        None => (length, length),
    };
    Phase {
        phase: stretch.phase,
        offset_ns: from_ns - start_ns,
        duration_ns: length,
        method: stretch.method,
        lower_ns,
        upper_ns: upper_ns.max(lower_ns),
        detail: stretch.detail.clone(),
    }
}

/// Whether the phases are sorted, contiguous and sum to the duration.
pub fn tiles(phases: &[Phase], duration_ns: u64) -> bool {
    let mut at = 0;
    for phase in phases {
        if phase.offset_ns != at {
            return false;
        }
        at += phase.duration_ns;
    }
    at == duration_ns && !phases.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_laid_wins() {
        let stretches = [
            Stretch::observed(PhaseName::Kernel, 20, 40),
            Stretch::observed(PhaseName::Send, 30, 60),
            Stretch::observed(PhaseName::Receive, 10, 50),
        ];
        let phases = tile(10, 100, &stretches);
        let got: Vec<_> = phases.iter().map(|p| (p.phase, p.offset_ns, p.duration_ns)).collect();
        assert_eq!(
            got,
            [
                (PhaseName::Receive, 0, 10),
                (PhaseName::Kernel, 10, 20),
                (PhaseName::Send, 30, 20),
                (PhaseName::Unattributed, 50, 40),
            ]
        );
    }

    proptest! {
        #[test]
        fn whatever_is_laid_tiles(
            start in 0u64..1000,
            length in 0u64..5000,
            spans in prop::collection::vec((0u64..7000, 0u64..7000, 0usize..10), 0..60),
        ) {
            let stretches: Vec<_> = spans
                .iter()
                .map(|(a, b, p)| Stretch::observed(PhaseName::ALL[*p], *a, *b))
                .collect();
            let phases = tile(start, start + length, &stretches);
            prop_assert!(tiles(&phases, length));
            prop_assert!(phases.len() <= MAX_PHASES);
        }

        #[test]
        fn many_stretches_are_capped(count in 0usize..4000) {
            let stretches: Vec<_> = (0..count as u64)
                .map(|i| Stretch::observed(PhaseName::Kernel, i * 10, i * 10 + 5))
                .collect();
            let phases = tile(0, 50_000, &stretches[..count.min(1500)]);
            prop_assert!(tiles(&phases, 50_000));
            prop_assert!(phases.len() <= MAX_PHASES);
        }
    }
}
