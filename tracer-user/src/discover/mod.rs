//! Which libraries and functions to trace, and where in them: pure data, no I/O.

pub mod attach_point;
pub mod driver;
pub mod elf;
pub mod maps;
pub mod object;
pub mod process;
pub mod select;
pub mod sockets;
pub mod unix_peers;

#[cfg(test)]
mod fake_elf;
