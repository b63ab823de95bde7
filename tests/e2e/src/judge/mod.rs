//! What is judged, one question a file. Each compares spanprobe's word with that of the servers,
//! clients and driver of the same run, so that a slow machine changes both sides alike.

pub mod bounds;
pub mod calls;
pub mod causes;
pub mod in_turn;
pub mod instants;
pub mod links;
pub mod phases;
pub mod roles;
pub mod stalls;
pub mod verdict;
