//! The reading end of the ring, and the launches that the kernel half still gathers.

use std::{
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{HashMap, MapData, RingBuf},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracer_ebpf::wire::{
    Header,
    cuda::{LAUNCHES_OPEN, Launches},
};

use super::ProbeError;

const RUN_BYTES: usize = size_of::<Launches>();

/// The ring and what is read beside it.
pub struct Ring {
    ring: RingBuf<MapData>,
    launches: HashMap<MapData, u64, [u8; RUN_BYTES]>,
}

impl Ring {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, ProbeError> {
        let ring = ebpf.take_map("RING").ok_or(ProbeError::Missing("RING"))?;
        let launches = ebpf.take_map("LAUNCHES").ok_or(ProbeError::Missing("LAUNCHES"))?;
        Ok(Self {
            ring: ring.try_into().map_err(|error| ProbeError::Map { map: "RING", error })?,
            launches: launches
                .try_into()
                .map_err(|error| ProbeError::Map { map: "LAUNCHES", error })?,
        })
    }

    /// Hands every waiting record to `sink`, at most `limit` of them; returns how many.
    pub fn drain(&mut self, limit: usize, mut sink: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < limit {
            let Some(record) = self.ring.next() else { break };
            sink(&record);
            count += 1;
        }
        count
    }

    /// Whether records wait that cannot be read yet, since one before them is still being written.
    /// Then sleeps a moment and takes one off `patience`, at whose end it gives up.
    pub fn is_held_up(&self, patience: &mut u32) -> bool {
        if *patience == 0 {
            return false;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.ring, PollFlags::IN)];
        // The descriptor polls readable as long as anything lies in the ring.
        if !poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
            return false;
        }
        *patience -= 1;
        std::thread::sleep(Duration::from_micros(500));
        true
    }

    /// Forgets the runs that are gathering: their probes are gone.
    pub fn forget_gathering(&mut self) {
        let threads: Vec<u64> = self.launches.keys().filter_map(Result::ok).collect();
        for thread in threads {
            // One that is gone is what was wanted.
            let _ = self.launches.remove(&thread);
        }
    }

    /// Hands a copy of every run of launches that is still gathering to `sink`, marked open. Counts
    /// are cumulative, so a run may be read while it grows; one that is being begun meanwhile is
    /// left for the next time.
    pub fn gathering(&self, mut sink: impl FnMut(&[u8])) {
        const COUNT: usize = offset_of!(Launches, count);
        const FLAGS: usize = offset_of!(Launches, header) + offset_of!(Header, flags);
        for (thread, mut run) in self.launches.iter().filter_map(Result::ok) {
            let again = self.launches.get(&thread, 0);
            if !again.is_ok_and(|again| identity(&again) == identity(&run)) {
                continue;
            }
            if run.get(COUNT..COUNT + 4).is_none_or(|count| count == [0; 4]) {
                continue;
            }
            if let Some(flags) = run.get_mut(FLAGS..FLAGS + 2) {
                let old = flags.first_chunk::<2>().map_or(0, |f| u16::from_ne_bytes(*f));
                flags.copy_from_slice(&(old | LAUNCHES_OPEN).to_ne_bytes());
            }
            sink(&run);
        }
    }
}

/// What does not change while a run grows: its identity, first launch, stream and function.
fn identity(run: &[u8; RUN_BYTES]) -> [Option<&[u8]>; 2] {
    const FROM: usize = offset_of!(Launches, run_id);
    const LAST: usize = offset_of!(Launches, last_ns);
    const STREAM: usize = offset_of!(Launches, stream);
    const COUNT: usize = offset_of!(Launches, count);
    [run.get(FROM..LAST), run.get(STREAM..COUNT)]
}

/// The descriptor polls readable when the kernel half asks to be read before its time.
impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
