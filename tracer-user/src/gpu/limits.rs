//! How much this room may hold, and what it counts when that is not enough.

/// Caps. What exceeds one is given up, oldest first, and counted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processes.
    pub processes: usize,
    /// Threads per process.
    pub threads: usize,
    /// Streams per process, destroyed ones with work outstanding included.
    pub streams: usize,
    /// Events per process.
    pub events: usize,
    /// Outstanding operations per stream.
    pub ops_per_stream: usize,
    /// Outstanding operations per process.
    pub ops_per_process: usize,
    /// Outstanding `cuStreamWaitEvent` marks per stream.
    pub marks: usize,
    /// Remembered NOT_READY answers per stream.
    pub floors: usize,
    /// Ranges of page-locked and managed memory per process.
    pub ranges: usize,
    /// Function names per process.
    pub functions: usize,
    /// Graphs, executable graphs and captures, each, per process.
    pub graphs: usize,
    /// Completed operations and steps, each, kept per process for `cuEventElapsedTime`.
    pub recent: usize,
    /// Named waits kept per process, to be told again where an overlapping call shows more.
    pub named: usize,
    /// Ids of operations and threads listed in a step; sums go on beyond.
    pub step_list: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            processes: 4_096,
            threads: 65_536,
            streams: 16_384,
            events: 65_536,
            ops_per_stream: 65_536,
            ops_per_process: 131_072,
            marks: 4_096,
            floors: 32,
            ranges: 65_536,
            functions: 65_536,
            graphs: 16_384,
            recent: 16_384,
            named: 1_024,
            step_list: 1_024,
        }
    }
}

/// What happened here, for the agent's own report. All are totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls taken in.
    pub calls: u64,
    /// Records of launches taken in.
    pub launch_records: u64,
    /// Calls that returned an error.
    pub failed_calls: u64,
    /// Operations enqueued.
    pub ops: u64,
    /// Operations given up without a fact: caps, context gone, process gone.
    pub ops_estimated: u64,
    /// Of these, because a cap was reached.
    pub ops_evicted: u64,
    /// Operations recorded into a graph, not run.
    pub ops_captured: u64,
    /// Operations taken back: their stream turned out to be capturing.
    pub ops_withdrawn: u64,
    /// Launches whose stream could not be read.
    pub unknown_stream: u64,
    /// Operations given up since their context turned out to be ambiguous.
    pub context_ambiguous: u64,
    /// Records of launches that came after their operation had been completed.
    pub late_launch_records: u64,
    /// Processes given up because a cap was reached.
    pub processes_evicted: u64,
    /// Threads given up because a cap was reached.
    pub threads_evicted: u64,
    /// Streams given up because a cap was reached.
    pub streams_evicted: u64,
    /// Events given up because a cap was reached.
    pub events_evicted: u64,
    /// Wait marks given up because a cap was reached.
    pub marks_evicted: u64,
    /// Memory ranges not kept because a cap was reached.
    pub ranges_refused: u64,
    /// Function names not kept because a cap was reached.
    pub functions_refused: u64,
    /// Graphs and captures given up because a cap was reached.
    pub graphs_evicted: u64,
    /// Waits told again, undivided.
    pub waits_told_again: u64,
    /// Reports of lost CUDA events.
    pub losses: u64,
}

/// Numbers given out, unique within a session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids {
    last_op: u64,
    last_step: u64,
}

impl Ids {
    pub(super) fn op(&mut self) -> u64 {
        self.last_op += 1;
        self.last_op
    }

    pub(super) fn step(&mut self) -> u64 {
        self.last_step += 1;
        self.last_step
    }
}
