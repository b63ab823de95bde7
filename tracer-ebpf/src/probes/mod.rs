//! One file per event family, named like its records in [`tracer_ebpf::wire`]; beside them the
//! programs that see the system calls, and the descriptors that these act on.

pub mod cuda;
pub mod fds;
pub mod process;
pub mod sched;
pub mod socket;
pub mod syscall;
pub mod tcp;
