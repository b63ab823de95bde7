//! Follows the oracle of the simulated CUDA driver: what ran on which device, for whom, and who
//! holds how much of its memory.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The window that utilisation is measured in, ns. It ends [`LAG_NS`] ago, since the oracle is
/// written up to a tenth of a second late.
const WINDOW_NS: u64 = 200_000_000;
const LAG_NS: u64 = 150_000_000;
/// Operations that ended so long ago are forgotten, ns.
const KEPT_NS: u64 = 2_000_000_000;

#[derive(Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
enum Line {
    Op {
        kind: String,
        pid: u32,
        device: u32,
        start_ns: u64,
        end_ns: u64,
    },
    Memory {
        pid: u32,
        device: u32,
        used: u64,
    },
    Exit {
        pid: u32,
    },
    #[serde(other)]
    Other,
}

struct Busy {
    device: u32,
    pid: u32,
    copies: bool,
    start_ns: u64,
    end_ns: u64,
}

/// What is known of the simulated device.
#[derive(Default)]
pub struct Follow {
    path: Option<PathBuf>,
    offset: u64,
    /// The beginning of a line that is not whole yet.
    rest: Vec<u8>,
    busy: VecDeque<Busy>,
    /// Memory held, by device and process.
    held: BTreeMap<(u32, u32), u64>,
}

/// How busy a device was, percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Utilization {
    /// With kernels.
    pub gpu: u64,
    /// With copies.
    pub memory: u64,
}

impl Follow {
    /// Follows this file, which need not exist yet.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, ..Self::default() }
    }

    /// Takes in what was written since the last call.
    pub fn catch_up(&mut self, now_ns: u64) {
        if let Some(path) = self.path.clone()
            && let Some(text) = self.news(&path)
        {
            self.rest.extend_from_slice(&text);
            let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let lines: Vec<u8> = self.rest.drain(..whole).collect();
            for line in lines.split(|byte| *byte == b'\n') {
                if let Ok(line) = serde_json::from_slice(line) {
                    self.take(line);
                }
            }
        }
        let old = now_ns.saturating_sub(KEPT_NS);
        self.busy.retain(|busy| busy.end_ns >= old);
        // Who was killed wrote no exit.
        self.held.retain(|(_, pid), _| Path::new(&format!("/proc/{pid}")).exists());
    }

    fn news(&mut self, path: &Path) -> Option<Vec<u8>> {
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::Start(self.offset)).ok()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).ok()?;
        self.offset += text.len() as u64;
        Some(text)
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Op { kind, pid, device, start_ns, end_ns } => {
                let copies = match kind.as_str() {
                    "kernel" => false,
                    "h2d" | "d2h" | "d2d" | "memset" => true,
                    _ => return,
                };
                self.held.entry((device, pid)).or_insert(0);
                self.busy.push_back(Busy { device, pid, copies, start_ns, end_ns });
            }
            Line::Memory { pid, device, used } => drop(self.held.insert((device, pid), used)),
            Line::Exit { pid } => self.held.retain(|(_, holder), _| *holder != pid),
            Line::Other => {}
        }
    }

    /// How busy the device was; for one process where one is named.
    pub fn utilization(&self, device: u32, pid: Option<u32>, now_ns: u64) -> Utilization {
        let to = now_ns.saturating_sub(LAG_NS);
        let from = to.saturating_sub(WINDOW_NS);
        let share = |copies: bool| {
            let of_these = |busy: &&Busy| {
                busy.device == device
                    && busy.copies == copies
                    && pid.is_none_or(|pid| pid == busy.pid)
            };
            let mut spans: Vec<(u64, u64)> = self
                .busy
                .iter()
                .filter(of_these)
                .map(|busy| (busy.start_ns.max(from), busy.end_ns.min(to)))
                .filter(|(start, end)| start < end)
                .collect();
            spans.sort_unstable();
            covered(&spans) * 100 / WINDOW_NS
        };
        Utilization { gpu: share(false), memory: share(true) }
    }

    /// Who holds how much of the device, in the order of their ids.
    pub fn processes(&self, device: u32) -> impl Iterator<Item = (u32, u64)> + '_ {
        let of_this = self.held.iter().filter(move |((held, _), _)| *held == device);
        of_this.map(|((_, pid), bytes)| (*pid, *bytes))
    }
}

/// How much of time the sorted spans cover.
fn covered(spans: &[(u64, u64)]) -> u64 {
    let mut sum = 0;
    let mut until = 0;
    for (start, end) in spans {
        sum += end.saturating_sub((*start).max(until));
        until = until.max(*end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn utilisation_is_the_part_of_the_window_that_was_covered() {
        assert_eq!(covered(&[(0, 10), (5, 15), (6, 7), (20, 30)]), 25);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut follow = Follow::new(Some(file.path().to_owned()));
        let pid = std::process::id();
        let line = |kind: &str, start: u64, end: u64| {
            format!(
                "{{\"t\":\"op\",\"kind\":\"{kind}\",\"pid\":{pid},\"device\":0,\
                 \"start_ns\":{start},\"end_ns\":{end}}}\n"
            )
        };
        const MS: u64 = 1_000_000;
        // The window ends 150 ms before now and is 200 ms long: 650 to 850 ms.
        let now = 1_000 * MS;
        let text = line("kernel", 700 * MS, 800 * MS) + &line("h2d", 600 * MS, 700 * MS);
        let (first, second) = text.split_at(text.len() - 9);
        file.write_all(first.as_bytes()).unwrap();
        follow.catch_up(now);
        let kernels_only = Utilization { gpu: 50, memory: 0 };
        assert_eq!(follow.utilization(0, None, now), kernels_only);
        // A line that was cut is taken in once it is whole.
        file.write_all(second.as_bytes()).unwrap();
        let memory = format!("{{\"t\":\"memory\",\"pid\":{pid},\"device\":0,\"used\":512}}\n");
        file.write_all(memory.as_bytes()).unwrap();
        follow.catch_up(now);
        assert_eq!(follow.utilization(0, Some(pid), now), Utilization { gpu: 50, memory: 25 });
        assert_eq!(follow.utilization(1, None, now), Utilization::default());
        assert_eq!(follow.processes(0).collect::<Vec<_>>(), [(pid, 512)]);
        file.write_all(format!("{{\"t\":\"exit\",\"pid\":{pid}}}\n").as_bytes()).unwrap();
        follow.catch_up(now);
        assert_eq!(follow.processes(0).count(), 0);
    }
}
