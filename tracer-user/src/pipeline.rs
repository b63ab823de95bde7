//! From inputs to timelines: `intake → stream, gpu and cause → timeline`, in one place, without I/O and
//! without a clock, so that a session gives the same timelines live and replayed.

mod fuzz;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use fuzz::fuzz;

use crate::{
    cause::Carrier,
    cost::Level,
    export::health::{Coverage, Flow as FlowLine, Health, Lost},
    gpu::{self, Gpu},
    happening::{Happening, Happenings, Kind},
    intake::{
        event::{Event, Losses, Naming, ProcFact, Process, What},
        input::{Input, SessionStart},
        order::{Intake, Limits as IntakeLimits},
    },
    nvml::{
        self,
        watch::{Change, Watch},
    },
    stream::{self, Flow, FlowKind, Streams},
    timeline::{
        Timelines,
        explain::Answer,
        figures::{Figures, Outgoing},
        model::Timeline,
    },
};

/// How long ago nested programs were last counted at most, ns.
const STATISTICS_NS: u64 = 2_000_000_000;
/// Notes kept for the summary; further ones are counted.
const MAX_NOTES: usize = 32;
/// Kinds of flow and process kept apart in the summary.
const MAX_FLOWS: usize = 256;
/// Processes that are known to be alive.
const MAX_ALIVE: usize = 4_096;
/// How often a loss, or running out of device memory, is a line of the event log at most, ns.
const LOSSES_EVERY_NS: u64 = 1_000_000_000;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// Libraries whose coverage is kept.
const MAX_LIBRARIES: usize = 256;

/// Everything between the inputs and the timelines.
pub struct Pipeline {
    start: SessionStart,
    intake: Intake,
    streams: Streams,
    gpu: Gpu,
    timelines: Timelines,
    watch: Watch,
    losses: Losses,
    /// Since when each loss that is on its way may have happened, ns.
    losses_since: VecDeque<u64>,
    families: Families,
    alive: BTreeSet<u32>,
    flows: BTreeMap<(String, String), FlowLine>,
    coverage: BTreeMap<String, (u64, u64)>,
    notes: Vec<String>,
    notes_dropped: u64,
    happenings: Happenings,
    loss_said_ns: u64,
    out_of_memory_due_ns: u64,
    now_ns: u64,
    stream_out: Vec<stream::Out>,
    gpu_out: Vec<gpu::Out>,
}

/// Events seen, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// Socket calls.
    pub socket: u64,
    /// Word of the TCP stack.
    pub tcp: u64,
    /// Calls of the CUDA driver.
    pub cuda: u64,
    /// Births and deaths.
    pub process: u64,
    /// The scheduler's word, and waits.
    pub sched: u64,
    /// Launches that the calls of the driver stand for.
    pub launches: u64,
}

impl Pipeline {
    /// A pipeline for a session.
    pub fn new(start: SessionStart) -> Self {
        Self {
            timelines: Timelines::new(start.realtime_offset_ns, start.seed),
            now_ns: start.started_monotonic_ns,
            start,
            intake: Intake::new(IntakeLimits::default()),
            streams: Streams::new(stream::Limits::default()),
            gpu: Gpu::new(gpu::Limits::default()),
            watch: Watch::default(),
            losses: Losses::default(),
            losses_since: VecDeque::new(),
            families: Families::default(),
            alive: BTreeSet::new(),
            flows: BTreeMap::new(),
            coverage: BTreeMap::new(),
            notes: Vec::new(),
            notes_dropped: 0,
            happenings: Happenings::default(),
            loss_said_ns: 0,
            out_of_memory_due_ns: 0,
            stream_out: Vec::new(),
            gpu_out: Vec::new(),
        }
    }

    /// Takes an input in; timelines that it completes are added to `out`.
    pub fn push(&mut self, input: Input<'_>, out: &mut Vec<Timeline>) {
        if let Input::Losses { losses, .. } = input {
            // Counters are read in every round; those of nested programs about once a second.
            let since =
                self.now_ns.saturating_sub(if losses.recursion > 0 { STATISTICS_NS } else { 0 });
            self.losses_since.push_back(since);
        }
        if let Input::Nvml { time_ns, told } = input {
            self.told(time_ns, told);
        }
        self.intake.push(input);
        self.due();
        if let Input::Tick { now_ns } = input {
            self.now_ns = now_ns;
            let watermark = self.intake.watermark_ns();
            self.timelines.advance(watermark, &self.streams, &self.gpu, out);
        }
    }

    fn due(&mut self) {
        while let Some(event) = self.intake.next_due() {
            self.event(&event);
        }
    }

    fn event(&mut self, event: &Event) {
        match &event.what {
            What::Socket(_) => self.families.socket += 1,
            What::Tcp(_) => self.families.tcp += 1,
            What::Cuda(_) => self.families.cuda += 1,
            What::Process(process) => {
                self.families.process += 1;
                match process {
                    Process::MapExec => self.timelines.on_map(event.time_ns, event.pid),
                    Process::Exit { last: true } => self.ended(event.time_ns, event.pid),
                    _ => {}
                }
            }
            What::Sched(_) => self.families.sched += 1,
            What::Proc(fact) => self.fact(event.time_ns, fact),
            What::Loss(losses) => {
                self.losses.add(losses);
                let since = self.losses_since.pop_front().unwrap_or(event.time_ns);
                self.timelines.on_loss(since, event.time_ns);
                self.lost(event.time_ns);
            }
        }
        self.timelines.on_event(event);
        self.gpu.on_event(event, &mut self.gpu_out);
        let mut found = std::mem::take(&mut self.gpu_out);
        for found in found.drain(..) {
            if let gpu::Out::Failure(failure) = &found {
                self.failed(failure);
            }
            self.timelines.on_gpu(found);
        }
        self.gpu_out = found;
        self.streams.on_event(event, &mut self.stream_out);
        let mut found = std::mem::take(&mut self.stream_out);
        found.drain(..).for_each(|found| self.stream_found(found));
        self.stream_out = found;
    }

    fn stream_found(&mut self, found: stream::Out) {
        match found {
            stream::Out::Exchange(exchange) => self.timelines.on_exchange(exchange),
            stream::Out::Flow(flow) => {
                let line = self.line(&flow);
                merge(&mut self.flows, line);
            }
        }
    }

    fn fact(&mut self, time_ns: u64, fact: &ProcFact) {
        self.timelines.on_fact(time_ns, fact);
        match fact {
            ProcFact::Target { pid, .. } => {
                if self.alive.len() < MAX_ALIVE && self.alive.insert(*pid) {
                    self.happened(time_ns, Kind::ProcessStart, "traced from now on", Some(*pid));
                }
            }
            ProcFact::Coverage { library, hooked, exist, .. } => {
                if self.coverage.len() < MAX_LIBRARIES {
                    self.coverage.insert(library.clone(), (u64::from(*hooked), u64::from(*exist)));
                }
            }
            ProcFact::Descriptor { .. }
            | ProcFact::Watched { .. }
            | ProcFact::Shared { .. }
            | ProcFact::Container { .. }
            | ProcFact::Visible { .. }
            | ProcFact::Gone { .. }
            | ProcFact::Closed(_)
            | ProcFact::Doing(_)
            | ProcFact::Paused { .. } => {}
            ProcFact::Shed { level } => {
                let text = Level::from_number(*level).as_str();
                self.happened(time_ns, Kind::CostShed, text, None);
            }
        }
    }

    fn line(&self, flow: &Flow) -> FlowLine {
        let name = self.timelines.service(flow.pid).unwrap_or("?");
        let unix = |ns: u64| ns.saturating_add_signed(self.start.realtime_offset_ns);
        FlowLine {
            kind: flow.kind.as_str().to_owned(),
            process: format!("{name} {}", flow.pid),
            flows: 1,
            bytes_in: flow.bytes_in,
            bytes_out: flow.bytes_out,
            first_unix_ns: unix(flow.first_ns),
            last_unix_ns: unix(flow.last_ns),
        }
    }

    fn ended(&mut self, time_ns: u64, pid: u32) {
        if self.alive.remove(&pid) {
            self.happened(time_ns, Kind::ProcessExit, "ended", Some(pid));
        }
    }

    /// Counters are read in every round: one line for each second is enough.
    fn lost(&mut self, time_ns: u64) {
        if time_ns.saturating_sub(self.loss_said_ns) >= LOSSES_EVERY_NS {
            self.loss_said_ns = time_ns;
            let text = format!("{} events lost so far", self.losses.total());
            self.happened(time_ns, Kind::Loss, &text, None);
        }
    }

    /// NVML told something: kept for the timelines, and what changed is told in the event log.
    fn told(&mut self, time_ns: u64, told: &nvml::Told) {
        self.timelines.on_nvml(told);
        let mut changes = Vec::new();
        let alive = &self.alive;
        self.watch.take(time_ns, told, |pid| alive.contains(&pid), &mut changes);
        for Change { time_ns, kind, text, gpu, pid } in changes {
            let happening = self.happening(time_ns, kind, &text, pid);
            self.happenings.add(Happening { gpu: Some(gpu), ..happening });
        }
    }

    /// A call of the driver failed. Programs that run out of memory try again and again: one line
    /// for each second is enough.
    fn failed(&mut self, failure: &gpu::Failure) {
        if failure.ret == OUT_OF_MEMORY && failure.exit_ns >= self.out_of_memory_due_ns {
            self.out_of_memory_due_ns = failure.exit_ns.saturating_add(LOSSES_EVERY_NS);
            let text = format!("cu{:?}: out of device memory", failure.api);
            self.happened(failure.exit_ns, Kind::OutOfMemory, &text, Some(failure.pid));
        }
    }

    fn happening(&self, time_ns: u64, kind: Kind, text: &str, pid: Option<u32>) -> Happening {
        let unix_ns = time_ns.saturating_add_signed(self.start.realtime_offset_ns);
        let service = pid.and_then(|pid| self.timelines.service(pid)).map(str::to_owned);
        Happening { pid, service, ..Happening::new(unix_ns, kind, text) }
    }

    fn happened(&mut self, time_ns: u64, kind: Kind, text: &str, pid: Option<u32>) {
        let happening = self.happening(time_ns, kind, text, pid);
        self.happenings.add(happening);
    }

    /// Something happened that no input tells of: a line of the event log.
    pub fn happen(&mut self, kind: Kind, text: &str) {
        self.happened(self.now_ns, kind, text, None);
    }

    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` at the session's begin, ns.
    pub fn realtime_offset_ns(&self) -> i64 {
        self.start.realtime_offset_ns
    }

    /// Lines of the event log since the last call.
    pub fn happenings(&mut self) -> Vec<Happening> {
        self.happenings.take()
    }

    /// Something that whoever reads the summary has to know.
    pub fn note(&mut self, text: String) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(text);
        } else {
            self.notes_dropped += 1;
        }
    }

    /// How many requests are open.
    pub fn open_count(&self) -> usize {
        Timelines::open_count(&self.streams)
    }

    /// Timelines of requests that are open, as far as they are known.
    pub fn open(&self) -> Vec<Timeline> {
        self.timelines.open(self.now_ns, &self.streams, &self.gpu)
    }

    /// Threads that carry the oldest open requests: what they are in is worth a look.
    pub fn carrying(&self) -> Vec<Carrier> {
        self.timelines.carrying(self.now_ns, &self.streams)
    }

    /// Descriptors of connections with open requests whose close may have been lost: whether they
    /// still are what they were is worth a look. See [`Streams::doubtful`].
    pub fn doubtful(&self, after: Option<Naming>, most: usize) -> Vec<Naming> {
        self.streams.doubtful(after, most)
    }

    /// The session ends: hands out the timelines that were waiting, and those of open requests.
    pub fn finish(&mut self, out: &mut Vec<Timeline>) -> Vec<Timeline> {
        self.intake.finish();
        self.due();
        self.gpu.finish(self.now_ns, &mut self.gpu_out);
        for found in self.gpu_out.drain(..) {
            self.timelines.on_gpu(found);
        }
        self.timelines.finish(self.now_ns, &self.streams, &self.gpu, out)
    }

    /// Asks for the request with this trace or span id, or a beginning of one. To be called before
    /// anything is pushed.
    pub fn explain(&mut self, id: &str) {
        self.timelines.explain(id);
    }

    /// What came of asking, once everything has been pushed and finished; `None` where nothing was
    /// asked.
    pub fn explanation(&mut self) -> Option<Answer> {
        self.timelines.answer()
    }

    /// Events seen so far, by family.
    pub fn families(&self) -> Families {
        self.families
    }

    /// What every GPU said last.
    pub fn gpus(&self) -> nvml::Snapshot {
        self.timelines.gpus().snapshot()
    }

    /// Everything that can be lost, and how much of it was, so far.
    pub fn losses(&self) -> Vec<Lost> {
        let gpu = self.gpu.counters();
        let streams = self.streams.counters();
        let timelines = self.timelines.counts();
        let work = gpu.ops_evicted + timelines.evicted;
        let bad = self.intake.counts().bad_records;
        [
            ("socket", "socket", "kernel", self.losses.socket),
            ("tcp", "tcp", "kernel", self.losses.tcp),
            ("cuda", "cuda", "kernel", self.losses.cuda),
            ("process", "process", "kernel", self.losses.process),
            ("sched", "sched", "kernel", self.losses.sched),
            ("nested programs", "any", "nested", self.losses.recursion),
            ("unreadable records", "any", "intake", bad),
            ("evicted connections", "socket", "connections", streams.connections_evicted),
            ("requests not followed", "socket", "requests", streams.exchanges_untracked),
            (
                "requests of others not counted",
                "socket",
                "dependencies",
                timelines.outgoing_dropped,
            ),
            ("evicted GPU work", "cuda", "work", work),
            ("evicted waits of threads", "sched", "waits", timelines.waits_evicted),
        ]
        .map(|(name, family, place, count)| Lost { name, family, place, count })
        .to_vec()
    }

    /// Requests that the processes made of others, since the last call.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        self.timelines.take_outgoing()
    }

    /// Figures of each service so far.
    pub fn figures(&self) -> Vec<Figures> {
        self.timelines.figures()
    }

    /// What was lost and what could not be seen, so far.
    pub fn health(&self) -> Health {
        let counts = self.intake.counts();
        let mut flows = self.flows.clone();
        self.streams
            .unparsed()
            .map(|flow| self.line(&flow))
            .for_each(|line| merge(&mut flows, line));
        let mut notes = self.notes.clone();
        if self.notes_dropped > 0 {
            notes.push(format!("and {} more notes", self.notes_dropped));
        }
        if self.timelines.gpus().left_out() > 0 {
            let count = self.timelines.gpus().left_out();
            notes.push(format!("{count} GPUs were told of and are not kept"));
        }
        if counts.order.late > 0 {
            notes.push(format!(
                "{} events came too late for their place in time",
                counts.order.late
            ));
        }
        Health {
            events_seen: counts.records,
            events_lost: self
                .losses()
                .into_iter()
                .filter(|lost| lost.count > 0)
                .map(|lost| (lost.name.to_owned(), lost.count))
                .collect(),
            unparsed: flows.into_values().collect(),
            coverage: self
                .coverage
                .iter()
                .map(|(library, (hooked, exist))| Coverage {
                    library: library.clone(),
                    hooked: *hooked,
                    exist: *exist,
                    missing: Vec::new(),
                })
                .collect(),
            notes,
        }
    }

    /// Why no request has been seen although processes are traced.
    pub fn why_nothing(&self) -> String {
        let mut kinds: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for flow in self.health().unparsed {
            let (bytes_in, bytes_out) = kinds.entry(flow.kind).or_default();
            *bytes_in = bytes_in.saturating_add(flow.bytes_in);
            *bytes_out = bytes_out.saturating_add(flow.bytes_out);
        }
        if !kinds.is_empty() {
            // Only these are what clients may have sent; processes of a server talk to each other in
            // their own ways before any client comes.
            let hidden = [FlowKind::Tls, FlowKind::Http2];
            let why = if hidden.iter().any(|kind| kinds.contains_key(kind.as_str())) {
                "some of the traffic is not HTTP/1 in the clear"
            } else {
                "what was seen is something else"
            };
            let list: Vec<String> = kinds
                .iter()
                .map(|(kind, (bytes_in, bytes_out))| {
                    format!("{kind} ({bytes_in} bytes in, {bytes_out} out)")
                })
                .collect();
            return format!("no request seen yet; {why}: {}", list.join(", "));
        }
        if self.families.socket > 0 {
            return "no request seen yet: sockets are in use, but no request has begun and ended \
                    since tracing began"
                .to_owned();
        }
        if self.families.tcp > 0 {
            return "no request seen yet: bytes arrive, but the process does not read them"
                .to_owned();
        }
        "nothing seen yet: the process has moved no bytes over a socket since tracing began (idle, \
         or it uses io_uring, which is not seen)"
            .to_owned()
    }
}

fn merge(flows: &mut BTreeMap<(String, String), FlowLine>, line: FlowLine) {
    let full = flows.len() >= MAX_FLOWS;
    let mut key = (line.kind.clone(), line.process.clone());
    if full && !flows.contains_key(&key) {
        key = (line.kind.clone(), "other".to_owned());
    }
    match flows.get_mut(&key) {
        None => {
            let process = key.1.clone();
            flows.insert(key, FlowLine { process, ..line });
        }
        Some(sum) => {
            sum.flows += line.flows;
            sum.bytes_in = sum.bytes_in.saturating_add(line.bytes_in);
            sum.bytes_out = sum.bytes_out.saturating_add(line.bytes_out);
            sum.first_unix_ns = sum.first_unix_ns.min(line.first_unix_ns);
            sum.last_unix_ns = sum.last_unix_ns.max(line.last_unix_ns);
        }
    }
}

#[cfg(test)]
mod tests;
