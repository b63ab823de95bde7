//! Which libraries and functions to trace, and where in them: pure data, no I/O.

pub mod attach_point;
pub mod driver;
pub mod elf;
pub mod process;
pub mod select;

#[cfg(test)]
mod fake_elf;
