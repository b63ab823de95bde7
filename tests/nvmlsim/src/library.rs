//! The library's state, and the way to it that every exported function takes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::error::{INVALID_ARGUMENT, NOT_FOUND, Res, UNINITIALIZED};
use crate::follow::Follow;
use crate::gpu::{self, Gpu};
use crate::script::Script;

/// GPUs where the script does not say.
const GPUS: u32 = 1;

/// Everything between `nvmlInit` and `nvmlShutdown`.
#[derive(Default)]
pub struct Library {
    /// `nvmlInit` calls without their `nvmlShutdown`.
    users: u32,
    began_ns: u64,
    script_path: Option<PathBuf>,
    wrong_said: BTreeSet<usize>,
    follow: Follow,
    pub sets: BTreeMap<usize, EventSet>,
    /// GPM samples: of which GPU, and when each was taken, ns (0: not yet).
    pub samples: BTreeMap<usize, (u32, u64)>,
    next_id: usize,
}

/// GPUs that are listened to, and XIDs that have been handed out, by their lines of the script.
#[derive(Default)]
pub struct EventSet {
    pub gpus: BTreeSet<u32>,
    pub delivered: BTreeSet<usize>,
}

/// A handle, taken apart: 1 + the GPU's index, and above that 1 + that of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    pub gpu: u32,
    pub instance: Option<u32>,
}

impl Handle {
    pub fn pointer<T>(self) -> *mut T {
        let instance = self.instance.map_or(0, |index| index as usize + 1);
        (((instance) << 16) | (self.gpu as usize + 1)) as *mut T
    }

    fn from<T>(pointer: *mut T) -> Option<Self> {
        let number = pointer as usize;
        let gpu = u32::try_from((number & 0xffff).checked_sub(1)?).ok()?;
        let instance = (number >> 16).checked_sub(1).and_then(|index| u32::try_from(index).ok());
        Some(Self { gpu, instance })
    }
}

/// ns of `CLOCK_MONOTONIC`: the oracle's clock.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and the time is written to a value of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

/// Runs `body` on the library; fails where nobody has initialised it.
pub fn with<T>(body: impl FnOnce(&mut Library) -> Res<T>) -> Res<T> {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    body(library.as_mut().ok_or(UNINITIALIZED)?)
}

/// The file beside this library whose name goes on like this: each copy of the library has its own.
fn beside(ending: &str) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let here = init as fn() -> Res as *const libc::c_void;
    // SAFETY: `dladdr` looks the address up and writes to a structure of ours.
    let found = unsafe { libc::dladdr(here, info.as_mut_ptr()) } != 0;
    // SAFETY: all zeros is a valid value of it (null pointers), whatever was written.
    let info = unsafe { info.assume_init() };
    if !found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which stays while this library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let mut path = OsStr::from_bytes(name.to_bytes()).to_owned();
    path.push(ending);
    Some(path.into())
}

/// `nvmlInit`.
pub fn init() -> Res {
    let path = |name, ending| {
        let set = std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        set.or_else(|| beside(ending))
    };
    let mut slot = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let fresh = || Library {
        began_ns: now_ns(),
        script_path: path("NVMLSIM_SCRIPT", ".script"),
        follow: Follow::new(path("NVMLSIM_ORACLE", ".oracle")),
        ..Library::default()
    };
    let library = slot.get_or_insert_with(fresh);
    match library.script().init {
        0 => library.users += 1,
        code => {
            *slot = None;
            return Err(code);
        }
    }
    Ok(())
}

/// `nvmlShutdown`.
pub fn shutdown() -> Res {
    let mut slot = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let library = slot.as_mut().ok_or(UNINITIALIZED)?;
    library.users -= 1;
    if library.users == 0 {
        *slot = None;
    }
    Ok(())
}

impl Library {
    /// What the script says by now.
    pub fn script(&mut self) -> Script {
        let Some(path) = &self.script_path else { return Script::default() };
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let script = Script::read(&text, now_ns().saturating_sub(self.began_ns) / 1_000_000);
        for line in script.wrong.difference(&self.wrong_said) {
            eprintln!("nvmlsim (simulated NVML): line {} is not understood", line + 1);
        }
        self.wrong_said.extend(&script.wrong);
        script
    }

    /// How many GPUs there are.
    pub fn count(&mut self) -> u32 {
        self.script().gpus.unwrap_or(GPUS)
    }

    /// The device behind a handle, as it is now.
    pub fn device<T>(&mut self, pointer: *mut T) -> Res<Gpu> {
        let handle = Handle::from(pointer).ok_or(INVALID_ARGUMENT)?;
        self.at(handle)
    }

    /// The device with this handle, as it is now.
    pub fn at(&mut self, handle: Handle) -> Res<Gpu> {
        let mut script = self.script();
        if handle.gpu >= script.gpus.unwrap_or(GPUS) {
            return Err(INVALID_ARGUMENT);
        }
        let changes = script.changes.remove(&handle.gpu).unwrap_or_default();
        if handle.instance.is_some_and(|index| index >= changes.instances.unwrap_or(0)) {
            return Err(NOT_FOUND);
        }
        let now = now_ns();
        self.follow.catch_up(now);
        let processes: Vec<gpu::Process> = self
            .follow
            .processes(handle.gpu)
            .map(|(pid, bytes)| gpu::Process {
                pid,
                bytes,
                instance: 0,
                utilization: self.follow.utilization(handle.gpu, Some(pid), now).gpu,
            })
            .collect();
        Ok(Gpu {
            handle,
            up_ms: now.saturating_sub(self.began_ns) / 1_000_000,
            utilization: self.follow.utilization(handle.gpu, None, now),
            processes,
            changes,
        })
    }

    /// A number for something that the caller holds by a pointer.
    pub fn id(&mut self) -> usize {
        self.next_id += 1;
        self.next_id
    }
}
