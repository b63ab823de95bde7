//! Tests of the room: rule by rule, and random programs on a model of a device.

mod calls;
mod model;
mod program;
mod random;
mod tracer;
