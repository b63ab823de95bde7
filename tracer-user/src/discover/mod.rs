//! Which libraries and functions to trace, and where in them: pure data, no I/O.

pub mod attach_point;
pub mod binary;
pub mod container;
mod diag;
pub mod driver;
pub mod elf;
pub mod kernel;
pub mod listeners;
pub mod maps;
pub mod object;
pub mod process;
pub mod refusal;
pub mod select;
pub mod sockets;
pub mod status;
pub mod unix_peers;

#[cfg(test)]
mod fake_elf;
