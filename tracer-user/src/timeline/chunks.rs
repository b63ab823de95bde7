//! Chunks of a streamed response.

use super::model::{Chunks, Gaps, LongestGap, Phase, PhaseName};
use crate::stream::Exchange;

/// What is said of a response's chunks; `None` where it was not streamed.
pub fn summarise(exchange: &Exchange, start_ns: u64, phases: &[Phase]) -> Option<Chunks> {
    let first = *exchange.chunk_times_ns.first()?;
    if !exchange.sse && exchange.chunks < 2 {
        return None;
    }
    let mut gaps: Vec<u64> = exchange
        .chunk_times_ns
        .windows(2)
        .filter_map(|pair| Some(pair.get(1)?.saturating_sub(*pair.first()?)))
        .collect();
    gaps.sort_unstable();
    let at = |share: usize| {
        let index = (gaps.len().saturating_sub(1) * share).div_ceil(100);
        gaps.get(index).copied().unwrap_or(0)
    };
    let longest = exchange.longest_gap.map(|(from, to)| LongestGap {
        offset_ns: from.saturating_sub(start_ns),
        phase: dominant(phases, from.saturating_sub(start_ns), to.saturating_sub(start_ns)),
    });
    let longest_ns = exchange.longest_gap.map_or(0, |(from, to)| to.saturating_sub(from));
    Some(Chunks {
        count: exchange.chunks,
        first_offset_ns: first.saturating_sub(start_ns),
        offsets_ns: exchange.chunk_times_ns.iter().map(|at| at.saturating_sub(start_ns)).collect(),
        gaps_ns: Gaps { p50: at(50), p99: at(99), max: longest_ns.max(at(100)) },
        longest,
    })
}

/// The phase that fills most of a stretch of the request.
fn dominant(phases: &[Phase], from: u64, to: u64) -> PhaseName {
    let mut filled = [0u64; PhaseName::ALL.len()];
    for phase in phases {
        let begin = phase.offset_ns.max(from);
        let end = (phase.offset_ns + phase.duration_ns).min(to);
        let slot = PhaseName::ALL.iter().position(|name| *name == phase.phase);
        if let Some(sum) = slot.and_then(|index| filled.get_mut(index)) {
            *sum += end.saturating_sub(begin);
        }
    }
    let most = filled.iter().max().copied().unwrap_or(0);
    let index = filled.iter().position(|sum| *sum == most && most > 0);
    index.and_then(|index| PhaseName::ALL.get(index)).copied().unwrap_or(PhaseName::Unattributed)
}
