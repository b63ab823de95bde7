//! What the probes keep in maps between one event and the next: values that user space never sees.

use tracer_ebpf::wire::socket::{Io, MAX_CAPTURE};

/// A system call between its entry and its exit.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Pending {
    pub enter_ns: u64,
    pub conn_id: u64,
    pub args: [u64; 5],
    pub fd: i32,
    pub capture_len: u32,
    pub flags: u16,
    pub op: u8,
    pub class: u8,
    pub pad: u32,
}

/// A socket record being put together. Twice the capture, so that offset and length can be masked
/// one by one.
#[repr(C)]
pub struct Scratch {
    pub io: Io,
    pub data: [u8; 2 * MAX_CAPTURE],
}

/// A call between entry and return: calls may nest, but not one function in itself.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PendingKey {
    pub ids: u64,
    pub api: u64,
}

/// What is remembered from entry to return.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PendingCall {
    pub enter_ns: u64,
    pub args: [u64; 6],
    pub stack: [u64; 3],
}

/// Queries of one object that said "not ready", one after the other.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Streak {
    pub api: u64,
    pub object: u64,
    pub last_enter_ns: u64,
    pub count: u64,
}
