//! What a process uses: processor time and memory.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::clock::until;

/// Clock ticks per second in `/proc` on every architecture that spanprobe runs on.
const TICKS: f64 = 100.0;

/// CPU time that a process has used, s.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit(')').next().context("an odd /proc/PID/stat")?;
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(ticks as f64 / TICKS)
}

/// The same, once the process has nothing left to do: an agent builds timelines a second after
/// their requests, and may have fallen behind.
pub(super) fn settled_cpu_seconds(pid: u32) -> Result<f64> {
    const GRACE: Duration = Duration::from_millis(1_500);
    const LOOK: Duration = Duration::from_millis(300);
    const BUSY: f64 = 0.025;
    thread::sleep(GRACE);
    let mut last = cpu_seconds(pid)?;
    until("an agent that is idle", Duration::from_secs(120), || {
        thread::sleep(LOOK);
        let now = cpu_seconds(pid).ok()?;
        (now - std::mem::replace(&mut last, now) <= BUSY).then_some(())
    })?;
    Ok(last)
}

/// Memory, MiB.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Memory {
    /// Resident, the ring and the program's own pages included.
    pub rss_mib: f64,
    /// Of these, anonymous: what it allocated.
    pub anonymous_mib: f64,
    /// Largest resident size so far, without the mappings of the ring, which are there from the
    /// beginning and are the kernel's memory.
    pub peak_without_ring_mib: f64,
}

/// Resident size of the ring's mappings, MiB. They are mapped twice, so that a record that wraps
/// is in one piece, and count twice.
fn ring_mib(pid: u32) -> Result<f64> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let mut in_ring = false;
    let mut kib = 0.0;
    for line in smaps.lines() {
        match line.split_once(':') {
            Some(("Rss", size)) if in_ring => {
                let size = size.trim().trim_end_matches(" kB");
                kib += size.parse::<f64>().with_context(|| line.to_owned())?;
            }
            // Fields have names in capitals; a mapping begins with its addresses.
            Some((name, _)) if name.starts_with(|first: char| first.is_ascii_uppercase()) => {}
            _ => in_ring = line.ends_with("anon_inode:bpf-map"),
        }
    }
    Ok(kib / 1024.0)
}

impl Memory {
    /// Of a process.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mib = |name: &str| -> Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib: f64 = line
                .and_then(|line| {
                    line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
                })
                .with_context(|| name.to_owned())?;
            Ok(kib / 1024.0)
        };
        Ok(Self {
            rss_mib: mib("VmRSS")?,
            anonymous_mib: mib("RssAnon")?,
            peak_without_ring_mib: mib("VmHWM")? - ring_mib(pid)?,
        })
    }
}

/// The number before `word` in spanprobe's summary.
pub(super) fn number_before(text: &str, word: &str) -> Option<u64> {
    let before = text.get(..text.find(word)?)?;
    let digits: String = before.split_whitespace().last()?.chars().filter(|c| *c != ',').collect();
    digits.parse().ok()
}
