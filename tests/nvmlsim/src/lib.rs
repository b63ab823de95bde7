//! A **simulated** NVML, part of spanprobe's tests: a `libnvidia-ml.so.1` with the real one's names,
//! structures, codes and rules for buffers, for machines without a GPU.
//!
//! What it answers follows the simulated CUDA device (`tests/cudasim`), through the oracle that this
//! writes, and a script. `README.md` beside this crate says what can be chosen.

mod api;
mod error;
mod follow;
mod gpu;
mod library;
mod script;
