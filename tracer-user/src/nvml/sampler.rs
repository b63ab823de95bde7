//! The threads that ask: one takes samples in turn, one waits for XIDs.
//!
//! NVML is somebody else's code and can hang where a GPU is lost: so nobody waits for these threads
//! for long, and what they say goes through a bounded channel of its own.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nvml_wrapper::{
    EventSet, Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError,
};

use super::{
    library,
    read::{self, Memory},
    reading::State,
    set::{self, Member},
    told::Told,
};
use crate::agent::clock::monotonic_ns;

/// Messages that wait for the pipeline; beyond, the newest are dropped and counted.
const MESSAGES: usize = 512;
/// After so many samples it is asked again which devices there are: instances come and go.
const SAMPLES_PER_SET: u64 = 10;
/// How long one wait for an event lasts, ms: the end of the thread waits for it.
const EVENT_WAIT_MS: u32 = 250;
/// Failed waits in a row after which nobody waits any more.
const MAX_FAILED_WAITS: u32 = 40;
/// How long the end waits for a thread inside NVML.
const PATIENCE: Duration = Duration::from_secs(2);

/// How to sample.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The library, where it is not to be looked for.
    pub library: Option<PathBuf>,
    /// Time from one sample to the next.
    pub interval: Duration,
}

/// What the threads say.
#[derive(Debug)]
pub enum Message {
    /// For the pipeline.
    Told {
        /// When, ns of `CLOCK_MONOTONIC`.
        time_ns: u64,
        /// What.
        told: Told,
    },
    /// For the operator.
    Note(String),
}

/// The running threads.
#[derive(Debug)]
pub struct Sampler {
    messages: Receiver<Message>,
    /// Dropped to end the threads.
    stop: SyncSender<()>,
    dropped: Arc<AtomicU64>,
    /// `None` once it has ended.
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts the threads. That there is no NVML is told as a note.
    ///
    /// # Errors
    /// Where the system has no thread left.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        let (send, messages) = sync_channel(MESSAGES);
        let (stop, stopped) = sync_channel(0);
        let dropped = Arc::new(AtomicU64::new(0));
        let to = Outbox { send, dropped: Arc::clone(&dropped) };
        let thread =
            thread::Builder::new().name("nvml".into()).spawn(move || {
                match library::open(settings.library.as_deref()) {
                    Ok(nvml) => run(&nvml, settings.interval, &stopped, &to),
                    Err(error) => to.note(format!("the GPUs' own readings are missing: {error}")),
                }
            })?;
        Ok(Self { messages, stop, dropped, thread: Some(thread) })
    }

    /// What has been said since the last call. Never blocks.
    pub fn take(&mut self) -> Vec<Message> {
        let mut taken = Vec::new();
        while self.thread.is_some() && taken.len() < MESSAGES {
            match self.messages.try_recv() {
                Ok(message) => taken.push(message),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => taken.extend(self.thread.take().and_then(end)),
            }
        }
        taken
    }

    /// Messages dropped because the pipeline did not keep up.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Ends the threads and hands over what is left; waits two seconds at most.
    pub fn finish(self) -> Vec<Message> {
        let Self { messages, stop, thread, .. } = self;
        drop(stop);
        let deadline = Instant::now() + PATIENCE;
        let mut taken = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match messages.recv_timeout(left) {
                Ok(message) => taken.push(message),
                Err(RecvTimeoutError::Disconnected) => {
                    taken.extend(thread.and_then(end));
                    return taken;
                }
                Err(RecvTimeoutError::Timeout) => {
                    taken.push(Message::Note("NVML does not answer".to_owned()));
                    return taken;
                }
            }
        }
    }
}

/// What is to be said of the end of the thread: nothing, unless it was a panic.
fn end(thread: JoinHandle<()>) -> Option<Message> {
    let text = "the GPUs are no longer asked: a fault in spanprobe or in NVML";
    thread.join().is_err().then(|| Message::Note(text.to_owned()))
}

/// The way to the pipeline.
struct Outbox {
    send: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Outbox {
    fn send(&self, message: Message) {
        if let Err(TrySendError::Full(_)) = self.send.try_send(message) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn tell(&self, told: Told) {
        self.send(Message::Told { time_ns: monotonic_ns(), told });
    }

    fn note(&self, text: String) {
        self.send(Message::Note(text));
    }
}

/// Last XID of each device, or why none is told.
type Xids = Mutex<BTreeMap<String, State>>;

fn run(nvml: &Nvml, interval: Duration, stopped: &Receiver<()>, to: &Outbox) {
    let over = AtomicBool::new(false);
    let xids = Xids::default();
    thread::scope(|scope| {
        let listener = thread::Builder::new().name("nvml-events".into());
        if let Err(error) = listener.spawn_scoped(scope, || listen(nvml, &over, &xids, to)) {
            to.note(format!("XIDs are not seen: no thread for them: {error}"));
        }
        take_samples(nvml, interval, stopped, &xids, to);
        over.store(true, Ordering::Release);
    });
}

fn take_samples(nvml: &Nvml, interval: Duration, stopped: &Receiver<()>, xids: &Xids, to: &Outbox) {
    let mut members: Vec<Member<'_>> = Vec::new();
    let mut memories: BTreeMap<String, Memory<'_>> = BTreeMap::new();
    let mut said: Vec<String> = Vec::new();
    for round in 0_u64.. {
        let began = Instant::now();
        if round % SAMPLES_PER_SET == 0 {
            refresh(nvml, &mut members, round == 0, &mut said, to);
            memories.retain(|uuid, _| members.iter().any(|member| member.known.uuid == *uuid));
        }
        for member in &members {
            let uuid = &member.known.uuid;
            let memory = memories.entry(uuid.clone()).or_default();
            let xid = lock(xids).get(uuid).copied().unwrap_or(State::Unread);
            let sample =
                read::sample(nvml, &member.device, uuid, member.is_instance(), xid, memory);
            to.tell(Told::Sample(Box::new(sample)));
        }
        // Whole intervals apart, unless the asking takes longer than one: then it gets a rest.
        let pause = interval.saturating_sub(began.elapsed()).max(interval / 10);
        match stopped.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}

/// Asks which devices there are, and tells it where that has changed.
fn refresh<'nvml>(
    nvml: &'nvml Nvml,
    members: &mut Vec<Member<'nvml>>,
    first: bool,
    said: &mut Vec<String>,
    to: &Outbox,
) {
    let (now, wrong) = match set::devices(nvml) {
        Ok(found) => found,
        Err(error) => {
            (Vec::new(), vec![format!("NVML does not say which GPUs there are: {error}")])
        }
    };
    if first && now.is_empty() && wrong.is_empty() {
        to.note("NVML knows no GPU".to_owned());
    }
    // What is wrong is said once, and again when something else is.
    if wrong != *said {
        wrong.iter().take(8).for_each(|text| to.note(text.clone()));
        *said = wrong;
    }
    let known = |members: &[Member<'_>]| -> Vec<_> {
        members.iter().map(|member| member.known.clone()).collect()
    };
    let devices = known(&now);
    if first || known(members) != devices {
        to.tell(Told::Devices(devices));
    }
    *members = now;
}

fn lock(xids: &Xids) -> std::sync::MutexGuard<'_, BTreeMap<String, State>> {
    xids.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for XIDs until it is over.
fn listen(nvml: &Nvml, over: &AtomicBool, xids: &Xids, to: &Outbox) {
    let Ok((members, _)) = set::devices(nvml) else { return };
    let set = match register(nvml, &members, xids) {
        Ok(Some(set)) => set,
        Ok(None) => return,
        Err(error) => return to.note(format!("XIDs are not seen: {error}")),
    };
    let mut failed = 0;
    while !over.load(Ordering::Acquire) {
        match set.wait(EVENT_WAIT_MS) {
            Ok(event) => {
                failed = 0;
                let xid = match event.event_data {
                    Some(XidError::Value(xid)) => xid,
                    Some(XidError::Unknown) => 999,
                    None => continue,
                };
                let Ok(uuid) = event.device.uuid() else { continue };
                lock(xids).insert(uuid.clone(), State::Value(xid));
                to.tell(Told::Xid { uuid, xid });
            }
            Err(NvmlError::Timeout) => failed = 0,
            Err(error) => {
                failed += 1;
                if failed >= MAX_FAILED_WAITS {
                    let state = read::failure(error);
                    lock(xids).values_mut().for_each(|xid| *xid = state);
                    return to.note("XIDs are no longer seen: waiting for them fails".to_owned());
                }
                // A wait that fails at once must not become a loop that spins.
                thread::sleep(Duration::from_millis(EVENT_WAIT_MS.into()));
            }
        }
    }
}

/// Registers every GPU that reports XIDs; says of each whether it does. Registering takes the set
/// away where it fails: then everything begins anew without that GPU.
fn register<'nvml>(
    nvml: &'nvml Nvml,
    members: &[Member<'nvml>],
    xids: &Xids,
) -> Result<Option<EventSet<'nvml>>, NvmlError> {
    let mut able: Vec<&Member<'_>> = Vec::new();
    for member in members.iter().filter(|member| !member.is_instance()) {
        let state = match member.device.supported_event_types() {
            Ok(types) if types.contains(EventTypes::CRITICAL_XID_ERROR) => State::Value(0),
            Ok(_) => State::Unsupported,
            Err(error) => read::failure(error),
        };
        if state == State::Value(0) {
            able.push(member);
        }
        lock(xids).insert(member.known.uuid.clone(), state);
    }
    'anew: while !able.is_empty() {
        let mut set = nvml.create_event_set()?;
        for (at, member) in able.iter().enumerate() {
            match member.device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(back) => set = back,
                Err(error) => {
                    let state = read::failure(error.error);
                    lock(xids).insert(member.known.uuid.clone(), state);
                    able.remove(at);
                    continue 'anew;
                }
            }
        }
        return Ok(Some(set));
    }
    Ok(None)
}
