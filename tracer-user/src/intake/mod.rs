//! Bytes from the ring → typed events in time order.

pub mod decode;
pub mod errand;
pub mod event;
pub mod input;
pub mod order;
