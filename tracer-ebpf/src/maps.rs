//! Every map, its size and its owner. Plain hashes with explicit deletion: an insert that fails is
//! counted, never an eviction that is not.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, PerCpuArray, RingBuf},
};
use tracer_ebpf::wire::{
    cuda::Launches,
    loss::LOSS_COUNT,
    offsets::FIELD_COUNT,
    policy::{ConnPolicy, FdInfo, FdKey, SETTING_COUNT, Target},
};

use crate::state::{PendingCall, PendingKey, Scratch, Streak, Thread};

/// Everything that goes to user space. The agent sets its size when it loads.
#[map]
pub static RING: RingBuf = RingBuf::with_byte_size(32 << 20, 0);

/// Processes that are traced. Owner: user space; the kernel half adds forked children and removes
/// the dead.
#[map]
pub static TARGETS: HashMap<u32, Target> = HashMap::with_max_entries(4096, 0);

/// Local ports whose TCP events are wanted. Owner: user space.
#[map]
pub static PORTS: HashMap<u32, u8> = HashMap::with_max_entries(4096, 0);

/// Descriptors of the targets. Owner: the kernel half; user space adds what was open before.
#[map]
pub static FDS: HashMap<FdKey, FdInfo> = HashMap::with_max_entries(131_072, 0);

/// Per-connection decisions. Owner: user space.
#[map]
pub static CONN_POLICY: HashMap<u64, ConnPolicy> = HashMap::with_max_entries(131_072, 0);

/// Threads of the targets, by thread id. Owner: the kernel half; user space adds those that were
/// there before.
#[map]
pub static THREADS: HashMap<u32, Thread> = HashMap::with_max_entries(32_768, 0);

/// Driver calls between entry and return, by thread and function. Owner: the kernel half.
#[map]
pub static CUDA_CALLS: HashMap<PendingKey, PendingCall> = HashMap::with_max_entries(16_384, 0);

/// Launches being gathered, by thread. Owner: the kernel half; user space reads it.
#[map]
pub static LAUNCHES: HashMap<u64, Launches> = HashMap::with_max_entries(16_384, 0);

/// Streaks of `CUDA_ERROR_NOT_READY`, by thread. Owner: the kernel half.
#[map]
pub static STREAKS: HashMap<u64, Streak> = HashMap::with_max_entries(16_384, 0);

/// Events lost, by [`tracer_ebpf::wire::loss::Loss`].
#[map]
pub static LOSSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOSS_COUNT, 0);

/// Where a socket record is put together. Only the system-call exit program writes it, and that
/// program does not nest on one CPU.
#[map]
pub static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// Settings by [`tracer_ebpf::wire::policy::Setting`]. Owner: user space.
#[map]
pub static SETTINGS: Array<u32> = Array::with_max_entries(SETTING_COUNT, 0);

/// Offsets of tracepoint fields, by [`tracer_ebpf::wire::offsets::Field`]. Set at load.
#[unsafe(no_mangle)]
pub static OFFSETS: [u32; FIELD_COUNT] = [0; FIELD_COUNT];

/// Fill of the ring, bytes, at which the reader is woken before its time. Set at load.
#[unsafe(no_mangle)]
pub static WAKE_AT: u64 = 16 << 20;
