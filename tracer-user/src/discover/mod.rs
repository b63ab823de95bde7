//! Which libraries and functions to trace, and where in them: pure data, no I/O.

pub mod attach_point;
pub mod driver;
pub mod elf;

#[cfg(test)]
mod fake_elf;
