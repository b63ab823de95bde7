//! Test parts for spanprobe: a compiled inference server, a load client and their oracles.
//!
//! Nothing here is shared with the tracer. The server and the client stamp `CLOCK_MONOTONIC`
//! right before and right after each of their own socket and driver calls and write the stamps
//! as JSON lines; the tracer's findings are judged against them.

pub mod bare;
pub mod clock;
pub mod driver;
pub mod gpu;
pub mod hash;
pub mod http;
pub mod job;
pub mod live;
pub mod load;
pub mod options;
pub mod oracle;
pub mod plan;
pub mod poll;
pub mod pool;
pub mod queue;
pub mod receive;
pub mod reply;
pub mod ring;
pub mod serve;
pub mod signals;
pub mod socket;
pub mod target;
pub mod tasks;
pub mod wire;
pub mod work;
