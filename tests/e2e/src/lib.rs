//! End-to-end runs: real servers and clients, the simulated CUDA driver, spanprobe attached to
//! them, and what it reports held against the records that servers, clients and driver keep
//! themselves.
//!
//! spanprobe's own code is used to read session files only. What is true comes from the others.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cgroup;
pub mod child;
pub mod client;
pub mod clock;
pub mod corpus;
pub mod demo;
pub mod env;
pub mod judge;
pub mod matching;
pub mod measure;
pub mod oracles;
pub mod peers;
pub mod ping_pong;
pub mod probes;
pub mod prometheus;
pub mod raw;
pub mod recorded;
pub mod report;
pub mod scenarios;
pub mod scratch;
pub mod server;
pub mod session;
pub mod timeline;
pub mod tracer;
