//! The narrow door: user space's words to the kernel half, and nothing else.

use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, MapError},
};
use tracer_ebpf::wire::policy::{CONN_ID_FROM_USER, Class, Setting, THREAD_BYTES};

use super::ProbeError;

/// Maps that user space writes. Keys and values go as bytes in native order, in the layout of
/// [`tracer_ebpf::wire::policy`].
pub struct Door {
    targets: HashMap<MapData, u32, [u8; 8]>,
    ports: HashMap<MapData, u32, u8>,
    fds: HashMap<MapData, [u8; 8], [u8; 24]>,
    policies: HashMap<MapData, u64, [u8; 8]>,
    threads: HashMap<MapData, u32, [u8; THREAD_BYTES]>,
    settings: Array<MapData, u32>,
    next_id: u64,
}

const BPF_NOEXIST: u64 = 1;
const BPF_EXIST: u64 = 2;

fn take<T>(ebpf: &mut Ebpf, map: &'static str) -> Result<T, ProbeError>
where
    T: TryFrom<aya::maps::Map, Error = MapError>,
{
    ebpf.take_map(map)
        .ok_or(ProbeError::Missing(map))?
        .try_into()
        .map_err(|error| ProbeError::Map { map, error })
}

/// Two `u32` one behind the other, as the two-field structs of the wire have them.
fn pair(a: u32, b: u32) -> [u8; 8] {
    let mut out = [0; 8];
    let (left, right) = out.split_at_mut(4);
    left.copy_from_slice(&a.to_ne_bytes());
    right.copy_from_slice(&b.to_ne_bytes());
    out
}

/// Absent keys are no error when something is removed, or changed if it is there.
fn removed(result: Result<(), MapError>, map: &'static str) -> Result<(), ProbeError> {
    match result {
        Ok(()) | Err(MapError::KeyNotFound | MapError::ElementNotFound) => Ok(()),
        Err(MapError::SyscallError(e)) if e.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(ProbeError::Map { map, error }),
    }
}

impl Door {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, ProbeError> {
        Ok(Self {
            targets: take(ebpf, "TARGETS")?,
            ports: take(ebpf, "PORTS")?,
            fds: take(ebpf, "FDS")?,
            policies: take(ebpf, "CONN_POLICY")?,
            threads: take(ebpf, "THREADS")?,
            settings: take(ebpf, "SETTINGS")?,
            next_id: CONN_ID_FROM_USER,
        })
    }

    /// Traces a process; `capture_len` bytes of payload are taken per call.
    ///
    /// # Errors
    /// Where the map is full.
    pub fn trace(&mut self, pid: u32, capture_len: u32, flags: u32) -> Result<(), ProbeError> {
        self.targets
            .insert(&pid, &pair(capture_len, flags), 0)
            .map_err(|error| ProbeError::Map { map: "TARGETS", error })
    }

    /// Says that a target has this thread, which may be inside a system call already. `false` where
    /// the kernel half knew. To be said before the process is traced, and again afterwards of the
    /// threads that it has made meanwhile.
    ///
    /// # Errors
    /// Where the map is full.
    pub fn seed_thread(
        &mut self,
        pid: u32,
        tid: u32,
        capture_len: u32,
    ) -> Result<bool, ProbeError> {
        match self.threads.insert(&tid, &thread(pid, capture_len), BPF_NOEXIST) {
            Ok(()) => Ok(true),
            Err(_) if self.threads.get(&tid, 0).is_ok() => Ok(false),
            Err(error) => Err(ProbeError::Map { map: "THREADS", error }),
        }
    }

    /// Threads that the kernel half remembers now.
    pub fn threads(&self) -> Vec<u32> {
        self.threads.keys().filter_map(Result::ok).collect()
    }

    /// A thread that was said to be there had ended by then.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn forget_thread(&mut self, tid: u32) -> Result<(), ProbeError> {
        removed(self.threads.remove(&tid), "THREADS")
    }

    /// Traces a process no more. Its threads' entries go with the threads, but for a first thread
    /// that had ended before it was said to be there.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn untrace(&mut self, pid: u32) -> Result<(), ProbeError> {
        removed(self.threads.remove(&pid), "THREADS")?;
        removed(self.targets.remove(&pid), "TARGETS")
    }

    /// Processes traced now, forked children that the kernel half added included.
    pub fn traced(&self) -> Vec<u32> {
        self.targets.keys().filter_map(Result::ok).collect()
    }

    /// Wants the TCP events of a local port.
    ///
    /// # Errors
    /// Where the map is full.
    pub fn watch_port(&mut self, port: u16) -> Result<(), ProbeError> {
        self.ports
            .insert(&u32::from(port), &1, 0)
            .map_err(|error| ProbeError::Map { map: "PORTS", error })
    }

    /// Says what a descriptor is that was open before, unless the kernel half knows already.
    /// Returns the identity under which its events will come.
    ///
    /// # Errors
    /// Where the map is full.
    pub fn seed(
        &mut self,
        pid: u32,
        fd: i32,
        class: Class,
        now_ns: u64,
    ) -> Result<u64, ProbeError> {
        let key = pair(pid, fd as u32);
        if let Some((id, known)) = self.lookup(pid, fd)
            && known != Class::Unknown as u32
        {
            return Ok(id);
        }
        self.next_id += 1;
        let id = self.next_id;
        match self.fds.insert(&key, &info(id, now_ns, class), BPF_NOEXIST) {
            Ok(()) => Ok(id),
            Err(error) => match self.lookup(pid, fd) {
                Some((id, _)) => Ok(id),
                None => Err(ProbeError::Map { map: "FDS", error }),
            },
        }
    }

    /// Says that a descriptor of `pid` names the same connection as one of another process: a fork
    /// has copied it.
    ///
    /// # Errors
    /// Where the map is full.
    pub fn share(
        &mut self,
        pid: u32,
        fd: i32,
        id: u64,
        class: Class,
        now_ns: u64,
    ) -> Result<(), ProbeError> {
        match self.fds.insert(&pair(pid, fd as u32), &info(id, now_ns, class), BPF_NOEXIST) {
            Ok(()) => Ok(()),
            Err(_) if self.lookup(pid, fd).is_some() => Ok(()),
            Err(error) => Err(ProbeError::Map { map: "FDS", error }),
        }
    }

    /// What the kernel half knows of a descriptor: identity and class.
    pub fn lookup(&self, pid: u32, fd: i32) -> Option<(u64, u32)> {
        let value = self.fds.get(&pair(pid, fd as u32), 0).ok()?;
        let (id, _, class) = fields(&value)?;
        Some((id, class))
    }

    /// Forgets descriptors that were opened before `before_ns` (ns of `CLOCK_MONOTONIC`):
    /// `close_range` closed them, or their process is gone. Returns the identities that they had.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn forget(
        &mut self,
        pid: u32,
        before_ns: u64,
        wanted: impl Fn(i32) -> bool,
    ) -> Result<Vec<u64>, ProbeError> {
        let ours = |key: &[u8; 8]| {
            let fd = key.last_chunk::<4>().map_or(-1, |fd| i32::from_ne_bytes(*fd));
            key.first_chunk::<4>() == Some(&pid.to_ne_bytes()) && wanted(fd)
        };
        let keys: Vec<_> = self.fds.keys().filter_map(Result::ok).filter(ours).collect();
        let mut forgotten = Vec::new();
        for key in keys {
            let Some((id, made_ns, _)) = self.fds.get(&key, 0).ok().as_ref().and_then(fields)
            else {
                continue;
            };
            if made_ns < before_ns {
                removed(self.fds.remove(&key), "FDS")?;
                forgotten.push(id);
            }
        }
        Ok(forgotten)
    }

    /// Decides how much of a connection is taken: `Some(n)` bytes per call, or `None` for nothing,
    /// not even sizes.
    ///
    /// # Errors
    /// Where the map is full.
    pub fn set_policy(&mut self, conn: u64, capture: Option<u32>) -> Result<(), ProbeError> {
        let value = capture.map_or_else(|| pair(0, 1), |len| pair(len, 0));
        self.policies
            .insert(&conn, &value, 0)
            .map_err(|error| ProbeError::Map { map: "CONN_POLICY", error })
    }

    /// The connection is gone.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn drop_policy(&mut self, conn: u64) -> Result<(), ProbeError> {
        removed(self.policies.remove(&conn), "CONN_POLICY")
    }

    /// Turns a switch on.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn turn_on(&mut self, setting: Setting) -> Result<(), ProbeError> {
        self.settings
            .set(setting as u32, &1, 0)
            .map_err(|error| ProbeError::Map { map: "SETTINGS", error })
    }

    /// Says what a descriptor is that the kernel half did not see being opened, if it still names
    /// what was looked up.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn set_class(
        &mut self,
        pid: u32,
        fd: i32,
        conn: u64,
        class: Class,
    ) -> Result<(), ProbeError> {
        let key = pair(pid, fd as u32);
        let Ok(entry) = self.fds.get(&key, 0) else { return Ok(()) };
        match fields(&entry) {
            Some((id, made_ns, _)) if id == conn => {
                let entry = info(conn, made_ns, class);
                removed(self.fds.insert(&key, &entry, BPF_EXIST), "FDS")
            }
            _ => Ok(()),
        }
    }
}

/// A thread's entry, which begins as [`tracer_ebpf::wire::policy::ThreadSeed`] does: process,
/// capture length, and 1 for a thread that may be in a call. What follows is the kernel half's own.
fn thread(pid: u32, capture_len: u32) -> [u8; THREAD_BYTES] {
    let mut out = [0; THREAD_BYTES];
    let parts = [pair(pid, capture_len), pair(1, 0)];
    out.chunks_exact_mut(8).zip(parts).for_each(|(slot, part)| slot.copy_from_slice(&part));
    out
}

/// A descriptor's entry, in the layout of [`tracer_ebpf::wire::policy::FdInfo`].
fn info(id: u64, made_ns: u64, class: Class) -> [u8; 24] {
    let mut out = [0; 24];
    let parts = [id.to_ne_bytes(), made_ns.to_ne_bytes(), pair(class as u32, 0)];
    out.chunks_exact_mut(8).zip(parts).for_each(|(slot, part)| slot.copy_from_slice(&part));
    out
}

/// Identity, time and class of a descriptor's entry.
fn fields(entry: &[u8; 24]) -> Option<(u64, u64, u32)> {
    let (id, rest) = entry.split_first_chunk::<8>()?;
    let (made_ns, rest) = rest.split_first_chunk::<8>()?;
    let class = rest.first_chunk::<4>()?;
    Some((u64::from_ne_bytes(*id), u64::from_ne_bytes(*made_ns), u32::from_ne_bytes(*class)))
}
