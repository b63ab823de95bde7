//! The thread that knows the targets: adopts processes, looks descriptors up, hooks libraries, and
//! tells the kernel half and the pipeline what it found.

mod descriptors;
mod doubts;
mod orders;

pub use doubts::MAX_DOUBTS;
pub use orders::{MAX_ORDERS, Order};

use std::{
    cell::Cell,
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

use tracer_ebpf::wire::policy::{Setting, TARGET_CUDA};

use super::{
    clock::monotonic_ns,
    drain::{DrainCounts, Message},
    identities::Identities,
    pace::Pace,
    shared_memory::SharedMemory,
};
use crate::{
    discover::{
        container::{self, Container},
        driver,
        kernel::Version,
        maps,
        process::{self, MappedFile, Program, is_cuda_driver},
        refusal::in_danger,
        select::Selectors,
        sockets::Sockets,
    },
    intake::{errand::Errand, event::ProcFact},
    probe::{Availability, Coverage, Door, LibraryKey, ProbeError, Probes, api_of},
};

/// How often it is asked whether something has been ordered.
const TURN: Duration = Duration::from_millis(250);
/// Library files that could not be hooked, so that none is tried again for each process.
const MAX_FAILED: usize = 1_024;

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
    /// Where orders come from.
    pub orders: Receiver<Order>,
    /// What the draining thread shares.
    pub drain: Arc<DrainCounts>,
}

struct Worker {
    with: Equipment,
    targets: HashMap<u32, bool>,
    identities: Identities,
    memory: SharedMemory,
    policies: HashSet<u64>,
    /// Sockets that listen on wanted ports, when last looked.
    listening: HashSet<u64>,
    /// The socket tables that were read last, of which process and when.
    tables: Option<(u32, Instant, Sockets)>,
    failed_libraries: HashSet<LibraryKey>,
    /// Limitations that were named: each is once.
    named: HashSet<&'static str>,
    rest: orders::Rest,
    /// When to look around.
    pace: Pace,
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
            identities: Identities::default(),
            memory: SharedMemory::default(),
            policies: HashSet::new(),
            listening: HashSet::new(),
            tables: None,
            failed_libraries: HashSet::new(),
            named: HashSet::new(),
            rest: orders::Rest::default(),
            pace: Pace::new(Instant::now()),
            counts: Arc::clone(&counts),
        };
        let seen_stop = Arc::clone(&stop);
        let thread = thread::Builder::new().name("scout".into()).spawn(move || {
            worker.begin();
            worker.pace.looked(Instant::now(), Duration::ZERO);
            while !seen_stop.load(Ordering::Acquire) {
                let turn = TURN.min(worker.pace.left(Instant::now()));
                match worker.with.errands.recv_timeout(turn) {
                    Ok(errand) => worker.run(errand),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                worker.obey();
                // Not only when it is quiet: on a busy machine errands never cease.
                let began = Instant::now();
                if worker.pace.left(began).is_zero() {
                    worker.look_around();
                    worker.pace.looked(Instant::now(), began.elapsed());
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
        if self.with.selectors.want_execs() {
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

    /// Notes something that would otherwise be said again and again.
    fn note_once(&mut self, what: &'static str, why: &str) {
        if self.named.insert(what) {
            self.note(format!("{what}: {why}"));
        }
    }

    fn fact(&self, fact: ProcFact) {
        let _ = self.with.messages.send(Message::Fact { time_ns: monotonic_ns(), fact });
    }

    fn run(&mut self, errand: Errand) {
        if self.rest.resting {
            return; // what it is about has been forgotten
        }
        match errand {
            Errand::Descriptor { pid, fd, conn } => self.look_up(pid, fd, conn),
            Errand::Closed { conn } => self.drop_policy(conn),
            Errand::Listener { pid, fd } => self.look_up_listener(pid, fd),
            Errand::Listening { port } => {
                if self.with.selectors.ports.contains(&port) {
                    self.pace.hurry();
                }
            }
            Errand::Exec { pid } => self.exec(pid),
            Errand::Mapped { pid } => self.mapped(pid),
            Errand::Forked { parent, child } => self.forked(parent, child),
            Errand::Gone { pid } => self.gone(pid),
            Errand::SharedFutex { pid, address } => self.shared_futex(pid, address),
            Errand::Polls { pid } => self.polls(pid),
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

    /// What the kernel half tells of only as long as nothing is lost: new listeners on wanted ports,
    /// and processes that are gone.
    fn look_around(&mut self) {
        if self.rest.resting {
            self.targets.retain(|pid, _| process::exists(*pid));
            self.counts.targets.store(self.targets.len(), Ordering::Relaxed);
            return;
        }
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
        self.seed_memory(pid);
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
        self.place(pid);
    }

    /// Tells the pipeline what program a target runs; nothing where it has ended meanwhile.
    fn introduce(&self, pid: u32, program: Option<Program>, cuda: bool) {
        if let Some(Program { exe, comm }) = program {
            self.fact(ProcFact::Target { pid, exe, comm, cuda });
            if let Some(devices) = process::visible_devices(pid) {
                self.fact(ProcFact::Visible { pid, devices });
            }
        }
    }

    /// Tells in which container a target is, where it is in one.
    fn place(&self, pid: u32) {
        if let Ok(container) = container::of(pid)
            && !container.is_none()
        {
            let Container { name, pod } = container;
            self.fact(ProcFact::Container { pid, container: name, pod });
        }
    }

    /// Tells what the process shares of the memory in which others wait.
    fn seed_memory(&mut self, pid: u32) {
        self.share(|memory, _, now, read| memory.joined(pid, now, read));
    }

    fn shared_futex(&mut self, pid: u32, address: u64) {
        if !self.targets.contains_key(&pid) {
            return;
        }
        self.share(|memory, targets, now, read| {
            memory.waited((pid, address), targets.iter().copied(), now, read)
        });
    }

    fn polls(&mut self, pid: u32) {
        if !self.targets.contains_key(&pid) {
            return;
        }
        self.share(|memory, targets, now, read| memory.polls(pid, targets, now, read));
    }

    /// Looks which memory is shared, given all targets, the time and a way to read a process's, and
    /// tells.
    fn share(
        &mut self,
        look: impl FnOnce(
            &mut SharedMemory,
            &[u32],
            Instant,
            &dyn Fn(u32) -> Vec<maps::Stretch>,
        ) -> Vec<ProcFact>,
    ) {
        let whole = Cell::new(true);
        let targets: Vec<u32> = self.targets.keys().copied().collect();
        let read = |pid| stretches(pid, &whole);
        let facts = look(&mut self.memory, &targets, Instant::now(), &read);
        facts.into_iter().for_each(|fact| self.fact(fact));
        if !whole.get() || self.memory.left_out > 0 {
            let why = "a process maps too much";
            self.note_once("wakes through shared memory are only known in part", why);
        }
    }

    fn exec(&mut self, pid: u32) {
        if self.targets.contains_key(&pid) {
            // Descriptors marked close-on-exec are gone, without a call that we could have seen.
            let before_ns = monotonic_ns();
            let Ok(open) = process::descriptor_numbers(pid) else { return };
            let open: HashSet<i32> = open.into_iter().collect();
            self.forget(pid, before_ns, |fd| !open.contains(&fd));
            self.memory.forget(pid);
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
        self.seed_memory(child);
    }

    /// A process is gone. It may be one that ended before it could be looked at: the kernel half
    /// has followed it all the same.
    fn gone(&mut self, pid: u32) {
        self.told("forgetting a process", |door| door.untrace(pid));
        self.forget(pid, monotonic_ns(), |_| true);
        self.memory.forget(pid);
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
        let kernel = Version::running();
        let by = kernel.and_then(|k| in_danger(k, (key.device, key.inode), is_cuda_driver));
        if let Some((pid, why)) = by {
            return Err(format!("process {pid} maps it, and {why}"));
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
                Ok(coverage) => {
                    if !self.rest.level().sees_launches() {
                        self.with.probes.detach_launches();
                    }
                    return Ok(Coverage { exist, ..coverage });
                }
                Err(error) => reason = error.to_string(),
            }
        }
        Err(reason)
    }
}

/// What a process maps, nothing where it is gone; clears `whole` where that is not all.
fn stretches(pid: u32, whole: &Cell<bool>) -> Vec<maps::Stretch> {
    let Ok((stretches, all)) = maps::stretches(pid) else { return Vec::new() };
    whole.set(whole.get() && all);
    stretches
}
