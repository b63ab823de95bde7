//! Is every request reported, none twice, and each one that is missing matched by a counted loss?

use crate::judge::{bounds::Bounds, phases};
use crate::matching::{Matched, matched};
use crate::measure::Share;
use crate::oracles::client::ClientRequest;
use crate::report::Scenario;
use crate::tracer::Traced;

/// Of ten thousand requests ten may be missing.
const REPORTED: f64 = 0.999;

/// Matches, and judges what holds for every scenario.
pub fn judge(scenario: &mut Scenario, requests: &[ClientRequest], traced: &Traced) -> Matched {
    let found = matched(requests, &traced.timelines);
    scenario.ran = true;
    scenario.requests = requests.len() as u64;
    let failed = requests.iter().filter(|request| request.error.is_some()).count();
    let first = requests.iter().find_map(|request| request.error.as_deref());
    scenario.demand(failed == 0, || format!("{failed} requests failed: {first:?}"));

    let once = Share {
        good: (found.pairs.len().saturating_sub(found.twice.len())) as u64,
        all: requests.len() as u64,
    };
    scenario.reported_once_ratio = once.ratio();
    scenario.add("reported_once_low95", once.low95());
    scenario.demand_share("requests reported once", once, REPORTED);
    scenario.add("reported_twice", found.twice.len());
    scenario.demand(found.twice.is_empty(), || format!("{} reported twice", found.twice.len()));
    scenario.add("foreign_timelines", found.foreign.len());
    let strange = found.foreign.first().and_then(|at| traced.timelines.get(*at));
    scenario.demand(found.foreign.is_empty(), || {
        format!("{} timelines of no request, such as {strange:?}", found.foreign.len())
    });
    scenario.add("missing", found.missing.len());
    scenario.add("open_at_end", traced.open.len());
    if let Some(session) = &traced.session {
        let lost = session.losses.socket + session.losses.process + session.losses.recursion;
        scenario.add("lost", serde_json::json!(session.losses));
        scenario.add("events", session.events);
        let missing = found.missing.len() as u64;
        let first = found.missing.first().and_then(|at| requests.get(*at));
        scenario.demand(missing <= lost, || {
            format!("{missing} requests are missing, {lost} losses were counted; {first:?}")
        });
    }

    let mut tiles = Share::default();
    for timeline in &traced.timelines {
        tiles.add(phases::tile(timeline));
    }
    scenario.phases_tile_ratio = tiles.ratio();
    scenario.demand_share("timelines whose phases tile", tiles, 1.0);
    scenario.unattributed_ratio = phases::unattributed(traced.timelines.iter());

    let mut status = Share::default();
    for (request, timeline) in &found.pairs {
        if let (Some(request), Some(timeline)) =
            (requests.get(*request), traced.timelines.get(*timeline))
        {
            status.add(timeline.status == Some(request.status));
        }
    }
    scenario.add_share("status_right", status);
    scenario.demand_share("statuses as the client saw them", status, 1.0);
    found
}

/// Writes down what the bounds of GPU work were worth.
pub fn bounds(scenario: &mut Scenario, bounds: &Bounds) {
    scenario.gpu_bounds_contain_ratio = bounds.contain.ratio();
    scenario.gpu_bounds_width_ratio = bounds.width();
    scenario.add("gpu_bounds_width_ratio_by_method", serde_json::json!(bounds.widths()));
    scenario.add("gpu_operations", bounds.contain.all);
    scenario.add("gpu_operations_unseen", bounds.unseen);
}
