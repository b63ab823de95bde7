//! Which memory processes share: a futex there has another address in each of them.
//!
//! Whoever waits for such a futex makes us look; who wakes it need never wait, so the same memory is
//! then looked for in all targets. Who polls memory names no address: then what two targets map
//! together is told. Reading a process's table holds up its own changes of it, so
//! tables are kept, and what did not help is done ever more seldom.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use crate::{
    discover::maps::{Shared, Stretch},
    intake::event::ProcFact,
};

/// How soon a table is read again for an address that is not in it, or a file looked for again in
/// all targets; doubled each time.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(30);
/// How long a table is believed that answers: other memory may lie at the address by then.
const TABLE_LASTS: Duration = Duration::from_secs(5);
/// Stretches kept of all processes together (48 bytes each).
const MAX_KEPT: usize = 1 << 20;
/// Stretches told of one process.
const MAX_TOLD: usize = 4_096;
/// Processes that poll.
const MAX_POLLING: usize = 1_024;
/// Files looked for.
const MAX_FILES: usize = 1_024;

/// What is known of the targets' memory.
#[derive(Default)]
pub struct SharedMemory {
    tables: HashMap<u32, Table>,
    /// Device and inode of memory in which somebody waits.
    files: HashMap<(u64, u64), Pause>,
    /// When the memory of a process that polls was last looked at.
    polling: HashMap<u32, Pause>,
    /// Stretches that were not told because there were too many.
    pub left_out: u64,
}

struct Table {
    read: Instant,
    pause: Pause,
    stretches: Vec<Stretch>,
    told: HashSet<Stretch>,
}

/// Something that is done ever more seldom.
struct Pause {
    last: Instant,
    next: Duration,
}

impl Pause {
    fn since(last: Instant) -> Self {
        Self { last, next: SOONEST }
    }

    /// Whether it is time again; if so, the next time is later.
    fn is_over(&mut self, now: Instant) -> bool {
        let over = now.saturating_duration_since(self.last) >= self.next;
        if over {
            self.last = now;
            self.next = (self.next * 2).min(LATEST);
        }
        over
    }
}

impl Table {
    fn at(&self, address: u64) -> Option<&Stretch> {
        let behind = self.stretches.partition_point(|stretch| stretch.from <= address);
        self.stretches.get(behind.checked_sub(1)?).filter(|stretch| address < stretch.to)
    }

    fn replace(&mut self, stretches: Vec<Stretch>, now: Instant) {
        self.read = now;
        let still = |told: &Stretch| {
            stretches
                .binary_search_by_key(&told.from, |stretch| stretch.from)
                .is_ok_and(|at| stretches.get(at) == Some(told))
        };
        // What has gone and comes back is told again.
        self.told.retain(still);
        self.stretches = stretches;
    }
}

impl SharedMemory {
    /// Somebody waited for the futex at this address. What is to be told of its memory: for all
    /// `targets`, which are looked at through `read`.
    pub fn waited(
        &mut self,
        (pid, address): (u32, u64),
        targets: impl Iterator<Item = u32>,
        now: Instant,
        read: impl Fn(u32) -> Vec<Stretch>,
    ) -> Vec<ProcFact> {
        let mut facts = Vec::new();
        let Some(shared) = self.find(pid, address, now, &read) else { return facts };
        let file = (shared.device, shared.inode);
        let is_new = !self.files.contains_key(&file);
        if is_new && self.files.len() >= MAX_FILES {
            // Those in which somebody still waits come again.
            self.files.clear();
        }
        let due = self.files.entry(file).or_insert_with(|| Pause::since(now)).is_over(now);
        if is_new || due {
            for target in targets {
                if target != pid {
                    self.refresh(target, now, SOONEST, &read);
                    self.tell(target, &mut facts);
                }
            }
        }
        self.tell(pid, &mut facts);
        facts
    }

    /// A thread of a process polls. What is to be told of the memory that it shares with others: for
    /// all `targets`, which are looked at through `read`.
    pub fn polls(
        &mut self,
        pid: u32,
        targets: &[u32],
        now: Instant,
        read: impl Fn(u32) -> Vec<Stretch>,
    ) -> Vec<ProcFact> {
        let mut facts = Vec::new();
        let is_new = !self.polling.contains_key(&pid);
        if is_new && self.polling.len() >= MAX_POLLING {
            self.polling.clear();
        }
        let due = self.polling.entry(pid).or_insert_with(|| Pause::since(now)).is_over(now);
        if !is_new && !due {
            return facts;
        }
        self.refresh(pid, now, SOONEST, &read);
        let own = self.meeting(pid);
        for other in targets.iter().filter(|other| **other != pid) {
            self.refresh(*other, now, SOONEST, &read);
            for file in self.meeting(*other).intersection(&own) {
                if self.files.len() < MAX_FILES {
                    self.files.entry(*file).or_insert_with(|| Pause::since(now));
                }
            }
        }
        targets.iter().for_each(|target| self.tell(*target, &mut facts));
        facts
    }

    /// Files in which a process can meet others.
    fn meeting(&self, pid: u32) -> HashSet<(u64, u64)> {
        let stretches = self.tables.get(&pid).into_iter().flat_map(|table| &table.stretches);
        let meeting = stretches.filter(|stretch| stretch.meeting);
        meeting
            .filter_map(|stretch| Some((stretch.shared?.device, stretch.shared?.inode)))
            .collect()
    }

    /// A process is a target from now on: what is to be told of the memory that it has already.
    pub fn joined(
        &mut self,
        pid: u32,
        now: Instant,
        read: impl Fn(u32) -> Vec<Stretch>,
    ) -> Vec<ProcFact> {
        let mut facts = Vec::new();
        if !self.files.is_empty() {
            self.refresh(pid, now, Duration::ZERO, &read);
            self.tell(pid, &mut facts);
        }
        facts
    }

    /// The process is gone, or began a new program.
    pub fn forget(&mut self, pid: u32) {
        self.tables.remove(&pid);
        self.polling.remove(&pid);
    }

    /// What the memory at an address is shared as.
    fn find(
        &mut self,
        pid: u32,
        address: u64,
        now: Instant,
        read: &impl Fn(u32) -> Vec<Stretch>,
    ) -> Option<Shared> {
        self.refresh(pid, now, TABLE_LASTS, read);
        let table = self.tables.get_mut(&pid)?;
        if table.at(address).is_none() && table.pause.is_over(now) {
            table.replace(read(pid), now);
        }
        let shared = table.at(address)?.shared;
        if shared.is_some() {
            table.pause = Pause::since(now);
        }
        shared
    }

    /// Reads a process's table if it is older than this, or not there.
    fn refresh(
        &mut self,
        pid: u32,
        now: Instant,
        age: Duration,
        read: &impl Fn(u32) -> Vec<Stretch>,
    ) {
        if let Some(table) = self.tables.get_mut(&pid) {
            if now.saturating_duration_since(table.read) >= age {
                table.replace(read(pid), now);
            }
            return;
        }
        let stretches = read(pid);
        let kept: usize = self.tables.values().map(|table| table.stretches.len()).sum();
        if kept + stretches.len() > MAX_KEPT {
            self.tables.clear();
        }
        let pause = Pause::since(now);
        self.tables.insert(pid, Table { read: now, pause, stretches, told: HashSet::new() });
    }

    /// What a process maps of the files in which somebody waits, each once.
    fn tell(&mut self, pid: u32, facts: &mut Vec<ProcFact>) {
        let Some(table) = self.tables.get_mut(&pid) else { return };
        for stretch in &table.stretches {
            let Some(Shared { device, inode, offset }) = stretch.shared else { continue };
            if !self.files.contains_key(&(device, inode)) || table.told.contains(stretch) {
                continue;
            }
            if table.told.len() >= MAX_TOLD {
                self.left_out += 1;
                continue;
            }
            table.told.insert(*stretch);
            let Stretch { from, to, .. } = *stretch;
            facts.push(ProcFact::Shared { pid, from, to, device, inode, offset });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn stretch(from: u64, shared: Option<(u64, u64)>) -> Stretch {
        let shared = shared.map(|(inode, offset)| Shared { device: 1, inode, offset });
        Stretch { from, to: from + 0x1000, shared, meeting: shared.is_some() }
    }

    fn pids(facts: &[ProcFact]) -> Vec<(u32, u64)> {
        let mut list: Vec<_> = facts
            .iter()
            .map(|fact| match fact {
                ProcFact::Shared { pid, from, .. } => (*pid, *from),
                other => panic!("{other:?}"),
            })
            .collect();
        list.sort_unstable();
        list
    }

    /// Process 1 maps file 7 at 0x1000, process 2 at 0x8000 and 0x9000, process 3 does not.
    fn three(pid: u32) -> Vec<Stretch> {
        match pid {
            1 => vec![stretch(0x1000, Some((7, 0))), stretch(0x2000, None)],
            2 => vec![stretch(0x8000, Some((7, 0))), stretch(0x9000, Some((7, 0x1000)))],
            _ => vec![stretch(0x1000, Some((8, 0)))],
        }
    }

    #[test]
    fn a_wait_tells_of_all_who_share_the_memory_once() {
        let mut memory = SharedMemory::default();
        let now = Instant::now();
        let facts = memory.waited((1, 0x1234), 1..=3, now, three);
        assert_eq!(pids(&facts), [(1, 0x1000), (2, 0x8000), (2, 0x9000)]);
        assert_eq!(memory.waited((1, 0x1234), 1..=3, now, three), []);
        assert_eq!(memory.waited((1, 0x1234), 1..=3, now + 9 * LATEST, three), []);
        assert_eq!(pids(&memory.joined(4, now, |_| three(1))), [(4, 0x1000)]);
    }

    #[test]
    fn ones_own_memory_is_nobodys_business() {
        let mut memory = SharedMemory::default();
        let now = Instant::now();
        assert_eq!(memory.waited((1, 0x2000), 1..=3, now, three), []);
        assert_eq!(memory.waited((1, 0x7000), 1..=3, now, three), []);
        assert_eq!(memory.joined(2, now, three), []);
    }

    #[test]
    fn who_maps_it_later_is_found_later() {
        let mut memory = SharedMemory::default();
        let now = Instant::now();
        let before = |pid| if pid == 2 { Vec::new() } else { three(pid) };
        assert_eq!(pids(&memory.waited((1, 0x1000), 1..=3, now, before)), [(1, 0x1000)]);
        let facts = memory.waited((1, 0x1000), 1..=3, now + SOONEST, three);
        assert_eq!(pids(&facts), [(2, 0x8000), (2, 0x9000)]);
    }

    #[test]
    fn other_memory_at_the_same_address_is_told_and_told_again() {
        let mut memory = SharedMemory::default();
        let mut now = Instant::now();
        for inode in [7, 9, 7] {
            let read = |_| vec![stretch(0x1000, Some((inode, 0)))];
            let facts = memory.waited((1, 0x1000), 1..=1, now, read);
            let wanted =
                matches!(facts[..], [ProcFact::Shared { inode: told, .. }] if told == inode);
            assert!(wanted, "{facts:?}");
            now += TABLE_LASTS;
        }
    }

    #[test]
    fn who_polls_makes_what_two_map_known() {
        let mut memory = SharedMemory::default();
        let now = Instant::now();
        let facts = memory.polls(1, &[1, 2, 3], now, three);
        assert_eq!(pids(&facts), [(1, 0x1000), (2, 0x8000), (2, 0x9000)]);
        assert_eq!(memory.polls(1, &[1, 2, 3], now + 2 * SOONEST, three), []);
        // What only one maps is nobody else's business.
        assert_eq!(memory.polls(3, &[1, 2, 3], now, three), []);
    }

    #[test]
    fn tables_are_read_seldom() {
        let mut memory = SharedMemory::default();
        let (reads, start) = (Cell::new(0), Instant::now());
        let read = |pid| {
            reads.set(reads.get() + 1);
            three(pid)
        };
        // A hundred thousand waits in ten seconds, for an address that is in no table.
        for n in 0..100_000 {
            let now = start + Duration::from_micros(100 * n);
            memory.waited((1, 0x7000), 1..=3, now, read);
        }
        assert!(reads.get() <= 10, "{} readings", reads.get());
    }

    #[test]
    fn no_more_is_told_than_allowed() {
        let mut memory = SharedMemory::default();
        let read =
            |_| (0..2 * MAX_TOLD as u64).map(|n| stretch(n << 12, Some((7, n << 12)))).collect();
        let facts = memory.waited((1, 0), 1..=1, Instant::now(), read);
        assert_eq!(facts.len(), MAX_TOLD);
        assert_eq!(memory.left_out, MAX_TOLD as u64);
    }
}
