//! What holds for the whole session, asked once at its start.

use rustix::rand::{GetRandomFlags, getrandom};
use tracer_ebpf::wire::WIRE_VERSION;

use super::clock;
use crate::intake::input::SessionStart;

/// Clock ticks per second in `/proc` (`USER_HZ`): 100 on every Linux that the kernel half runs on.
const USER_HZ: u64 = 100;

/// Asks the kernel.
pub fn start(selectors: Vec<String>) -> SessionStart {
    let names = rustix::system::uname();
    let mut seed = [0; 16];
    // Without random bytes the ids are only as unique as the time.
    if getrandom(&mut seed, GetRandomFlags::empty()).is_err() {
        let time = clock::monotonic_ns().wrapping_add_signed(clock::realtime_offset_ns());
        seed.iter_mut().zip(time.to_le_bytes().into_iter().cycle()).for_each(|(s, t)| *s = t);
    }
    SessionStart {
        wire_version: WIRE_VERSION,
        host: names.nodename().to_string_lossy().into_owned(),
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|id| id.trim().to_owned())
            .unwrap_or_default(),
        kernel: names.release().to_string_lossy().into_owned(),
        started_monotonic_ns: clock::monotonic_ns(),
        realtime_offset_ns: clock::realtime_offset_ns(),
        seed,
        clock_ticks_per_s: USER_HZ,
        spanprobe_version: env!("CARGO_PKG_VERSION").to_owned(),
        selectors,
    }
}

/// Whether this process is in the machine's first pid namespace, whose ids the kernel half reports.
/// Its inode is fixed (`PROC_PID_INIT_INO` of the kernel's `proc_ns.h`); true where it cannot be
/// read.
pub fn in_first_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid")
        .map_or(true, |link| link.as_os_str() == "pid:[4026531836]")
}
