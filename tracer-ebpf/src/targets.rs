//! The gate: is the current thread's process traced?

use tracer_ebpf::wire::policy::{Setting, Target};

use crate::maps::{SETTINGS, TARGETS};

/// The target that the packed ids belong to; `None` ends the probe.
#[inline(always)]
pub fn target(pid_tgid: u64) -> Option<Target> {
    let tgid = (pid_tgid >> 32) as u32;
    // SAFETY: the value is plain data; a concurrent update by user space can only mix old and new
    // settings of the same process for one event.
    unsafe { TARGETS.get(&tgid) }.copied()
}

/// Whether a switch is on.
#[inline(always)]
pub fn is_on(setting: Setting) -> bool {
    matches!(SETTINGS.get(setting as u32), Some(1))
}
