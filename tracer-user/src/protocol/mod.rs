//! Parsers for what travels over connections. They are sans-io, never fail and never panic: they
//! return what they recognised and name what they did not. Payload bytes never leave them.
pub mod detect;
pub mod http1;
pub mod sse;
pub mod trace_context;
