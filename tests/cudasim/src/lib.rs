//! A **simulated** CUDA driver, part of spanprobe's tests: a `libcuda.so.1` with the real one's
//! names, stub prologues and semantics, for machines without a GPU.
//!
//! Nothing is computed. Device memory is host memory, copies move bytes, kernels only take time.
//! What ran, when and for whom is written to an oracle against which a tracer can be judged.
//! `README.md` beside this crate says what can be chosen and what is not simulated.

mod abi;
mod api;
mod callbacks;
mod capture;
mod clock;
mod config;
mod effects;
mod engine;
mod error;
mod event;
mod fault;
mod graph;
mod handles;
mod memory;
mod module;
mod oracle;
mod proc_address;
mod process;
mod schedule;
mod sim;
mod stream;
mod stubs;
