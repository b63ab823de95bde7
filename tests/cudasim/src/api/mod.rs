//! The exported functions, by subject.

mod capture;
mod context;
mod copy;
mod device;
mod driver;
mod event;
mod graph;
mod graph_node;
mod launch;
mod legacy;
mod memory;
mod memset;
mod module;
mod occupancy;
mod pool;
mod stream;

use crate::stubs::Export;

/// All exported functions.
pub fn exports() -> impl Iterator<Item = &'static Export> {
    [
        capture::EXPORTS,
        context::EXPORTS,
        copy::EXPORTS,
        device::EXPORTS,
        driver::EXPORTS,
        event::EXPORTS,
        graph::EXPORTS,
        graph_node::EXPORTS,
        launch::EXPORTS,
        legacy::EXPORTS,
        memory::EXPORTS,
        memset::EXPORTS,
        module::EXPORTS,
        occupancy::EXPORTS,
        pool::EXPORTS,
        stream::EXPORTS,
    ]
    .into_iter()
    .flatten()
}
