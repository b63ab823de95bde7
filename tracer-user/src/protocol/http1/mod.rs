//! HTTP/1.0 and HTTP/1.1 (RFC 9110, RFC 9112) from bytes with gaps, without I/O.
//!
//! [`Http1`] takes the bytes of each system call on one connection, either side, and says which
//! messages began and ended in them. See [`parser`] for what it does where bytes are missing.
pub mod body;
pub mod ending;
pub mod event;
pub mod head;
pub mod ledger;
pub mod parser;
pub mod reader;
pub mod segment;

#[cfg(test)]
mod tests;

pub use event::{Event, Passed, Side, Tally};
pub use parser::{Http1, fuzz};
