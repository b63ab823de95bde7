//! Calls of the CUDA driver.

use super::Header;
use crate::assert_size;

/// [`Launches`]: the run is still gathering; a later record with the same `run_id` holds more.
pub const LAUNCHES_OPEN: u16 = 1;
/// [`Launches`]: more than one function was launched; `function` is the first.
pub const LAUNCHES_MIXED: u16 = 2;
/// [`Launches`] and [`Call`]: the symbol was a `_ptsz` or `_ptds` variant, so that stream 0 is the
/// thread's own default stream.
pub const CUDA_PER_THREAD: u16 = 4;
/// [`Call`]: `out` could not be read.
pub const CUDA_OUT_FAULT: u16 = 8;
/// [`Call`]: the payload could not be read.
pub const CUDA_PAYLOAD_FAULT: u16 = 16;
/// [`Launches`]: the stream could not be read.
pub const CUDA_STREAM_FAULT: u16 = 32;

/// Launches of kernels by one thread on one stream, with no other driver call between: gathered in
/// the kernel. Counts are cumulative: a record replaces earlier ones with the same `run_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Launches {
    /// Time: when the record was made. Flags: `LAUNCHES_*`, `CUDA_*`.
    pub header: Header,
    /// The run, unique since boot per thread: entry time of its first launch.
    pub run_id: u64,
    /// Entry of the first launch, ns of `CLOCK_MONOTONIC`.
    pub first_ns: u64,
    /// Entry of the last launch, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
    /// `CUstream` as passed.
    pub stream: u64,
    /// `CUfunction` (or `CUkernel`) of the first launch.
    pub function: u64,
    /// Launches.
    pub count: u32,
    /// [`super::cuda_api::Api`] of the first launch.
    pub api: u16,
    /// Zero.
    pub pad: u16,
    /// Grid of the first launch, blocks.
    pub grid: [u32; 3],
    /// Threads per block in x, of the first launch.
    pub block_x: u32,
}
assert_size!(Launches, 24 + 64);

/// One call with entry and return. `time_ns` is the return. Where the function's
/// [`super::cuda_api::Take`] says so, a payload follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Call {
    /// Time: the return. Flags: `CUDA_*`.
    pub header: Header,
    /// Entry, ns of `CLOCK_MONOTONIC`.
    pub enter_ns: u64,
    /// The first six integer arguments, as passed.
    pub args: [u64; 6],
    /// What the function wrote through its first argument, where [`super::cuda_api::Take`] asks.
    pub out: u64,
    /// `CUresult`.
    pub ret: i32,
    /// [`super::cuda_api::Api`].
    pub api: u16,
    /// Payload bytes that follow.
    pub payload: u16,
}
assert_size!(Call, 24 + 72);

/// Bytes of the key of a call that has not returned: the packed ids (`u64`, process above thread),
/// then the [`super::cuda_api::Api`] (`u64`).
pub const PENDING_KEY_BYTES: usize = 16;
/// Bytes of what is kept of it; it begins with its entry (`u64`, ns of `CLOCK_MONOTONIC`).
pub const PENDING_CALL_BYTES: usize = 80;

/// Bytes of a kernel's name that are taken, terminator included.
pub const NAME_LEN: usize = 128;
/// Bytes of `CUDA_MEMCPY2D` (cuda.h).
pub const MEMCPY2D_LEN: usize = 128;
/// Bytes of `CUDA_MEMCPY3D` (cuda.h).
pub const MEMCPY3D_LEN: usize = 200;
/// Longest payload of a [`Call`].
pub const MAX_PAYLOAD: usize = 200;
