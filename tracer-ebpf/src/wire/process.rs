//! Birth and death of threads and processes, and code that a process maps.

use super::Header;
use crate::assert_size;

/// `CLONE_THREAD` of `sched.h`: the new task is a thread of the same process.
pub const CLONE_THREAD: u64 = 0x0001_0000;

/// A thread or process of a target was created (`task:task_newtask`). The header names the
/// creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct NewTask {
    /// Time: the creation.
    pub header: Header,
    /// Flags of `clone(2)`: with [`CLONE_THREAD`] a thread, otherwise a process.
    pub clone_flags: u64,
    /// Thread id of the new task (also its process id where it is a process).
    pub tid: u32,
    /// Zero.
    pub pad: u32,
}
assert_size!(NewTask, 24 + 16);

/// Some process (target or not) has begun a new program (`sched:sched_process_exec`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Exec {
    /// Time: the exec.
    pub header: Header,
}
assert_size!(Exec, 24);

/// A thread of a target has ended (`sched:sched_process_exit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Exit {
    /// Time: the exit. The header names the thread; when it is the group's leader and no other
    /// thread is left, the process is gone.
    pub header: Header,
    /// 1 where this was the process's last thread, 0 where others live on, 2 where the kernel's
    /// tracepoint does not say.
    pub group_dead: u32,
    /// Zero.
    pub pad: u32,
}
assert_size!(Exit, 24 + 8);

/// A process has mapped a file as executable: a library may have been loaded. Targets only, or
/// every process where processes are chosen by the library that they load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MapExec {
    /// Time: exit of `mmap(2)`.
    pub header: Header,
    /// Address that the kernel chose.
    pub address: u64,
}
assert_size!(MapExec, 24 + 8);
