//! What this room holds at most, and what it had to let go.

/// Caps. What exceeds one is counted in [`Counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections. Beyond, the sixteenth part that was silent longest is let go.
    pub connections: usize,
    /// Requests of one connection that are open at once. Those beyond are not reported.
    pub exchanges_per_connection: usize,
    /// Open requests of all connections.
    pub exchanges: usize,
    /// Arrived segments of one connection that are told apart. Beyond, neighbours are merged and
    /// share a time.
    pub arrivals_per_connection: usize,
    /// Arrived segments of all connections.
    pub arrivals: usize,
    /// Connections known only to the TCP stack: not accepted yet, or not of a traced process.
    pub unaccepted: usize,
    /// Descriptors that name connections and listeners.
    pub names: usize,
    /// Times of chunks that are kept for one response.
    pub chunk_times: usize,
    /// Calls that are kept for one response.
    pub writes: usize,
    /// Bytes of unfinished heads of all connections. Beyond, the head that grew is cut.
    pub head_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 65_536,
            exchanges_per_connection: 64,
            exchanges: 262_144,
            arrivals_per_connection: 4_096,
            arrivals: 1 << 20,
            unaccepted: 16_384,
            names: 262_144,
            chunk_times: 4_096,
            writes: 4_096,
            head_bytes: 256 << 20,
        }
    }
}

/// What happened beside the exchanges, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Exchanges that were emitted as finished.
    pub exchanges: u64,
    /// Connections that were not parsed, emitted at their end.
    pub flows: u64,
    /// Connections let go because of [`Limits::connections`].
    pub connections_evicted: u64,
    /// Requests not reported because of [`Limits::exchanges_per_connection`] or
    /// [`Limits::exchanges`].
    pub exchanges_untracked: u64,
    /// Segments merged because of [`Limits::arrivals_per_connection`] or [`Limits::arrivals`].
    pub arrivals_merged: u64,
    /// Handshakes let go because of [`Limits::unaccepted`].
    pub unaccepted_evicted: u64,
    /// Descriptors not remembered because of [`Limits::names`].
    pub names_refused: u64,
    /// Heads cut because of [`Limits::head_bytes`].
    pub heads_cut: u64,
    /// Messages that were due and did not come, or came where nothing was known.
    pub resyncs: u64,
    /// Requests of a server whose arrival was not seen.
    pub arrivals_unknown: u64,
    /// Those of them where what was seen could not be told apart by more than a millisecond.
    pub arrivals_ambiguous: u64,
    /// Calls on one connection that overlapped in time.
    pub overlapping_calls: u64,
    /// Descriptors that turned out to name another connection: their close was not seen.
    pub closes_unseen: u64,
    /// Calls on connections of which nothing else was known when they came.
    pub unintroduced: u64,
}
