//! The kernel half: load, attach, detach, and the one door through which user space steers it.
//!
//! Only this room knows aya. Each family of probes says whether it can run here; what cannot is
//! a named degradation, never a crash.

mod attach;
mod cost;
mod door;
mod features;
mod kernel_log;
mod links;
mod loaded;
mod loss;
mod ring;
mod tracefs;

pub use attach::{Coverage, LibraryKey, api_of, is_launch};
pub use cost::CostReader;
pub use door::{Door, ThreadNow};
pub use features::{Features, Support, features};
pub use kernel_log::KernelLog;
pub use loaded::program_names;
pub use loss::{LossReader, ProgramStats};
pub use ring::Ring;
pub use tracefs::{Survey, Tracepoint, survey};

use std::fmt;

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    programs::{ProgramError, UProbe},
    sys::{UProbeMultiFeature, is_uprobe_multi_supported},
};
use thiserror::Error;
use tracer_ebpf::wire::policy::Setting;

/// The kernel half, as built by `cargo xtask ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/spanprobe-ebpf"));

/// Why the kernel half could not be brought up.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The kernel refused the object; without rights that is `EPERM`.
    #[error("loading the kernel half: {error}{hint}", hint = rights_hint(error))]
    Load {
        /// The kernel's word.
        #[from]
        error: EbpfError,
    },
    /// The kernel refused a program.
    #[error("program {program}: {error}")]
    Program {
        /// Its name.
        program: &'static str,
        /// The kernel's word.
        error: ProgramError,
    },
    /// The object and this agent do not belong together.
    #[error("the kernel half has no {0}: it was built from another version")]
    Missing(&'static str),
    /// A map could not be read or written.
    #[error("map {map}: {error}")]
    Map {
        /// Its name.
        map: &'static str,
        /// The kernel's word.
        error: aya::maps::MapError,
    },
    /// tracefs did not answer.
    #[error("{0}")]
    Tracefs(String),
    /// The kernel half's log cannot be read.
    #[error("the kernel half's log: {0}")]
    Log(String),
}

fn rights_hint(error: &EbpfError) -> &'static str {
    let text = format!("{error:?}");
    if text.contains("PermissionDenied") || text.contains("code: 1,") {
        " (run as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE)"
    } else {
        ""
    }
}

/// Whether a family of probes runs here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It does.
    Available,
    /// It does not, and why.
    Unavailable(String),
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available => f.write_str("available"),
            Self::Unavailable(reason) => write!(f, "unavailable: {reason}"),
        }
    }
}

/// How uprobes are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UprobeMode {
    /// One link for many sites (Linux 6.6).
    Multi,
    /// One perf event per site: slow to let go.
    Perf,
}

/// What can be chosen when loading.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Size of the ring, bytes; a power of two.
    pub ring_bytes: u32,
    /// Attach uprobes one by one even where the kernel could take them together.
    pub force_perf_uprobes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { ring_bytes: 32 << 20, force_perf_uprobes: false }
    }
}

/// The kernel half, loaded and attached to the kernel's own tracepoints. Dropping it detaches
/// everything.
pub struct Probes {
    ebpf: Ebpf,
    mode: UprobeMode,
    /// The TCP tracepoints, which tell when bytes arrived.
    pub tcp: Availability,
    /// The scheduler's tracepoints, which tell when threads ran and who woke them.
    pub sched: Availability,
    /// The CUDA probes.
    pub cuda: Availability,
    attached: attach::Libraries,
    links: links::Links,
}

const SYSCALL_PROGRAMS: [&str; 2] = ["sys_enter", "sys_exit"];
const PROCESS_PROGRAMS: [(&str, &str); 3] =
    [("task", "task_newtask"), ("sched", "sched_process_exec"), ("sched", "sched_process_exit")];
const TCP_PROGRAMS: [(&str, &str); 3] =
    [("tcp", "tcp_probe"), ("sock", "inet_sock_set_state"), ("tcp", "tcp_retransmit_skb")];
const SCHED_PROGRAMS: [(&str, &str); 3] =
    [("sched", "sched_switch"), ("sched", "sched_waking"), ("sched", "sched_wakeup_new")];

impl Probes {
    /// Loads the kernel half and attaches the families that need no target's files: system calls
    /// and processes (an error where these fail), TCP and the scheduler (degradations).
    ///
    /// # Errors
    /// Without rights, on a kernel that refuses a program, and where tracefs is not mounted.
    pub fn load(settings: Settings) -> Result<Self, ProbeError> {
        let offsets = tracefs::offsets().map_err(ProbeError::Tracefs)?;
        let wake_at = u64::from(settings.ring_bytes / 2);
        let mut ebpf = EbpfLoader::new()
            .override_global("OFFSETS", &offsets.table[..], true)
            .override_global("WAKE_AT", &wake_at, true)
            .map_max_entries("RING", settings.ring_bytes)
            .load(OBJECT)?;
        let mut links = links::Links::default();
        links.load_syscalls(&mut ebpf)?;
        links.attach_syscalls(&mut ebpf)?;
        links.load_points(&mut ebpf, &PROCESS_PROGRAMS)?;
        links.attach_points(&mut ebpf, &PROCESS_PROGRAMS)?;
        let tcp = links.family(&mut ebpf, &TCP_PROGRAMS, offsets.tcp_missing);
        let sched = links.family(&mut ebpf, &SCHED_PROGRAMS, offsets.sched_missing);
        if sched == Availability::Available {
            turn_on(&mut ebpf, Setting::Sched)?;
        }
        let mode = if settings.force_perf_uprobes || !multi_supported() {
            UprobeMode::Perf
        } else {
            UprobeMode::Multi
        };
        let cuda = match load_cuda(&mut ebpf, mode) {
            Ok(()) => Availability::Available,
            Err(error) => Availability::Unavailable(error.to_string()),
        };
        let attached = attach::Libraries::default();
        Ok(Self { ebpf, mode, tcp, sched, cuda, attached, links })
    }

    /// How uprobes are attached on this kernel.
    pub fn uprobe_mode(&self) -> UprobeMode {
        self.mode
    }

    /// The door to the maps through which the kernel half is steered. Once.
    ///
    /// # Errors
    /// Where it was taken before.
    pub fn door(&mut self) -> Result<Door, ProbeError> {
        Door::new(&mut self.ebpf)
    }

    /// The reading end of the ring, with the maps that are read beside it. Once.
    ///
    /// # Errors
    /// Where it was taken before.
    pub fn ring(&mut self) -> Result<Ring, ProbeError> {
        Ring::new(&mut self.ebpf)
    }

    /// The kernel half's own diagnostics. Once.
    ///
    /// # Errors
    /// Where it was taken before.
    pub fn log(&mut self) -> Result<KernelLog, ProbeError> {
        KernelLog::new(&mut self.ebpf)
    }

    /// What the kernel half's programs cost. As often as wanted.
    pub fn costs(&self) -> CostReader {
        CostReader::new(&self.ebpf)
    }

    /// The kernel half's loss counters and the programs' own statistics. Once.
    ///
    /// # Errors
    /// Where it was taken before.
    pub fn losses(&mut self) -> Result<LossReader, ProbeError> {
        LossReader::new(&mut self.ebpf)
    }
}

fn multi_supported() -> bool {
    is_uprobe_multi_supported(UProbeMultiFeature::LinkCreation).unwrap_or(false)
}

fn program<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut T, ProbeError>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    ebpf.program_mut(name)
        .ok_or(ProbeError::Missing(name))?
        .try_into()
        .map_err(|error| ProbeError::Program { program: name, error })
}

/// Turns a switch on before the door takes its map.
fn turn_on(ebpf: &mut Ebpf, setting: Setting) -> Result<(), ProbeError> {
    const MAP: &str = "SETTINGS";
    let map = ebpf.map_mut(MAP).ok_or(ProbeError::Missing(MAP))?;
    aya::maps::Array::<_, u32>::try_from(map)
        .and_then(|mut settings| settings.set(setting as u32, &1, 0))
        .map_err(|error| ProbeError::Map { map: MAP, error })
}

fn load_cuda(ebpf: &mut Ebpf, mode: UprobeMode) -> Result<(), ProbeError> {
    for name in attach::programs(mode) {
        let program: &mut UProbe = program(ebpf, name)?;
        program.load().map_err(|error| ProbeError::Program { program: name, error })?;
    }
    Ok(())
}
