//! One file per event family, named like its records in [`tracer_ebpf::wire`].

pub mod cuda;
pub mod process;
pub mod socket;
pub mod syscall;
pub mod tcp;
