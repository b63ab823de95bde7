//! What was lately, in bounded memory, and an answer to the question why it is slow: pure, times
//! come with the requests.

mod answer;
mod recorder;
mod report;
mod sample;
#[cfg(test)]
mod tests;
mod why;

pub use recorder::{FlightRecorder, Held};
pub use report::{
    Figures, GpuWhy, OpenWhy, PhaseWhy, QueueWhy, RouteWhy, Share, Slow, State, TracerWhy, Traffic,
    Why,
};
