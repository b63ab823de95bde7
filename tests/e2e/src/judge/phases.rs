//! Do the phases tile the request, and do they name only what facts separate?

use crate::timeline::{GPU_PHASES, Phase, Timeline};

/// Sorted, without gap or overlap, from the start to the end.
pub fn tile(timeline: &Timeline) -> bool {
    let mut at = 0;
    for phase in &timeline.phases {
        if phase.offset_ns != at {
            return false;
        }
        at += phase.duration_ns;
    }
    let sum: u64 = timeline.phases.iter().map(|phase| phase.duration_ns).sum();
    at == timeline.duration_ns && sum == timeline.duration_ns
}

/// Its GPU time is phase `gpu`, of which facts bound at most one stretch: no part of it is named.
/// (A call of the driver that took long, because its thread had no processor or because it waited,
/// may be an estimated stretch of its own; and where another thread's synchronise proved the work
/// complete first, this one's proves nothing.)
pub fn undivided(timeline: &Timeline) -> bool {
    let gpu = |phase: &&Phase| GPU_PHASES.contains(&phase.phase.as_str());
    let named = timeline.phases.iter().filter(gpu).any(|phase| phase.phase != "gpu");
    let bounded = timeline.phases.iter().filter(gpu).filter(|phase| phase.method != "estimated");
    timeline.has_gpu_phase() && !named && bounded.count() <= 1
}

/// It has `h2d` and `d2h` phases, all of them measured directly.
pub fn copies_are_direct(timeline: &Timeline) -> bool {
    ["h2d", "d2h"].iter().all(|name| {
        let mut phases = timeline.phases.iter().filter(|phase| phase.phase == *name).peekable();
        phases.peek().is_some() && phases.all(|phase| phase.method == "direct")
    })
}

/// Time that nothing explains, of all time.
pub fn unattributed<'a>(timelines: impl Iterator<Item = &'a Timeline>) -> Option<f64> {
    let (mut unknown, mut all) = (0, 0);
    for timeline in timelines {
        unknown += timeline.time_in("unattributed");
        all += timeline.duration_ns;
    }
    (all > 0).then(|| unknown as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(duration: u64, phases: &[(&str, u64, u64, &str)]) -> Timeline {
        let phases: Vec<_> = phases
            .iter()
            .map(|(name, offset, duration, method)| {
                serde_json::json!({
                    "phase": name, "offset_ns": offset, "duration_ns": duration,
                    "method": method, "lower_ns": 0, "upper_ns": 0
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "trace_id": "", "span_id": "", "service": "", "pid": 1, "protocol": "http/1.1",
            "method": "GET", "route": "/", "peer": "", "arrival": "socket",
            "start_monotonic_ns": 5, "duration_ns": duration, "request_bytes": 0,
            "response_bytes": 0, "phases": phases, "links": [], "complete": true
        }))
        .unwrap()
    }

    #[test]
    fn gaps_overlaps_and_wrong_sums_do_not_tile() {
        let first = ("receive", 0, 4, "observed");
        assert!(tile(&timeline(10, &[first, ("send", 4, 6, "observed")])));
        assert!(!tile(&timeline(10, &[first, ("send", 5, 5, "observed")])));
        assert!(!tile(&timeline(10, &[first, ("send", 3, 7, "observed")])));
        assert!(!tile(&timeline(10, &[first, ("send", 4, 5, "observed")])));
        assert!(!tile(&timeline(10, &[])));
        assert!(tile(&timeline(0, &[])));
    }

    #[test]
    fn a_named_part_is_a_division() {
        let step = ("gpu", 0, 6, "sync-bounded");
        assert!(undivided(&timeline(6, &[step])));
        assert!(undivided(&timeline(9, &[("gpu", 6, 3, "estimated"), step])));
        assert!(!undivided(&timeline(9, &[step, ("d2h", 6, 3, "direct")])));
        assert!(!undivided(&timeline(9, &[step, ("gpu", 6, 3, "sync-bounded")])));
        assert!(!undivided(&timeline(9, &[("send", 0, 9, "observed")])));
    }

    #[test]
    fn copies_need_both_directions_measured() {
        let (copy_in, copy_out) = (("h2d", 0, 3, "direct"), ("d2h", 3, 3, "direct"));
        assert!(copies_are_direct(&timeline(6, &[copy_in, copy_out])));
        assert!(!copies_are_direct(&timeline(6, &[copy_in])));
        assert!(!copies_are_direct(&timeline(6, &[copy_in, ("d2h", 3, 3, "sync-bounded")])));
    }
}
