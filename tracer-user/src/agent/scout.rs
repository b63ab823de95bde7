//! The thread that knows the targets: adopts processes, looks descriptors up, hooks libraries, and
//! tells the kernel half and the pipeline what it found.

use std::{
    collections::{HashMap, HashSet},
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tracer_ebpf::wire::policy::{Class, Setting, TARGET_CUDA};

use super::{
    clock::monotonic_ns,
    drain::{DrainCounts, Message},
};
use crate::{
    discover::{
        driver,
        process::{self, MappedFile, OpenDescriptor, Program, Sockets, is_cuda_driver},
        select::Selectors,
    },
    intake::{
        errand::Errand,
        event::{Descriptor, ProcFact},
    },
    probe::{Availability, Coverage, Door, LibraryKey, ProbeError, Probes, api_of},
};

/// How often ports are looked at where processes are chosen by port, and targets whose end the
/// kernel did not tell.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long the kernel's socket tables are believed: they are long on a busy machine.
const TABLES_LAST: Duration = Duration::from_millis(100);
/// Library files that could not be hooked, so that none is tried again for each process.
const MAX_FAILED: usize = 1_024;
/// Connections about which something was decided.
const MAX_POLICIES: usize = 65_536;
/// Sockets whose identity is remembered by inode, so that processes that share one agree.
const MAX_INODES: usize = 65_536;

/// What the thread shares with the others.
#[derive(Default)]
pub struct ScoutCounts {
    /// Targets that live.
    pub targets: AtomicUsize,
    /// Targets there have ever been.
    pub adopted: AtomicUsize,
}

/// The running thread.
pub struct Scout {
    stop: Arc<AtomicBool>,
    /// Its counters.
    pub counts: Arc<ScoutCounts>,
    thread: JoinHandle<()>,
}

/// What the thread works with.
pub struct Equipment {
    /// The kernel half.
    pub probes: Probes,
    /// The door to its maps.
    pub door: Door,
    /// Who is wanted.
    pub selectors: Selectors,
    /// Payload bytes to take per call.
    pub capture_len: u32,
    /// Where facts go.
    pub messages: SyncSender<Message>,
    /// Where errands come from.
    pub errands: Receiver<Errand>,
    /// What the draining thread shares.
    pub drain: Arc<DrainCounts>,
}

struct Worker {
    with: Equipment,
    targets: HashMap<u32, bool>,
    by_inode: HashMap<u64, u64>,
    policies: HashSet<u64>,
    /// Sockets that listen on wanted ports, when last looked.
    listening: HashSet<u64>,
    /// The socket tables that were read last, of which process and when.
    tables: Option<(u32, Instant, Sockets)>,
    failed_libraries: HashSet<LibraryKey>,
    counts: Arc<ScoutCounts>,
}

impl Scout {
    /// Starts the thread; it first adopts what runs already.
    ///
    /// # Errors
    /// Where the system has no thread left.
    pub fn start(with: Equipment) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(ScoutCounts::default());
        let mut worker = Worker {
            with,
            targets: HashMap::new(),
            by_inode: HashMap::new(),
            policies: HashSet::new(),
            listening: HashSet::new(),
            tables: None,
            failed_libraries: HashSet::new(),
            counts: Arc::clone(&counts),
        };
        let seen_stop = Arc::clone(&stop);
        let thread = thread::Builder::new().name("scout".into()).spawn(move || {
            worker.begin();
            let mut looked = Instant::now();
            while !seen_stop.load(Ordering::Acquire) {
                match worker.with.errands.recv_timeout(LOOK_EVERY) {
                    Ok(errand) => worker.run(errand),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                // Not only when it is quiet: on a busy machine errands never cease.
                if looked.elapsed() >= LOOK_EVERY {
                    worker.look_around();
                    looked = Instant::now();
                }
            }
        })?;
        Ok(Self { stop, counts, thread })
    }

    /// Ends the thread and with it every probe.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Release);
        // A panic there has been printed; the agent ends either way.
        let _ = self.thread.join();
    }
}

impl Worker {
    fn begin(&mut self) {
        if self.with.selectors.cuda {
            let what = "processes that load the driver later will be missed";
            self.told(what, |door| door.turn_on(Setting::AllMaps));
        }
        if !self.with.selectors.exes.is_empty() {
            let what = "processes that begin later will be missed";
            self.told(what, |door| door.turn_on(Setting::AllExecs));
        }
        for port in self.with.selectors.ports.clone() {
            self.watch_port(port);
        }
        // Twice: a child forked before its parent was traced is only seen the second time.
        for _ in 0..2 {
            for pid in self.with.selectors.running() {
                self.adopt(pid);
            }
        }
        // Without a pipeline there is nobody to tell.
        let _ = self.with.messages.send(Message::Ready);
    }

    fn note(&self, text: String) {
        // Without a pipeline there is nobody to tell.
        let _ = self.with.messages.send(Message::Note(text));
    }

    fn fact(&self, fact: ProcFact) {
        let _ = self.with.messages.send(Message::Fact { time_ns: monotonic_ns(), fact });
    }

    fn run(&mut self, errand: Errand) {
        match errand {
            Errand::Descriptor { pid, fd, conn } => self.look_up(pid, fd, conn),
            Errand::Closed { conn } => self.drop_policy(conn),
            Errand::Listener { pid, fd } => self.look_up_listener(pid, fd),
            Errand::Exec { pid } => self.exec(pid),
            Errand::Mapped { pid } => self.mapped(pid),
            Errand::Forked { parent, child } => self.forked(parent, child),
            Errand::Gone { pid } => self.gone(pid),
            Errand::CloseRange { pid, first, last, time_ns } => {
                self.forget(pid, time_ns, |fd| (first..=last).contains(&(fd as u32)));
            }
        }
    }

    /// Forgets descriptors that were opened before a time, and what was decided about them.
    fn forget(&mut self, pid: u32, before_ns: u64, wanted: impl Fn(i32) -> bool) {
        match self.with.door.forget(pid, before_ns, wanted) {
            Ok(conns) => conns.into_iter().for_each(|conn| self.drop_policy(conn)),
            Err(error) => self.note(format!("forgetting descriptors: {error}")),
        }
    }

    fn drop_policy(&mut self, conn: u64) {
        if self.policies.remove(&conn) {
            self.told("forgetting a connection", |door| door.drop_policy(conn));
        }
    }

    /// Tells the kernel half something; a refusal is noted.
    fn told(&mut self, what: &str, tell: impl FnOnce(&mut Door) -> Result<(), ProbeError>) {
        if let Err(error) = tell(&mut self.with.door) {
            self.note(format!("{what}: {error}"));
        }
    }

    fn watch_port(&mut self, port: u16) {
        self.told("arrivals on a port will not be seen", |door| door.watch_port(port));
    }

    /// What the kernel does not tell: new listeners on wanted ports, and processes that are gone.
    fn look_around(&mut self) {
        // Who holds a listener is only looked for when there is another one.
        let listening = self.with.selectors.listening();
        if listening != self.listening {
            process::holders(&listening).into_iter().for_each(|pid| self.adopt(pid));
            self.listening = listening;
        }
        let dead: Vec<u32> =
            self.targets.keys().copied().filter(|pid| !process::exists(*pid)).collect();
        dead.into_iter().for_each(|pid| self.gone(pid));
        // Children that the kernel half followed and whose birth was not told.
        let missed: Vec<u32> = self
            .with
            .door
            .traced()
            .into_iter()
            .filter(|pid| !self.targets.contains_key(pid))
            .collect();
        for pid in missed {
            if process::exists(pid) { self.adopt(pid) } else { self.gone(pid) }
        }
    }

    /// Begins to trace a process.
    fn adopt(&mut self, pid: u32) {
        if self.targets.contains_key(&pid) || pid == std::process::id() {
            return;
        }
        let Some(program) = process::program(pid) else { return };
        let drivers = process::mapped(pid, is_cuda_driver).unwrap_or_default();
        let cuda = !drivers.is_empty();
        let flags = if cuda { TARGET_CUDA } else { 0 };
        self.seed_threads(pid);
        if let Err(error) = self.with.door.trace(pid, self.with.capture_len, flags) {
            self.note(format!("process {pid} cannot be traced: {error}"));
            return;
        }
        // Threads that were made between the look and the tracing. From now on the kernel half
        // sees new ones itself.
        while self.seed_threads(pid) {}
        self.enrol(pid, program, cuda);
        self.hook(pid, &drivers);
        self.seed_descriptors(pid, None);
    }

    /// Tells the kernel half of the threads that the process has; whether any was new to it.
    fn seed_threads(&mut self, pid: u32) -> bool {
        let capture_len = self.with.capture_len;
        let mut any_new = false;
        for tid in process::threads(pid) {
            match self.with.door.seed_thread(pid, tid, capture_len) {
                Ok(true) => {
                    any_new = true;
                    // It may have ended between the listing and now, unseen.
                    if !process::has_thread(pid, tid) {
                        self.told("forgetting a thread", |door| door.forget_thread(tid));
                    }
                }
                Ok(false) => {}
                Err(error) => {
                    self.note(format!("thread {tid} of process {pid} is missed: {error}"));
                    return false;
                }
            }
        }
        any_new
    }

    /// Counts a process among the targets from now on.
    fn enrol(&mut self, pid: u32, program: Program, cuda: bool) {
        self.targets.insert(pid, cuda);
        self.counts.adopted.fetch_add(1, Ordering::Relaxed);
        self.counts.targets.store(self.targets.len(), Ordering::Relaxed);
        self.introduce(pid, Some(program), cuda);
    }

    /// Tells the pipeline what program a target runs; nothing where it has ended meanwhile.
    fn introduce(&self, pid: u32, program: Option<Program>, cuda: bool) {
        if let Some(Program { exe, comm }) = program {
            self.fact(ProcFact::Target { pid, exe, comm, cuda });
        }
    }

    /// Tells the kernel half what the process had open before. A forked child's descriptors name
    /// what its parent's do.
    fn seed_descriptors(&mut self, pid: u32, parent: Option<u32>) {
        let sockets = Sockets::of(pid);
        let open = match process::descriptors(pid, &sockets) {
            Ok(open) => open,
            Err(_) if !process::exists(pid) => return,
            Err(error) => {
                self.note(format!("descriptors of process {pid} cannot be read: {error}"));
                return;
            }
        };
        for descriptor in open {
            if let Err(error) = self.seed(pid, descriptor, parent) {
                self.note(format!("descriptor {} of process {pid}: {error}", descriptor.fd));
                return;
            }
        }
    }

    fn seed(
        &mut self,
        pid: u32,
        open: OpenDescriptor,
        parent: Option<u32>,
    ) -> Result<(), ProbeError> {
        let class = class_of(open.kind);
        let inherited = parent.and_then(|parent| self.with.door.lookup(parent, open.fd));
        let known = match inherited {
            Some((id, _)) if open.inode != 0 => Some(id),
            _ => self.by_inode.get(&open.inode).copied().filter(|_| open.inode != 0),
        };
        let conn = match known {
            Some(id) => {
                self.with.door.share(pid, open.fd, id, class, monotonic_ns())?;
                id
            }
            None => self.with.door.seed(pid, open.fd, class, monotonic_ns())?,
        };
        if open.inode != 0 {
            if self.by_inode.len() >= MAX_INODES {
                self.by_inode.clear();
            }
            self.by_inode.insert(open.inode, conn);
        }
        self.describe(pid, open.fd, conn, open.kind);
        Ok(())
    }

    fn describe(&mut self, pid: u32, fd: i32, conn: u64, kind: Descriptor) {
        match kind {
            Descriptor::Listener { local } | Descriptor::Tcp { local, server: true, .. } => {
                self.watch_port(local.port());
            }
            Descriptor::Other => return,
            _ => {}
        }
        self.fact(ProcFact::Descriptor { pid, fd, conn, kind });
    }

    fn look_up(&mut self, pid: u32, fd: i32, conn: u64) {
        let Ok(inode) = process::socket_inode(pid, fd) else { return };
        let kind = inode.map_or(Descriptor::Other, |inode| self.socket_kind(pid, inode));
        // The number may have changed hands while we looked.
        if self.with.door.lookup(pid, fd).is_none_or(|(id, _)| id != conn) {
            return;
        }
        let capture = match kind {
            Descriptor::Other => Some(None),
            Descriptor::Unix { .. } => Some(Some(0)),
            _ => None,
        };
        if let Some(capture) = capture.filter(|_| self.policies.len() < MAX_POLICIES) {
            self.policies.insert(conn);
            self.told("ignoring a descriptor", |door| door.set_policy(conn, capture));
        }
        self.describe(pid, fd, conn, kind);
    }

    /// What a socket is. The tables are read again where they are old, or do not know it.
    fn socket_kind(&mut self, pid: u32, inode: u64) -> Descriptor {
        let known = match &self.tables {
            Some((of, at, tables)) if *of == pid && at.elapsed() < TABLES_LAST => {
                tables.kind(inode)
            }
            _ => Descriptor::Other,
        };
        if known != Descriptor::Other {
            return known;
        }
        let tables = Sockets::of(pid);
        let kind = tables.kind(inode);
        self.tables = Some((pid, Instant::now(), tables));
        kind
    }

    fn look_up_listener(&mut self, pid: u32, fd: i32) {
        let Ok(Some(inode)) = process::socket_inode(pid, fd) else { return };
        let kind = Sockets::of(pid).kind(inode);
        let conn = self.with.door.lookup(pid, fd).map_or(0, |(id, _)| id);
        if matches!(kind, Descriptor::Listener { .. }) {
            self.describe(pid, fd, conn, kind);
        }
    }

    fn exec(&mut self, pid: u32) {
        if self.targets.contains_key(&pid) {
            // Descriptors marked close-on-exec are gone, without a call that we could have seen.
            let before_ns = monotonic_ns();
            let sockets = Sockets::of(pid);
            let Ok(open) = process::descriptors(pid, &sockets) else { return };
            let open: HashSet<i32> = open.iter().map(|descriptor| descriptor.fd).collect();
            self.forget(pid, before_ns, |fd| !open.contains(&fd));
            self.targets.insert(pid, false);
            self.introduce(pid, process::program(pid), false);
        } else if self.with.selectors.wants(pid) {
            self.adopt(pid);
        }
    }

    fn mapped(&mut self, pid: u32) {
        let drivers = process::mapped(pid, is_cuda_driver).unwrap_or_default();
        if drivers.is_empty() {
            return;
        }
        match self.targets.get(&pid) {
            None if self.with.selectors.cuda => self.adopt(pid),
            Some(false) => {
                let capture = self.with.capture_len;
                self.told("marking a CUDA process", |door| door.trace(pid, capture, TARGET_CUDA));
                self.targets.insert(pid, true);
                self.hook(pid, &drivers);
                self.introduce(pid, process::program(pid), true);
            }
            Some(true) => self.hook(pid, &drivers),
            None => {}
        }
    }

    fn forked(&mut self, parent: u32, child: u32) {
        if self.targets.contains_key(&child) {
            return;
        }
        let Some(program) = process::program(child) else { return self.gone(child) };
        let cuda = self.targets.get(&parent).copied().unwrap_or(false);
        self.enrol(child, program, cuda);
        self.seed_descriptors(child, Some(parent));
    }

    /// A process is gone. It may be one that ended before it could be looked at: the kernel half
    /// has followed it all the same.
    fn gone(&mut self, pid: u32) {
        self.told("forgetting a process", |door| door.untrace(pid));
        self.forget(pid, monotonic_ns(), |_| true);
        if self.targets.remove(&pid).is_some() {
            self.counts.targets.store(self.targets.len(), Ordering::Relaxed);
            self.fact(ProcFact::Gone { pid });
        }
    }

    /// Hooks driver files that are not hooked yet.
    fn hook(&mut self, pid: u32, drivers: &[MappedFile]) {
        if !drivers.is_empty() {
            self.with.drain.launches_gather.store(true, Ordering::Relaxed);
        }
        for file in drivers {
            let key = LibraryKey { device: file.device, inode: file.inode };
            if self.with.probes.is_attached(key) || self.failed_libraries.contains(&key) {
                continue;
            }
            match self.hook_file(key, file) {
                Ok(Coverage { hooked, exist }) => {
                    let library = file.path.to_string_lossy().into_owned();
                    self.fact(ProcFact::Coverage { pid, library, hooked, exist });
                }
                // The process that showed the file may have ended meanwhile; another may show it.
                Err(_) if !process::exists(pid) => {}
                Err(reason) => {
                    if self.failed_libraries.len() >= MAX_FAILED {
                        self.failed_libraries.clear();
                    }
                    self.failed_libraries.insert(key);
                    self.note(format!("{} is not hooked: {reason}", file.path.display()));
                }
            }
        }
    }

    fn hook_file(&mut self, key: LibraryKey, file: &MappedFile) -> Result<Coverage, String> {
        if let Availability::Unavailable(reason) = &self.with.probes.cuda {
            return Err(reason.clone());
        }
        let mut reason = String::from("no name reaches it");
        for path in &file.reach {
            let image = match fs::read(path) {
                Ok(image) => image,
                Err(error) => {
                    reason = error.to_string();
                    continue;
                }
            };
            let mut plan = driver::plan(&image, &|name| api_of(name).is_some())
                .map_err(|error| error.to_string())?;
            let exist = plan.sites.len() as u32;
            plan.sites.retain(|site| site.reason.is_attachable());
            match self.with.probes.attach_library(key, path, &plan) {
                Ok(coverage) => return Ok(Coverage { exist, ..coverage }),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(reason)
    }
}

fn class_of(kind: Descriptor) -> Class {
    match kind {
        Descriptor::Tcp { server: true, .. } => Class::TcpServer,
        Descriptor::Tcp { server: false, .. } => Class::TcpClient,
        Descriptor::Listener { .. } => Class::Tcp,
        Descriptor::Unix { .. } => Class::Unix,
        Descriptor::Pipe { .. } => Class::Pipe,
        Descriptor::EventFd { .. } => Class::EventFd,
        Descriptor::Epoll => Class::Epoll,
        Descriptor::Other => Class::Other,
    }
}
