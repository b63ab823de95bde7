//! What servers, clients and the simulated driver wrote down themselves.

pub mod client;
pub mod python;
pub mod server;
pub mod sim;
