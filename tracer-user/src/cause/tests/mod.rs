//! Tests of the room: edges, items, order and the walk on histories made by hand, and on arbitrary
//! ones.

mod edges;
mod hostile;
mod items;
mod memory;
mod objects;
mod order;
mod spins;
mod walk;
mod world;
