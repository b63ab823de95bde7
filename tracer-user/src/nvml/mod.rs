//! What the GPUs themselves say: NVML's readings, each with its state and the time it was taken.
//!
//! Only this room knows NVML. [`sampler`] asks, on threads of its own, through the library that is
//! loaded at run time ([`library`]); what it is told enters the pipeline as an input with a time, so
//! that a recorded session gives the same readings again. The rest is pure: [`history`] keeps the
//! latest samples and finds the one that belongs to a request, [`watch`] tells what changed.

pub mod history;
#[cfg(feature = "live")]
pub mod library;
pub mod metrics;
#[cfg(feature = "live")]
mod read;
pub mod reading;
#[cfg(feature = "live")]
pub mod sampler;
#[cfg(feature = "live")]
mod set;
#[cfg(test)]
pub(crate) mod testing;
pub mod told;
pub mod watch;

pub use history::{Gpu, History, Joined, Snapshot};
pub use reading::{Reading, State, Taken};
pub use told::{Device, Listed, ProcessUse, Sample, Told};
