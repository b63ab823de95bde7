//! `spanprobe run` and `spanprobe record`: attach, show, and, for `record`, write down.

use std::{
    collections::VecDeque,
    fs::File,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use super::{
    ALREADY_RUNNING, NO_TARGET,
    args::{RecordArgs, RunArgs},
    lock::{self, Lock},
    outlets::{Outlets, Round},
    resident::{Present, Resident},
    view::View,
};
use crate::{
    agent::{
        clock,
        drain::{Drain, Message, Sources},
        meter::Meter,
        scout::{Equipment, MAX_DOUBTS, MAX_ORDERS, Order, Scout, ScoutCounts},
        session,
    },
    cost::Measured,
    intake::{event::Naming, input::Input},
    nvml::sampler::{self, Sampler},
    pipeline::Pipeline,
    probe::{Availability, Probes, Settings, UprobeMode},
    record::{self, Options, Writer},
    timeline::model::Timeline,
};

/// Messages between the threads, batches of a quarter of a MiB among them: what is beyond waits in
/// the ring, whose memory is there anyway.
const MESSAGES: usize = 16;
/// Things to look up.
const ERRANDS: usize = 65_536;
/// How often the view moves on.
const VIEW_EVERY: Duration = Duration::from_millis(200);
/// How often those who collect are told how things stand.
const ROUND_EVERY: Duration = Duration::from_secs(1);
/// When to say why nothing is seen, and how often again.
const SILENCE: Duration = Duration::from_secs(5);
const SILENCE_AGAIN: Duration = Duration::from_secs(30);

/// Attaches and shows timelines until the time is up, the targets are gone, or a signal comes.
///
/// # Errors
/// Where the probes cannot be loaded, or an output cannot be opened.
pub fn run(args: &RunArgs, record: Option<&RecordArgs>) -> anyhow::Result<ExitCode> {
    let _lock = match lock::take() {
        Lock::Taken(pid) if !args.trace.beside => {
            eprintln!(
                "spanprobe: process {pid} is tracing on this machine already; \
                 --beside traces a second time, at twice the cost"
            );
            return Ok(ExitCode::from(ALREADY_RUNNING));
        }
        Lock::Impossible(why) => {
            eprintln!("spanprobe: no lock file, a second instance would not be noticed: {why}");
            None
        }
        other => Some(other),
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second of its kind ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot handle signals")?;
    }
    let mut view = View::open(&args.show)?;
    let (resident, listens) = Resident::open(&args.agent);
    if let Err(why) = listens {
        view.note(&why);
    }
    let start = session::start(args.selectors.describe());
    let outlets = Outlets::open(&args.outlets, &start)?;
    let recording = match record {
        None => None,
        Some(record) => {
            let options = Options {
                force: record.force,
                without_bodies: record.options.redact,
                max_bytes: Some(record.options.max_mib.saturating_mul(1 << 20)),
            };
            let writer = record::create(&record.output, &start, options)?;
            view.note(&format!(
                "recording to {}: it holds the first {} bytes of what the server reads and writes{}",
                record.output.display(),
                args.trace.capture_len,
                if record.options.redact { ", without bodies" } else { "" }
            ));
            Some(writer)
        }
    };
    let mut pipeline = Pipeline::new(start.clone());
    pipeline.push(Input::Start(&start), &mut Vec::new());
    let live = attach(args, &mut view)?;
    let sampler = match args.nvml.settings() {
        None => None,
        Some(settings) => Some(Sampler::start(settings).context("cannot start a thread")?),
    };
    let (out, notes, news) = (Vec::new(), Vec::new(), Vec::new());
    let feed = Feed { pipeline, recording, out, notes, news, ready: false };
    Session {
        args,
        stop,
        view,
        outlets,
        resident,
        feed,
        live,
        sampler,
        orders: VecDeque::new(),
        doubted: None,
        ready_said: false,
    }
    .run()
}

/// The threads, and what they share with this one.
struct Live {
    drain: Drain,
    scout: Scout,
    meter: Meter,
    counts: Arc<ScoutCounts>,
    messages: Receiver<Message>,
    orders: SyncSender<Order>,
}

fn attach(args: &RunArgs, view: &mut View) -> anyhow::Result<Live> {
    let settings = Settings {
        ring_bytes: args.trace.ring_mib << 20,
        force_perf_uprobes: args.trace.perf_uprobes,
    };
    let mut probes = Probes::load(settings)?;
    if let Availability::Unavailable(why) = &probes.tcp {
        view.note(&format!("arrivals are not seen, requests start at the server's read: {why}"));
    }
    if let Availability::Unavailable(why) = &probes.sched {
        view.note(&format!("when threads ran and who woke them is not seen: {why}"));
    }
    if let Availability::Unavailable(why) = &probes.cuda {
        view.note(&format!("the CUDA driver is not seen: {why}"));
    }
    if probes.uprobe_mode() == UprobeMode::Perf {
        view.note(
            "uprobes are attached one by one: letting them go takes the kernel up to a minute",
        );
    }
    if !session::in_first_pid_namespace() {
        view.note(
            "this is not the host's pid namespace: the kernel's process ids will match none of \
             those here; run with the host's (hostPID, --pid=host)",
        );
    }
    let (send_message, messages) = sync_channel(MESSAGES);
    let (send_errand, errands) = sync_channel(ERRANDS);
    let (send_order, orders) = sync_channel(MAX_ORDERS);
    let door = probes.door()?;
    let from = Sources { ring: probes.ring()?, losses: probes.losses()?, log: probes.log()? };
    let drain =
        Drain::start(from, send_message.clone(), send_errand).context("cannot start a thread")?;
    let meter = Meter::start(probes.costs(), send_message.clone(), args.agent.measure_every)
        .context("cannot start a thread")?;
    let scout = Scout::start(Equipment {
        probes,
        door,
        selectors: args.selectors.selectors(),
        capture_len: args.trace.capture_len,
        messages: send_message,
        errands,
        orders,
        drain: Arc::clone(&drain.counts),
    })
    .context("cannot start a thread")?;
    let counts = Arc::clone(&scout.counts);
    Ok(Live { drain, scout, meter, counts, messages, orders: send_order })
}

/// Where every message goes: into the recording, and through the pipeline.
struct Feed {
    pipeline: Pipeline,
    recording: Option<Writer<File>>,
    out: Vec<Timeline>,
    /// For the operator.
    notes: Vec<String>,
    /// What the agent's own threads say of themselves.
    news: Vec<News>,
    /// What was to be traced from the start is.
    ready: bool,
}

/// What is no input of the pipeline.
enum News {
    /// What tracing cost lately.
    Cost(Measured),
    /// Whether no probe is attached now.
    Paused(bool),
}

impl Feed {
    fn take(&mut self, message: Message) {
        match message {
            Message::Records { bytes, lens } => {
                let mut rest = bytes.as_slice();
                for len in lens {
                    let Some((record, behind)) = rest.split_at_checked(len as usize) else { break };
                    rest = behind;
                    self.input(Input::Record(record));
                }
            }
            Message::Fact { time_ns, fact } => self.input(Input::Fact { time_ns, fact: &fact }),
            Message::Losses { time_ns, losses } => self.input(Input::Losses { time_ns, losses }),
            Message::Tick(now_ns) => self.input(Input::Tick { now_ns }),
            Message::Cost(measured) => self.news.push(News::Cost(measured)),
            Message::Paused(resting) => self.news.push(News::Paused(resting)),
            Message::Note(text) => self.note(text),
            Message::Ready => self.ready = true,
        }
    }

    /// What NVML told.
    fn take_told(&mut self, message: sampler::Message) {
        match message {
            sampler::Message::Told { time_ns, told } => {
                self.input(Input::Nvml { time_ns, told: &told });
            }
            sampler::Message::Note(text) => self.note(text),
        }
    }

    fn note(&mut self, text: String) {
        self.pipeline.note(text.clone());
        self.notes.push(text);
    }

    fn input(&mut self, input: Input<'_>) {
        let (pipeline, out) = (&mut self.pipeline, &mut self.out);
        let Some(recording) = &mut self.recording else { return pipeline.push(input, out) };
        if let Err(why) = recording.push_and(input, &mut |written| pipeline.push(written, out)) {
            self.note(format!("the recording has stopped, tracing goes on: {why}"));
        }
    }
}

struct Session<'a> {
    args: &'a RunArgs,
    stop: Arc<AtomicBool>,
    view: View,
    outlets: Outlets,
    resident: Resident,
    feed: Feed,
    live: Live,
    sampler: Option<Sampler>,
    /// What the scout has not taken yet.
    orders: VecDeque<Order>,
    /// The last descriptor that was looked at because its close may have been lost.
    doubted: Option<Naming>,
    ready_said: bool,
}

impl Session<'_> {
    fn run(mut self) -> anyhow::Result<ExitCode> {
        let began = Instant::now();
        let mut viewed = began;
        let mut told = began;
        let mut silence_said: Option<Instant> = None;
        while !self.is_over(began) {
            match self.live.messages.recv_timeout(VIEW_EVERY) {
                Ok(message) => {
                    self.feed.take(message);
                    self.hand_on();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("a thread of the agent has ended"),
            }
            if let Some(sampler) = &mut self.sampler {
                sampler.take().into_iter().for_each(|message| self.feed.take_told(message));
            }
            self.answer();
            if viewed.elapsed() >= VIEW_EVERY {
                viewed = Instant::now();
                self.show();
            }
            if told.elapsed() >= ROUND_EVERY {
                told = Instant::now();
                self.tell();
            }
            let due = match silence_said {
                None => began.elapsed() >= SILENCE,
                Some(last) => last.elapsed() >= SILENCE_AGAIN,
            };
            let seen = self.view.requests() > 0 || self.resident.is_resting();
            if due && !seen && self.feed.ready {
                silence_said = Some(Instant::now());
                let why = self.why_nothing();
                self.view.note(&why);
            }
        }
        self.end()
    }

    fn targets(&self) -> usize {
        self.live.counts.targets.load(Ordering::Relaxed)
    }

    fn words(&self) -> String {
        self.args.selectors.describe().join(" ")
    }

    /// The time is up, a signal came, nobody reads, or the processes that were named are gone.
    fn is_over(&self, began: Instant) -> bool {
        let only_pids = self.args.selectors.selectors().only_pids();
        self.stop.load(Ordering::Acquire)
            || self.view.is_closed()
            || self.args.trace.limit.is_some_and(|limit| began.elapsed() >= limit)
            || only_pids && self.feed.ready && self.targets() == 0
    }

    /// Hands on the timelines that are done.
    fn hand_on(&mut self) {
        self.view.take(&self.feed.out);
        self.outlets.take(&self.feed.out);
        self.resident.take(&self.feed.out);
        self.feed.out.clear();
    }

    fn show(&mut self) {
        for note in std::mem::take(&mut self.feed.notes) {
            self.view.note(&note);
        }
        if self.feed.ready && !self.ready_said {
            self.ready_said = true;
            let words = self.words();
            match self.targets() {
                0 => self.view.note(&format!("no process matches {words} yet")),
                1 => self.view.note(&format!("tracing 1 process ({words})")),
                n => self.view.note(&format!("tracing {n} processes ({words})")),
            }
        }
        self.outlets.asked(&self.feed.pipeline.take_outgoing());
        let happenings = self.feed.pipeline.happenings();
        happenings.iter().for_each(|happening| self.resident.recorder.happened(happening));
        self.outlets.happened(&happenings);
        for note in self.outlets.notes() {
            self.view.note(&note);
        }
        let now_ns = clock::monotonic_ns();
        let open =
            if self.view.wants_open(now_ns) { self.feed.pipeline.open() } else { Vec::new() };
        self.view.tick(now_ns, &open, &self.feed.pipeline.health());
    }

    /// Takes what the agent's own threads say of themselves, and answers those who ask.
    fn answer(&mut self) {
        for news in std::mem::take(&mut self.feed.news) {
            match news {
                News::Cost(measured) => {
                    if let Some((level, why)) = self.resident.cost(&measured) {
                        self.feed.note(why);
                        self.order(Order::Shed(level));
                    }
                }
                News::Paused(resting) => {
                    let targets = self.targets();
                    let pipeline = &self.feed.pipeline;
                    let present = Present { now_ns: clock::monotonic_ns(), pipeline, targets };
                    let (kind, text) = self.resident.rests(resting, &present);
                    self.feed.pipeline.happen(kind, text);
                    self.view.note(&format!("{}: {text}", kind.as_str()));
                }
            }
        }
        let (pipeline, targets) = (&self.feed.pipeline, self.targets());
        let present = Present { now_ns: clock::monotonic_ns(), pipeline, targets };
        for order in self.resident.answer(&present) {
            self.order(order);
        }
        self.pass_orders();
    }

    /// Orders something of the scout.
    fn order(&mut self, order: Order) {
        if self.orders.len() < MAX_ORDERS {
            self.orders.push_back(order);
        } else {
            self.feed.note("what was ordered is not done: the agent is far behind".to_owned());
        }
        self.pass_orders();
    }

    /// A scout that is behind takes orders later; it must not be waited for: it may wait for us.
    fn pass_orders(&mut self) {
        while let Some(order) = self.orders.pop_front() {
            if let Err(TrySendError::Full(order)) = self.live.orders.try_send(order) {
                self.orders.push_front(order);
                break;
            }
        }
    }

    fn tell(&mut self) {
        self.resident.recorder.advance(clock::monotonic_ns());
        self.look();
        self.check();
        if self.outlets.wants_rounds() {
            let pipeline = &self.feed.pipeline;
            self.outlets.round(&Round {
                now_ns: clock::monotonic_ns(),
                open: &pipeline.open(),
                families: pipeline.families(),
                lost: &pipeline.losses(),
                figures: &pipeline.figures(),
                gpus: &pipeline.gpus(),
                costs: &self.resident.costs,
            });
        }
    }

    /// Has the threads looked at that carry open requests.
    fn look(&self) {
        let carrying = self.feed.pipeline.carrying();
        if !carrying.is_empty() {
            let threads = carrying.iter().map(|carrier| (carrier.pid, carrier.tid)).collect();
            // A scout that is behind looks later.
            let _ = self.live.orders.try_send(Order::Look(threads));
        }
    }

    /// Has descriptors looked at whose close may have been lost, some in each round.
    fn check(&mut self) {
        let doubts = self.feed.pipeline.doubtful(self.doubted, MAX_DOUBTS);
        let Some(last) = doubts.last().copied() else { return };
        // A scout that is behind looks later.
        if self.live.orders.try_send(Order::Check(doubts)).is_ok() {
            self.doubted = Some(last);
        }
    }

    /// Why no request has been seen, as far as can be told.
    fn why_nothing(&self) -> String {
        if self.targets() == 0 {
            return format!("nothing seen yet: no process matches {}", self.words());
        }
        self.feed.pipeline.why_nothing()
    }

    fn end(mut self) -> anyhow::Result<ExitCode> {
        self.show();
        self.tell();
        let words = self.words();
        let nobody = self.live.counts.adopted.load(Ordering::Relaxed) == 0;
        let dropped = self.live.drain.counts.errands_dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            self.feed.note(format!("{dropped} things were not looked up: they came too fast"));
        }
        let Live { drain, scout, meter, messages, .. } = self.live;
        // The threads hand over what is left; somebody has to take it while they end.
        drain.stop();
        let ending = thread::spawn(move || {
            drain.join();
            scout.stop();
            meter.stop();
        });
        while let Ok(message) = messages.recv() {
            self.feed.take(message);
        }
        // A panic there has been printed.
        let _ = ending.join();
        if let Some(sampler) = self.sampler {
            let dropped = sampler.dropped();
            sampler.finish().into_iter().for_each(|message| self.feed.take_told(message));
            if dropped > 0 {
                self.feed.note(format!("{dropped} of NVML's answers were dropped"));
            }
        }
        let Feed { mut pipeline, recording, mut out, notes, .. } = self.feed;
        for note in notes {
            self.view.note(&note);
        }
        let open = pipeline.finish(&mut out);
        self.view.take(&out);
        self.outlets.take(&out);
        self.outlets.asked(&pipeline.take_outgoing());
        self.outlets.happened(&pipeline.happenings());
        for note in self.outlets.finish() {
            self.view.note(&note);
        }
        self.view.finish(&open, &pipeline.health());
        match recording.map(|mut recording| recording.finish()) {
            None => {}
            Some(Ok(counts)) => self.view.note(&format!(
                "recorded {} records, {} bytes, {} secret values removed",
                counts.records, counts.bytes, counts.redacted.secrets
            )),
            Some(Err(why)) => self.view.note(&format!("the recording is not whole: {why}")),
        }
        if nobody {
            eprintln!("spanprobe: no process matched {words}");
            return Ok(ExitCode::from(NO_TARGET));
        }
        Ok(ExitCode::SUCCESS)
    }
}
