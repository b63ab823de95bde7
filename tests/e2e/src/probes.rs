//! Which breakpoints are in a process right now: the text of the driver in its memory, compared
//! with the file. That is what a uprobe is, so it shows attachment and detachment without asking
//! spanprobe.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result};

/// An executable mapping of a library.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
}

fn mappings(pid: u32, name: &str) -> Result<Vec<Mapping>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Ok(maps
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (range, rights) = (fields.next()?, fields.next()?);
            let offset = hex(fields.next()?)?;
            if !rights.contains('x') || !line.contains(name) {
                return None;
            }
            let (start, end) = range.split_once('-')?;
            Some(Mapping { start: hex(start)?, end: hex(end)?, offset })
        })
        .collect())
}

/// Bytes of the driver's code in the process that differ from its file: one for each uprobe.
///
/// # Errors
/// Where the process or the file cannot be read.
pub fn inserted(pid: u32) -> Result<usize> {
    let memory = File::open(format!("/proc/{pid}/mem")).context("the process's memory")?;
    let mut differing = 0;
    for mapping in mappings(pid, "libcuda.so")? {
        let length = usize::try_from(mapping.end - mapping.start)?;
        let (mut mapped, mut stored) = (vec![0; length], vec![0; length]);
        memory.read_exact_at(&mut mapped, mapping.start)?;
        // The file by way of the mapping: it may have another path, or none any more.
        let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
        let file = File::open(&link).with_context(|| link)?;
        let mut at = 0;
        while at < length {
            let rest = stored.get_mut(at..).unwrap_or_default();
            match file.read_at(rest, mapping.offset + at as u64)? {
                // The last page reaches beyond the file.
                0 => break,
                read => at += read,
            }
        }
        differing += mapped.iter().zip(&stored).take(at).filter(|(a, b)| a != b).count();
    }
    Ok(differing)
}
