//! Tests of the room: rule by rule, and random programs on a model of a device.

mod bench;
mod calls;
mod decoding;
mod handles;
mod life;
mod model;
mod program;
mod random;
mod rules;
mod streaks;
mod tracer;
mod waiting;
