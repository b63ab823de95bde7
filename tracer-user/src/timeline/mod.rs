//! Requests and GPU work → timelines with phases.
//!
//! A request's timeline is built once everything up to a second after its end has been taken in;
//! facts that come later never reopen it.

mod build;
mod chunks;
mod earliest;
pub mod explain;
pub mod figures;
pub mod ids;
mod losses;
pub mod model;
mod neighbours;
mod now;
mod service;
pub mod tile;
mod waiting;
mod work;

use std::collections::BTreeMap;

use build::{Context, build};
use compact_str::CompactString;
use explain::{Answer, Explanation, Question};
use figures::{Figures, Outgoing, Sums};
use foldhash::HashMap;
use losses::Losses;
use model::Timeline;
use neighbours::Neighbours;
use now::{Current, Looks};
use service::service_name;
use waiting::Waiting;
use work::Work;

use crate::{
    cause::{Carrier, Causes, Path},
    cost::Level,
    gpu::{Gpu, Out, Subject},
    intake::event::{Event, ProcFact},
    nvml::{History, Told},
    stream::{Exchange, Role, Streams},
};

/// GPU work is kept for requests that are open this long, ns.
pub const HORIZON_NS: u64 = 30_000_000_000;
/// Threads' records are kept this much longer where a request is asked for, ns: what its threads
/// did before it was read.
const EXPLAINED_NS: u64 = 5_000_000_000;
/// Open requests whose threads are looked at, the oldest first.
const MAX_WATCHED: usize = 16;
/// Connections whose last response is remembered.
const MAX_ANSWERED: usize = 65_536;
/// Processes remembered.
const MAX_PROCESSES: usize = 4_096;

/// What this room counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Timelines handed out.
    pub built: u64,
    /// Of these, built before their grace had passed, for want of room.
    pub early: u64,
    /// Requests that the process itself made of others.
    pub outgoing: u64,
    /// Of these, dropped before anybody took them.
    pub outgoing_dropped: u64,
    /// Findings of the GPU room dropped before their time.
    pub evicted: u64,
    /// Threads' waits and wakes dropped before their time.
    pub waits_evicted: u64,
}

#[derive(Default)]
struct Process {
    service: CompactString,
    container: Option<String>,
    pod: Option<String>,
    work: Work,
    /// It uses the CUDA driver: only then is it asked who was served beside whom.
    cuda: bool,
    neighbours: Neighbours,
    /// When it last mapped code before its driver was hooked, ns.
    mapped_ns: u64,
    /// When its driver was hooked, ns.
    hooked_ns: u64,
    /// Sites of its driver that are hooked, and that exist.
    sites: (u64, u64),
    /// It has ended.
    gone: bool,
}

impl Process {
    /// Whether the request could have called the driver before that was hooked.
    fn hooked_late(&self, exchange: &Exchange) -> bool {
        exchange.first_read.exit_ns < self.hooked_ns && exchange.end_ns > self.mapped_ns
    }
}

/// Requests waiting to become timelines, and what is needed for that.
pub struct Timelines {
    realtime_offset_ns: i64,
    seed: [u8; 16],
    processes: BTreeMap<u32, Process>,
    /// Each with the time at which the response before it on its connection was written, where that
    /// was after its first byte was read (a pipelined one), else 0, ns.
    waiting: Waiting<(Box<Exchange>, u64)>,
    /// When the last response of each connection was written, ns.
    answered: HashMap<u64, u64>,
    losses: Losses,
    gpus: History,
    /// When the scheduler was not seen, to keep to the cost budget.
    blind: Losses,
    /// Since when that is so, ns.
    blind_since: Option<u64>,
    looks: Looks,
    causes: Causes,
    /// GPU work and requests that ended before this time have been forgotten although an open
    /// request might have needed them, ns.
    horizon_ns: u64,
    question: Option<Question>,
    sums: Sums,
    counts: Counts,
}

impl Timelines {
    /// For a session with these constants.
    pub fn new(realtime_offset_ns: i64, seed: [u8; 16]) -> Self {
        Self {
            realtime_offset_ns,
            seed,
            processes: BTreeMap::new(),
            waiting: Waiting::default(),
            answered: HashMap::default(),
            losses: Losses::default(),
            gpus: History::default(),
            blind: Losses::default(),
            blind_since: None,
            looks: Looks::default(),
            causes: Causes::default(),
            horizon_ns: 0,
            question: None,
            sums: Sums::default(),
            counts: Counts::default(),
        }
    }

    /// Asks for the request with this trace or span id, or a beginning of one; before its timeline
    /// is built, since what it is made from is forgotten then.
    pub fn explain(&mut self, id: &str) {
        self.question = Some(Question::new(id));
        self.causes.keep_records(EXPLAINED_NS);
    }

    /// What came of asking; `None` where nothing was asked.
    pub fn answer(&mut self) -> Option<Answer> {
        Some(self.question.take()?.answer())
    }

    /// Anything that happened: who waits for whom is found in it.
    pub fn on_event(&mut self, event: &Event) {
        self.causes.on_event(event);
    }

    /// A fact about a process.
    pub fn on_fact(&mut self, time_ns: u64, fact: &ProcFact) {
        match fact {
            ProcFact::Target { pid, exe, comm, cuda } => {
                let name = service_name(exe, comm);
                self.gpus.forget(*pid);
                let process = self.process(*pid);
                // The number may be another process's by now.
                if std::mem::take(&mut process.gone) {
                    (process.container, process.pod) = (None, None);
                }
                process.service = name.into();
                process.cuda |= cuda;
            }
            ProcFact::Container { pid, container, pod } => {
                let process = self.process(*pid);
                (process.container, process.pod) = (container.clone(), pod.clone());
            }
            ProcFact::Coverage { pid, hooked, exist, .. } => {
                let process = self.process(*pid);
                process.hooked_ns = time_ns;
                process.sites = (u64::from(*hooked), u64::from(*exist));
            }
            ProcFact::Visible { pid, devices } => self.gpus.see(*pid, devices),
            ProcFact::Gone { pid } => self.process(*pid).gone = true,
            ProcFact::Doing(doing) => self.looks.add(time_ns, *doing),
            ProcFact::Shed { level } => self.shed(time_ns, Level::from_number(*level)),
            ProcFact::Descriptor { .. }
            | ProcFact::Watched { .. }
            | ProcFact::Shared { .. }
            | ProcFact::Closed(_)
            | ProcFact::Paused { .. } => {}
        }
    }

    /// So much is left out from now on.
    fn shed(&mut self, time_ns: u64, level: Level) {
        match (self.blind_since, level.sees_scheduler()) {
            (None, false) => self.blind_since = Some(time_ns),
            (Some(since_ns), true) => {
                self.blind.add(since_ns, time_ns);
                self.blind_since = None;
            }
            _ => {}
        }
    }

    /// Whether the scheduler was not seen at some time between two, ns.
    fn is_blind(&self, from_ns: u64, to_ns: u64) -> bool {
        self.blind_since.is_some_and(|since| since <= to_ns) || self.blind.touch(from_ns, to_ns)
    }

    /// What is known of a process. Beyond the cap those that have ended are forgotten, then the
    /// one with the lowest number.
    fn process(&mut self, pid: u32) -> &mut Process {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&pid) {
            self.processes.retain(|_, process| !process.gone);
            if self.processes.len() >= MAX_PROCESSES {
                self.processes.pop_first();
            }
        }
        self.processes.entry(pid).or_default()
    }

    /// Events were lost between two times, ns.
    pub fn on_loss(&mut self, from_ns: u64, to_ns: u64) {
        self.losses.add(from_ns, to_ns);
    }

    /// NVML told something.
    pub fn on_nvml(&mut self, told: &Told) {
        self.gpus.take(told);
    }

    /// What the GPUs said.
    pub fn gpus(&self) -> &History {
        &self.gpus
    }

    /// A process mapped code: perhaps the driver.
    pub fn on_map(&mut self, time_ns: u64, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid).filter(|p| p.hooked_ns == 0) {
            process.mapped_ns = time_ns;
        }
    }

    /// A finding of the GPU room.
    pub fn on_gpu(&mut self, out: Out) {
        let pid = match &out {
            Out::Op(op) => op.pid,
            Out::Step(step) => step.pid,
            Out::Wait(wait) => wait.pid,
            Out::Refine(refine) => refine.pid,
            Out::Failure(failure) => failure.pid,
        };
        self.process(pid).cuda = true;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        match &out {
            Out::Step(step) => self.sums.step(&process.service, step),
            Out::Refine(refine) => {
                if let Subject::Step(id) = refine.subject
                    && let Some(step) = process.work.step(id)
                {
                    self.sums.refine(&process.service, step, refine);
                }
            }
            Out::Op(_) | Out::Wait(_) | Out::Failure(_) => {}
        }
        process.work.add(out);
    }

    /// A request has ended.
    pub fn on_exchange(&mut self, exchange: Box<Exchange>) {
        self.causes.on_exchange(&exchange);
        if exchange.role == Role::Client {
            self.counts.outgoing += 1;
            let service = self.processes.get(&exchange.pid).map_or("", |p| p.service.as_str());
            self.sums.asked(&exchange, service);
            return;
        }
        if self.answered.len() >= MAX_ANSWERED {
            self.answered.clear();
        }
        let before = self.answered.insert(exchange.conn, exchange.end_ns);
        let after_ns = before.filter(|end| *end > exchange.first_read.exit_ns).unwrap_or(0);
        let process = self.process(exchange.pid);
        if process.cuda {
            process.neighbours.add(&exchange, after_ns);
        }
        let straight = !process.cuda && self.causes.ran_through(&exchange);
        let times_ns = (exchange.first_read.exit_ns, exchange.end_ns);
        self.waiting.push(times_ns, (exchange, after_ns), straight);
    }

    /// Time has passed: builds what has had its grace.
    pub fn advance(
        &mut self,
        watermark_ns: u64,
        streams: &Streams,
        gpu: &Gpu,
        out: &mut Vec<Timeline>,
    ) {
        streams.open().for_each(|exchange| self.causes.on_exchange(exchange));
        let settled_ns = watermark_ns.saturating_sub(self.waiting.grace_ns());
        self.causes.advance(watermark_ns, settled_ns);
        if self.waiting.is_due(watermark_ns) {
            self.note_open(streams);
        }
        while let Some(((exchange, after_ns), in_time)) = self.waiting.pop(watermark_ns) {
            self.counts.early += u64::from(!in_time);
            self.counts.built += 1;
            let timeline = self.build(&exchange, after_ns, None, gpu);
            self.ask(&timeline, &exchange, after_ns, None, gpu);
            out.push(timeline);
            self.causes.forget_exchange(exchange.id);
        }
        self.waiting.give_back();
        self.losses.forget_before(watermark_ns.saturating_sub(2 * HORIZON_NS));
        self.blind.forget_before(watermark_ns.saturating_sub(2 * HORIZON_NS));
        let keep_from = self.needed_from(watermark_ns, streams);
        self.causes.forget_before(keep_from);
        let mut evicted = 0;
        for process in self.processes.values_mut().filter(|process| process.cuda) {
            process.work.forget_before(keep_from);
            process.neighbours.forget_before(keep_from);
            evicted += process.work.evicted();
        }
        self.counts.evicted = evicted;
    }

    /// Work that ended before this time belongs to no request that is open or waits.
    fn needed_from(&mut self, watermark_ns: u64, streams: &Streams) -> u64 {
        let open = streams.open().map(|exchange| exchange.first_read.exit_ns);
        let first =
            open.chain(self.waiting.begin_ns()).min().unwrap_or(watermark_ns).min(watermark_ns);
        let horizon = watermark_ns.saturating_sub(HORIZON_NS);
        if first < horizon && watermark_ns != u64::MAX {
            self.horizon_ns = horizon;
        }
        first.max(horizon)
    }

    fn note_open(&mut self, streams: &Streams) {
        let mut by_pid: HashMap<u32, Vec<&Exchange>> = HashMap::default();
        for exchange in streams.open().filter(|exchange| exchange.role == Role::Server) {
            by_pid.entry(exchange.pid).or_default().push(exchange);
        }
        for (pid, process) in self.processes.iter_mut().filter(|(_, process)| process.cuda) {
            let open = by_pid.remove(pid).unwrap_or_default();
            process.neighbours.set_open(open.into_iter());
        }
    }

    /// Timelines of requests that are open, as far as they are known.
    pub fn open(&self, now_ns: u64, streams: &Streams, gpu: &Gpu) -> Vec<Timeline> {
        let open = in_order(streams).into_iter().enumerate();
        open.map(|(at, exchange)| {
            let watched = (at < MAX_WATCHED).then(|| self.carriers(exchange, now_ns));
            let current = watched.and_then(|carriers| self.looks.now(&carriers, now_ns, streams));
            self.build_open(exchange, now_ns, current, gpu)
        })
        .collect()
    }

    /// How many requests are open.
    pub fn open_count(streams: &Streams) -> usize {
        served(streams).count()
    }

    /// Threads that carry the oldest open requests: those that are worth a look.
    pub fn carrying(&self, now_ns: u64, streams: &Streams) -> Vec<Carrier> {
        let oldest = in_order(streams).into_iter().take(MAX_WATCHED);
        let mut carrying: Vec<Carrier> =
            oldest.flat_map(|exchange| self.carriers(exchange, now_ns)).collect();
        carrying.sort_by_key(|carrier| (carrier.pid, carrier.tid));
        carrying.dedup_by_key(|carrier| (carrier.pid, carrier.tid));
        carrying
    }

    fn carriers(&self, exchange: &Exchange, now_ns: u64) -> Vec<Carrier> {
        let process = self.processes.get(&exchange.pid).filter(|process| process.cuda);
        let own_thread = process.and_then(|process| process.neighbours.own_thread(exchange, 0));
        self.causes.carriers(exchange, exchange.last_read.exit_ns, now_ns, own_thread)
    }

    /// The session ends: builds everything that is still waiting. Comes back with the timelines of
    /// requests that are open.
    pub fn finish(
        &mut self,
        now_ns: u64,
        streams: &Streams,
        gpu: &Gpu,
        out: &mut Vec<Timeline>,
    ) -> Vec<Timeline> {
        let open = self.open(now_ns, streams, gpu);
        if self.question.is_some() {
            for (timeline, exchange) in open.iter().zip(in_order(streams)) {
                self.ask(timeline, exchange, 0, Some(now_ns), gpu);
            }
        }
        self.advance(u64::MAX, streams, gpu, out);
        open
    }

    /// A timeline was built: was it asked for?
    fn ask(
        &mut self,
        timeline: &Timeline,
        exchange: &Exchange,
        after_ns: u64,
        now_ns: Option<u64>,
        gpu: &Gpu,
    ) {
        let Some(mut question) = self.question.take() else { return };
        question.built(timeline, || {
            let (timeline, path) = self.build_with_path(exchange, after_ns, now_ns, gpu, true);
            Explanation::new(timeline, path, exchange, &self.causes)
        });
        self.question = Some(question);
    }

    /// What a process is called, where it was ever told to be a target.
    pub fn service(&self, pid: u32) -> Option<&str> {
        let service = self.processes.get(&pid)?.service.as_str();
        Some(service).filter(|service| !service.is_empty())
    }

    /// Requests that processes made of others, since the last call.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        self.sums.take_outgoing()
    }

    /// Figures of each service.
    pub fn figures(&self) -> Vec<Figures> {
        let running = self.processes.values().filter(|process| !process.gone);
        self.sums.figures(running.map(|p| (p.service.as_str(), p.cuda, p.sites)))
    }

    /// Counters.
    pub fn counts(&self) -> Counts {
        Counts {
            waits_evicted: self.causes.counts().evicted,
            outgoing_dropped: self.sums.dropped(),
            ..self.counts
        }
    }

    fn build(
        &self,
        exchange: &Exchange,
        after_ns: u64,
        now_ns: Option<u64>,
        gpu: &Gpu,
    ) -> Timeline {
        self.build_with_path(exchange, after_ns, now_ns, gpu, false).0
    }

    fn build_open(
        &self,
        exchange: &Exchange,
        now_ns: u64,
        current: Option<Current>,
        gpu: &Gpu,
    ) -> Timeline {
        let wants_notes = false;
        self.with_context(exchange, 0, gpu, |mut context| {
            context.current = current;
            let (mut timeline, _) = build(exchange, Some(now_ns), &context, wants_notes);
            self.add_readings(&mut timeline);
            timeline
        })
    }

    fn build_with_path(
        &self,
        exchange: &Exchange,
        after_ns: u64,
        now_ns: Option<u64>,
        gpu: &Gpu,
        wants_notes: bool,
    ) -> (Timeline, Path) {
        self.with_context(exchange, after_ns, gpu, |context| {
            let (mut timeline, path) = build(exchange, now_ns, &context, wants_notes);
            self.add_readings(&mut timeline);
            (timeline, path)
        })
    }

    /// Adds what the GPU said of itself meanwhile.
    fn add_readings(&self, timeline: &mut Timeline) {
        let process = self.processes.get(&timeline.pid);
        let uses_gpu = process.is_some_and(|process| process.cuda);
        timeline.nvml = self.gpus.join(timeline.pid, uses_gpu, timeline.gpu_end_ns());
        if let (Some(gpu), Some(joined)) = (&mut timeline.gpu, &timeline.nvml) {
            gpu.device = Some(joined.device().to_owned());
        }
    }

    /// What a timeline is built from, besides the request itself.
    fn with_context<T>(
        &self,
        exchange: &Exchange,
        after_ns: u64,
        gpu: &Gpu,
        then: impl FnOnce(Context<'_>) -> T,
    ) -> T {
        let (nobody, nameless) = (Neighbours::default(), CompactString::default());
        let process = self.processes.get(&exchange.pid);
        let kernel_name = |pid, handle| gpu.name_of(pid, handle).map(str::to_owned);
        let work_of = |pid| self.processes.get(&pid).filter(|p| p.cuda).map(|p| &p.work);
        let context = Context {
            work_of: &work_of,
            neighbours: process.map_or(&nobody, |process| &process.neighbours),
            service: process.map_or(&nameless, |process| &process.service),
            place: process.map_or((None, None), |process| {
                (process.container.as_deref(), process.pod.as_deref())
            }),
            realtime_offset_ns: self.realtime_offset_ns,
            seed: self.seed,
            kernel_name: &kernel_name,
            after_ns,
            horizon_ns: self.horizon_ns,
            losses: &self.losses,
            causes: &self.causes,
            hooked_late: process.is_some_and(|process| process.hooked_late(exchange)),
            is_blind: &|from_ns, to_ns| self.is_blind(from_ns, to_ns),
            current: None,
        };
        then(context)
    }
}

/// Open requests that the processes serve.
fn served(streams: &Streams) -> impl Iterator<Item = &Exchange> {
    streams.open().filter(|exchange| exchange.role == Role::Server)
}

/// The same, in the order of their begin.
fn in_order(streams: &Streams) -> Vec<&Exchange> {
    let mut open: Vec<_> = served(streams).collect();
    open.sort_by_key(|exchange| exchange.id);
    open
}
