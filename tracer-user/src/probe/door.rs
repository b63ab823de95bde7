//! The narrow door: user space's words to the kernel half, and nothing else.

use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, MapError},
};
use tracer_ebpf::wire::{
    cuda::{PENDING_CALL_BYTES, PENDING_KEY_BYTES},
    policy::{CONN_ID_FROM_USER, Class, Setting, THREAD_BYTES, thread_at},
};

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
    cuda_calls: HashMap<MapData, [u8; PENDING_KEY_BYTES], [u8; PENDING_CALL_BYTES]>,
    next_id: u64,
}

/// What the kernel half remembers of a thread's present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadNow {
    /// It is in a call that is followed to its exit.
    pub in_call: bool,
    /// Entry of that call, ns; 0 where that was before tracing began.
    pub enter_ns: u64,
    /// What the call is about.
    pub object: u64,
    /// When it left the processor, ns; 0 while it runs and where that was not seen.
    pub out_ns: u64,
    /// It left because another was to run, and would go on at once.
    pub preempted: bool,
    /// When it was woken since, ns; 0 where it was not.
    pub woken_ns: u64,
}

/// Calls of the driver that have not returned: more than this many are not looked through.
const MAX_CUDA_CALLS: usize = 16_384;

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

/// Empties a map.
fn clear<K: aya::Pod, V: aya::Pod>(
    map: &mut HashMap<MapData, K, V>,
    name: &'static str,
) -> Result<(), ProbeError> {
    let keys: Vec<K> = map.keys().filter_map(Result::ok).collect();
    keys.into_iter().try_for_each(|key| removed(map.remove(&key), name))
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
            cuda_calls: take(ebpf, "CUDA_CALLS")?,
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

    /// What the kernel half remembers of a thread's present; `None` where it knows no such thread.
    pub fn thread_now(&self, tid: u32) -> Option<ThreadNow> {
        let entry = self.threads.get(&tid, 0).ok()?;
        let byte = |at: usize| entry.get(at).copied().unwrap_or(0);
        let number = |at: usize| {
            let bytes = entry.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        let out_ns = number(thread_at::OUT_NS);
        let state = u16::from_ne_bytes([byte(thread_at::STATE), byte(thread_at::STATE + 1)]);
        let woken_ns = number(thread_at::WOKEN_NS);
        Some(ThreadNow {
            in_call: byte(thread_at::OP) != 0 && byte(thread_at::LEFT) == 0,
            enter_ns: number(thread_at::ENTER_NS),
            object: number(thread_at::OBJECT),
            out_ns,
            preempted: state == 0,
            woken_ns: if woken_ns >= out_ns { woken_ns } else { 0 },
        })
    }

    /// Calls of the driver that have not returned: process, thread, function as a number, and entry,
    /// ns.
    pub fn driver_calls(&self) -> impl Iterator<Item = (u32, u32, u16, u64)> + '_ {
        self.cuda_calls.iter().take(MAX_CUDA_CALLS).filter_map(|entry| {
            let (key, call) = entry.ok()?;
            let (ids, api) = key.split_first_chunk::<8>()?;
            let ids = u64::from_ne_bytes(*ids);
            let api = u64::from_ne_bytes(*api.first_chunk()?);
            let enter_ns = u64::from_ne_bytes(*call.first_chunk()?);
            Some(((ids >> 32) as u32, ids as u32, u16::try_from(api).ok()?, enter_ns))
        })
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
        self.set(setting, 1)
    }

    /// Turns a switch off.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn turn_off(&mut self, setting: Setting) -> Result<(), ProbeError> {
        self.set(setting, 0)
    }

    /// Takes at most so many bytes of payload per call from now on; `None`: as the targets say.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn cap_capture(&mut self, bytes: Option<u32>) -> Result<(), ProbeError> {
        self.set(Setting::CaptureCap, bytes.unwrap_or(0))
    }

    fn set(&mut self, setting: Setting, value: u32) -> Result<(), ProbeError> {
        self.settings
            .set(setting as u32, &value, 0)
            .map_err(|error| ProbeError::Map { map: "SETTINGS", error })
    }

    /// Forgets every process, thread, descriptor and connection: no probe is attached, so what is
    /// known of them is not kept true any more.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn forget_everything(&mut self) -> Result<(), ProbeError> {
        clear(&mut self.targets, "TARGETS")?;
        clear(&mut self.threads, "THREADS")?;
        clear(&mut self.fds, "FDS")?;
        clear(&mut self.policies, "CONN_POLICY")?;
        clear(&mut self.cuda_calls, "CUDA_CALLS")
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
