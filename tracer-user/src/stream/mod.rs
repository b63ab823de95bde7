//! Socket events → ordered byte streams per connection → exchanges.
//!
//! [`streams::Streams`] takes the typed events in their order and says which requests were served
//! (or made) on which connection, when each of their parts passed through a system call, and which
//! connections carry something that is not parsed.
pub mod arrival;
pub mod conn;
pub mod context;
pub mod doubt;
pub mod exchange;
pub mod facts;
pub mod io;
pub mod limits;
pub mod names;
pub mod open;
pub mod streams;
pub mod track;
pub mod tuples;

#[cfg(test)]
mod tests;

pub use exchange::{Exchange, Flow, FlowKind, Out, Outcome, Role, Stamp, reason};
pub use limits::{Counters, Limits};
pub use streams::Streams;
