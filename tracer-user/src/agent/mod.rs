//! The running agent: one thread drains the ring, one knows the targets, and the caller's runs the
//! pipeline. Bounded channels lead from the first two to the third.

mod asked;
pub mod clock;
pub mod drain;
mod glance;
mod identities;
pub mod meter;
mod pace;
pub mod scout;
pub mod session;
mod shared_memory;
