//! Records and map values, one file per event family.

pub mod cuda;
pub mod cuda_api;
pub mod header;
pub mod loss;
pub mod offsets;
pub mod policy;
pub mod process;
pub mod sched;
pub mod socket;
pub mod tcp;

pub use header::{Header, Kind};

/// Version of the layout of everything in [`crate::wire`]. Raised with any change; a recording
/// states the version that it was made with and is refused by an agent that speaks another.
pub const WIRE_VERSION: u32 = 2;

/// Fails the build when a record's size is not what both halves were told.
#[macro_export]
macro_rules! assert_size {
    ($type:ty, $bytes:expr) => {
        const _: () = assert!(core::mem::size_of::<$type>() == $bytes);
        const _: () = assert!(core::mem::size_of::<$type>() % 8 == 0);
    };
}
