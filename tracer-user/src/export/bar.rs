//! Bars: a request's time laid out over a number of columns.

use crate::timeline::model::{Phase, PhaseName};

use super::palette;
use super::style::{Line, Paint, Style};

/// What one column of a bar shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The phase.
    pub phase: PhaseName,
    /// Estimated, inferred or undivided.
    pub hatched: bool,
}

/// The cells of a request's bar: `width` of them, none where no phase has a length.
pub fn cells(phases: &[Phase], width: usize) -> Vec<Cell> {
    cells_of(
        phases.iter().map(|phase| {
            (Cell { phase: phase.phase, hatched: palette::hatched(phase) }, phase.duration_ns)
        }),
        width,
    )
}

/// The cells of a bar whose parts follow each other, each with its length: `width` of them, none
/// where no part has a length.
///
/// Few parts: shares by largest remainder, every part at least one cell. More parts than half the
/// columns: each cell shows what fills most of it, and each phase stays visible somewhere.
pub fn cells_of(parts: impl Iterator<Item = (Cell, u64)>, width: usize) -> Vec<Cell> {
    let mut merged: Vec<(Cell, u64)> = Vec::new();
    for (cell, length) in parts.filter(|(_, length)| *length > 0) {
        match merged.last_mut() {
            Some((last, sum)) if *last == cell => *sum = sum.saturating_add(length),
            _ => merged.push((cell, length)),
        }
    }
    if merged.is_empty() || width == 0 {
        return Vec::new();
    }
    if merged.len() == 1 || merged.len() * 2 <= width {
        let lengths: Vec<u64> = merged.iter().map(|(_, length)| *length).collect();
        merged
            .iter()
            .zip(apportion(&lengths, width))
            .flat_map(|((cell, _), n)| std::iter::repeat_n(*cell, n))
            .collect()
    } else {
        let mut cells = dominant(&merged, width);
        show_missing(&merged, &mut cells);
        cells
    }
}

/// Parts `width` cells among non-zero lengths (at most `width` of them): one cell for each that
/// would get less than one, the rest by largest remainder. The sum is exactly `width`.
pub fn apportion(lengths: &[u64], width: usize) -> Vec<usize> {
    let mut pinned = vec![false; lengths.len()];
    let (mut cells, mut total);
    loop {
        let free = || lengths.iter().zip(&pinned).filter(|(_, pinned)| !**pinned);
        cells = width.saturating_sub(lengths.len() - free().count()) as u128;
        total = free().map(|(length, _)| u128::from(*length)).sum::<u128>();
        let small = |length: u64| u128::from(length) * cells < total;
        let now: Vec<bool> =
            lengths.iter().zip(&pinned).map(|(length, p)| *p || small(*length)).collect();
        if now == pinned {
            break;
        }
        pinned = now;
    }
    let total = total.max(1);
    let mut shares: Vec<usize> = Vec::with_capacity(lengths.len());
    let mut remainders: Vec<(u128, usize)> = Vec::new();
    for (i, (length, pinned)) in lengths.iter().zip(&pinned).enumerate() {
        let exact = u128::from(*length) * cells;
        shares.push(if *pinned { 1 } else { (exact / total) as usize });
        if !*pinned {
            remainders.push((exact % total, i));
        }
    }
    // Largest remainder first; the earlier part where they are equal.
    remainders.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let missing = width.saturating_sub(shares.iter().sum());
    for (_, i) in remainders.into_iter().take(missing) {
        if let Some(share) = shares.get_mut(i) {
            *share += 1;
        }
    }
    shares
}

/// For each of `width` equal stretches of time, what fills most of it (the earlier where equal).
pub fn dominant<T: Copy + PartialEq>(parts: &[(T, u64)], width: usize) -> Vec<T> {
    // Times are multiplied by the width, so that each stretch is `total` long.
    let scale = width as u128;
    let total: u128 = parts.iter().map(|(_, length)| u128::from(*length)).sum();
    let mut out = Vec::with_capacity(width);
    let mut rest = parts.iter().map(|(cell, length)| (*cell, u128::from(*length) * scale));
    let mut current = rest.next();
    for _ in 0..width {
        let mut room = total;
        let mut filled: Vec<(T, u128)> = Vec::new();
        while let (Some((cell, length)), true) = (current, room > 0) {
            let taken = length.min(room);
            room -= taken;
            match filled.iter_mut().find(|(known, _)| *known == cell) {
                Some((_, sum)) => *sum += taken,
                None => filled.push((cell, taken)),
            }
            current = if taken < length { Some((cell, length - taken)) } else { rest.next() };
        }
        let most = filled.iter().map(|(_, sum)| *sum).max();
        if let Some((cell, _)) = filled.iter().find(|(_, sum)| Some(*sum) == most) {
            out.push(*cell);
        }
    }
    out
}

/// Gives each phase that no cell shows the cell in the middle of its longest part, unless that
/// would hide another phase.
fn show_missing(parts: &[(Cell, u64)], cells: &mut [Cell]) {
    let total: u128 = parts.iter().map(|(_, length)| u128::from(*length)).sum();
    for phase in PhaseName::ALL {
        if cells.iter().any(|cell| cell.phase == phase) {
            continue;
        }
        let mut at = 0_u128;
        let mut longest: Option<(Cell, u64, u128)> = None;
        for (cell, length) in parts {
            if cell.phase == phase && longest.is_none_or(|(_, most, _)| *length > most) {
                longest = Some((*cell, *length, at + u128::from(*length) / 2));
            }
            at += u128::from(*length);
        }
        let Some((cell, _, middle)) = longest else { continue };
        let index = (middle * cells.len() as u128 / total.max(1)) as usize;
        let Some(hidden) = cells.get(index).map(|cell| cell.phase) else { continue };
        let spare = cells.iter().filter(|cell| cell.phase == hidden).count() > 1;
        if let (true, Some(slot)) = (spare, cells.get_mut(index)) {
            *slot = cell;
        }
    }
}

/// Draws cells: each part begins with its letter; in ASCII the letter goes on (solid) or `~`
/// follows (hatched).
pub fn draw(line: &mut Line, cells: &[Cell], style: Style) {
    for run in cells.chunk_by(|a, b| a == b) {
        let Some(cell) = run.first() else { continue };
        palette::put_letter(line, cell.phase, cell.hatched, style);
        let fill = match (cell.phase, style.unicode, cell.hatched) {
            (PhaseName::Unattributed, true, false) => '·',
            (_, true, false) => '█',
            (_, true, true) => '▒',
            (_, false, true) => '~',
            (phase, false, false) => palette::letter(phase),
        };
        let rest: String = std::iter::repeat_n(fill, run.len() - 1).collect();
        line.put(&rest, Paint::Phase(cell.phase));
    }
}

/// Draws the bar of `phases` in a field of `width` columns.
pub fn put(line: &mut Line, phases: &[Phase], width: usize, style: Style) {
    put_cells(line, &cells(phases, width), width, style);
}

/// Draws cells in a field of `width` columns.
pub fn put_cells(line: &mut Line, cells: &[Cell], width: usize, style: Style) {
    draw(line, cells, style);
    line.gap(width.saturating_sub(cells.len()));
}
