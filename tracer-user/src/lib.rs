//! spanprobe: where the time of every inference request went, seen from outside the server.
//!
//! Data flows one way: `discover → probe → intake → stream/protocol and gpu → timeline → export`.
//! From `intake` to `timeline` everything is synchronous, does no I/O and reads no clock, so a
//! recorded session replays bit for bit without root, without eBPF and without a GPU.
#![forbid(unsafe_code)]

#[cfg(feature = "live")]
pub mod agent;
pub mod cause;
pub mod cli;
pub mod cost;
pub mod discover;
#[cfg(feature = "live")]
pub mod doctor;
pub mod explain;
pub mod export;
pub mod gpu;
pub mod happening;
mod in_order;
pub mod intake;
mod mix;
pub mod nvml;
pub mod pipeline;
#[cfg(feature = "live")]
pub mod probe;
pub mod protocol;
pub mod record;
mod room;
pub mod stream;
pub mod timeline;
