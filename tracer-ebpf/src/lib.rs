//! The wire contract: what spanprobe's kernel half and its agent say to each other.
//!
//! Plain data in a fixed layout and nothing else: no logic, no allocation. The kernel half (this
//! package's binary) writes these records into one ring buffer; the agent's `intake` room is the
//! only place that reads them back. Every record begins with a [`wire::Header`]. All records are
//! `repr(C)`, padded by hand and size-asserted, so both halves agree on every byte.
#![no_std]

pub mod wire;
