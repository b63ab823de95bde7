//! Where events can die in the kernel half. Each place has a counter, summed over CPUs by user
//! space.

/// A place where an event can be lost: index into the loss counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Loss {
    /// The ring was full: a socket record.
    RingSocket = 0,
    /// The ring was full: a TCP record.
    RingTcp = 1,
    /// The ring was full: a CUDA record.
    RingCuda = 2,
    /// The ring was full: a process record.
    RingProcess = 3,
    /// No room to remember a thread: counted when it is born, and for each of its calls.
    MapThread = 4,
    /// No room to remember a descriptor.
    MapFd = 5,
    /// No room to remember a CUDA call between entry and return.
    MapCudaCall = 6,
    /// No room to gather launches: they were sent one by one.
    MapLaunches = 7,
    /// No room to follow a forked process.
    MapTarget = 8,
    /// A launch's arguments could not be read; the launch was counted on an unknown stream.
    CudaArgs = 9,
    /// The ring was full: a record of the scheduler or of a wait.
    RingSched = 10,
    /// A thread came back from a sleep whose wake was not seen: the kernel skips the program at
    /// `sched_waking` where an interrupt wakes somebody on top of another program. Its sleep says
    /// so too.
    WakeUnseen = 11,
}

/// Number of loss counters.
pub const LOSS_COUNT: u32 = 12;
