//! What the kernel half could not send, and what its programs cost.

use std::{fs, os::fd::AsFd as _, os::fd::AsRawFd as _};

use aya::{
    Ebpf,
    maps::{MapData, PerCpuArray},
    programs::ProgramFd,
};
use tracer_ebpf::wire::loss::{LOSS_COUNT, Loss};

use super::ProbeError;
use crate::intake::event::Losses;

/// Interrupts wake somebody on top of other programs all the time, and mostly nobody that is traced.
/// What that loses of a target is counted where its thread comes back ([`Loss::WakeUnseen`]).
const COUNTS_ITSELF: &str = "sched_waking";

/// Reads the loss counters; keeps what was reported before, so that each reading is a difference.
pub struct LossReader {
    counters: PerCpuArray<MapData, u64>,
    programs: Vec<(String, ProgramFd)>,
    last: [u64; LOSS_COUNT as usize],
    last_recursion: u64,
}

/// The kernel's own statistics of one program (`/proc/self/fdinfo`). Run times are 0 unless
/// `kernel.bpf_stats_enabled` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Name.
    pub name: String,
    /// ns spent in it.
    pub run_time_ns: u64,
    /// Times it ran.
    pub run_count: u64,
    /// Times it was skipped because it was nested.
    pub recursion_misses: u64,
}

impl LossReader {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, ProbeError> {
        let counters = ebpf.take_map("LOSSES").ok_or(ProbeError::Missing("LOSSES"))?;
        let programs = ebpf
            .programs()
            .filter_map(|(name, program)| {
                Some((name.to_owned(), program.fd().ok()?.try_clone().ok()?))
            })
            .collect();
        Ok(Self {
            counters: counters
                .try_into()
                .map_err(|error| ProbeError::Map { map: "LOSSES", error })?,
            programs,
            last: [0; LOSS_COUNT as usize],
            last_recursion: 0,
        })
    }

    /// Events lost since the last call. Nested runs that the kernel skipped are counted with
    /// `statistics` only: asking for them costs a file per program.
    ///
    /// # Errors
    /// Where the kernel does not answer.
    pub fn read(&mut self, statistics: bool) -> Result<Losses, ProbeError> {
        let mut delta = [0u64; LOSS_COUNT as usize];
        for (index, (delta, last)) in (0..LOSS_COUNT).zip(delta.iter_mut().zip(&mut self.last)) {
            let total = self
                .counters
                .get(&index, 0)
                .map_err(|error| ProbeError::Map { map: "LOSSES", error })?
                .iter()
                .sum::<u64>();
            *delta = total.saturating_sub(*last);
            *last = total;
        }
        let recursion: u64 = if statistics {
            let others = self.programs().filter(|program| program.name != COUNTS_ITSELF);
            others.map(|program| program.recursion_misses).sum()
        } else {
            self.last_recursion
        };
        let recursion_delta = recursion.saturating_sub(self.last_recursion);
        self.last_recursion = recursion;
        let at = |place: Loss| delta.get(place as usize).copied().unwrap_or(0);
        Ok(Losses {
            socket: at(Loss::RingSocket) + at(Loss::MapThread) + at(Loss::MapFd),
            tcp: at(Loss::RingTcp),
            cuda: at(Loss::RingCuda) + at(Loss::MapCudaCall) + at(Loss::CudaArgs),
            process: at(Loss::RingProcess) + at(Loss::MapTarget),
            sched: at(Loss::RingSched) + at(Loss::WakeUnseen),
            recursion: recursion_delta,
        })
    }

    /// Statistics of every program that is loaded.
    pub fn programs(&self) -> impl Iterator<Item = ProgramStats> + '_ {
        self.programs.iter().map(|(name, fd)| {
            let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
            let mut stats = ProgramStats { name: name.clone(), ..ProgramStats::default() };
            for line in fs::read_to_string(path).unwrap_or_default().lines() {
                let Some((key, value)) = line.split_once(':') else { continue };
                let value = value.trim().parse().unwrap_or(0);
                match key {
                    "run_time_ns" => stats.run_time_ns = value,
                    "run_cnt" => stats.run_count = value,
                    "recursion_misses" => stats.recursion_misses = value,
                    _ => {}
                }
            }
            stats
        })
    }
}
