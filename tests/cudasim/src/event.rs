//! Events: the last record of each, as a completion or as a place in a capture.

use crate::abi::Handle;
use crate::schedule::When;

/// `CU_EVENT_DISABLE_TIMING`.
pub const DISABLE_TIMING: u32 = 2;

/// An event. Each record replaces the one before: waits refer to the record they found.
pub struct Event {
    pub ctx: Handle,
    pub flags: u32,
    pub last: Last,
}

/// The most recent record.
#[derive(Clone)]
pub enum Last {
    /// None so far: the event counts as complete.
    Never,
    Recorded(When),
    /// Recorded in a capture: stands for these nodes there, and proves nothing.
    Captured {
        capture: u64,
        nodes: Vec<usize>,
    },
}
