//! The thread that sends, one task on it for each signal, so that none waits for another.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc as std_mpsc,
    },
    thread,
    time::Duration,
};

use compact_str::CompactString;
use opentelemetry_otlp::{
    LogExporter, MetricExporter, RetryPolicy, SpanExporter, WithExportConfig as _,
    WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    logs::{LogBatch, LogExporter as _},
    metrics::{Temporality, exporter::PushMetricExporter as _},
    trace::{SpanData, SpanExporter as _},
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    counts::Counts,
    log,
    meters::Readers,
    resource::Resources,
    settings::{Protocol, SettingError, Settings, Signal, Target},
    span,
    voice::Voice,
};
use crate::{happening::Happening, timeline::model::Timeline};

/// Requests taken from the queue at once.
const BATCH: usize = 512;
/// Spans in one export, but for a request that has more by itself: well below the 4 MiB that
/// collectors take.
const MAX_SPANS: usize = 2_048;
/// How long a batch gathers.
const GATHER: Duration = Duration::from_millis(100);
/// Tries after the first; an export's time bounds them too.
const RETRIES: usize = 20;
/// Longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// What the thread takes in.
pub struct Intake {
    /// Requests that have ended.
    pub timelines: mpsc::Receiver<Timeline>,
    /// Phases of those that wait.
    pub phases: Arc<AtomicUsize>,
    /// Lines of the event log.
    pub happenings: mpsc::Receiver<Happening>,
    /// Where to collect metrics: handed over once their temporality is known.
    pub readers: std_mpsc::Receiver<Readers>,
    /// When to be at an end, once that is known.
    pub stop: watch::Receiver<Option<Instant>>,
}

/// What all tasks share.
pub struct Shared {
    /// Who speaks.
    pub resources: Resources,
    /// Makes spans.
    pub maker: span::Maker,
    /// What became of it.
    pub counts: Arc<Counts>,
}

/// Says that the exporters are there, and what they want of metrics.
pub type Ready = std_mpsc::SyncSender<Result<Temporality, SettingError>>;

/// Starts the thread. It holds `done` until it has ended.
///
/// # Errors
/// Where the system gives no thread.
pub fn start(
    settings: Settings,
    shared: Shared,
    intake: Intake,
    ready: Ready,
    done: std_mpsc::SyncSender<()>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Names of hosts are looked up there, since the system's own look-up blocks.
        .max_blocking_threads(1)
        .thread_name("spanprobe-names")
        .build()?;
    let run = move || {
        let voice = Voice::new(Arc::clone(&shared.counts));
        tracing::subscriber::with_default(voice, || {
            runtime.block_on(all(settings, Arc::new(shared), intake, &ready));
            // A look-up that hangs holds nobody up.
            runtime.shutdown_background();
        });
        drop(done);
    };
    thread::Builder::new().name("spanprobe-otlp".to_owned()).spawn(run).map(|_| ())
}

async fn all(settings: Settings, shared: Arc<Shared>, intake: Intake, ready: &Ready) {
    let exporters = match Exporters::build(&settings) {
        Ok(exporters) => exporters,
        Err(error) => {
            // Whoever waits for it says it.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let temporality = exporters.metrics.as_ref().map(|(exporter, _)| exporter.temporality());
    if ready.send(Ok(temporality.unwrap_or_default())).is_err() {
        return;
    }
    let Intake { timelines, phases, happenings, readers, stop } = intake;
    let stop = Stop(stop);
    let traces = async {
        if let Some((exporter, limit)) = exporters.traces {
            let queue = Queue { timelines, phases };
            traces(exporter, queue, &shared, stop.clone(), limit).await;
        }
    };
    let logs = async {
        if let Some((exporter, limit)) = exporters.logs {
            logs(exporter, happenings, &shared, stop.clone(), limit).await;
        }
    };
    let metrics = async {
        if let (Some((exporter, limit)), Ok(readers)) = (exporters.metrics, readers.recv()) {
            metrics(exporter, readers, &shared, stop.clone(), (limit, settings.interval)).await;
        }
    };
    tokio::join!(traces, logs, metrics);
}

/// The exporters of the signals that are sent, and how long one export may take.
struct Exporters {
    traces: Option<(SpanExporter, Duration)>,
    metrics: Option<(MetricExporter, Duration)>,
    logs: Option<(LogExporter, Duration)>,
}

/// An exporter of any signal for a target.
macro_rules! exporter {
    ($exporter:ty, $target:expr) => {{
        let Target { endpoint, protocol, timeout } = $target;
        let builder = <$exporter>::builder();
        let built = match protocol {
            Protocol::Grpc => builder
                .with_tonic()
                .with_endpoint(endpoint.clone())
                .with_timeout(*timeout)
                .with_retry_policy(retries())
                .build(),
            Protocol::Http => builder
                .with_http()
                .with_endpoint(endpoint.clone())
                .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                .with_timeout(*timeout)
                .with_retry_policy(retries())
                .build(),
        };
        let error = |why: opentelemetry_otlp::ExporterBuildError| SettingError {
            name: endpoint.clone(),
            why: why.to_string(),
        };
        built.map(|exporter| (exporter, *timeout)).map_err(error)
    }};
}

impl Exporters {
    fn build(settings: &Settings) -> Result<Self, SettingError> {
        let traces = settings.traces.as_ref().map(|target| exporter!(SpanExporter, target));
        let metrics = settings.metrics.as_ref().map(|target| exporter!(MetricExporter, target));
        let logs = settings.logs.as_ref().map(|target| exporter!(LogExporter, target));
        Ok(Self {
            traces: traces.transpose()?,
            metrics: metrics.transpose()?,
            logs: logs.transpose()?,
        })
    }
}

fn retries() -> RetryPolicy {
    RetryPolicy::recommended().with_max_retries(RETRIES).with_max_delay(MAX_PAUSE)
}

/// Knows when the end has come.
#[derive(Clone)]
struct Stop(watch::Receiver<Option<Instant>>);

impl Stop {
    /// Comes when the end is announced: the moment by which all must be over.
    async fn announced(&mut self) -> Instant {
        match self.0.wait_for(Option::is_some).await.map(|deadline| *deadline) {
            Ok(Some(deadline)) => deadline,
            // Nobody is left to announce it.
            _ => Instant::now(),
        }
    }

    fn is_announced(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// The moment by which all must be over has passed.
    fn is_over(&self) -> bool {
        self.0.borrow().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Waits this long, or until the end is announced.
    async fn pause(&mut self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            _ = self.announced() => {}
        }
    }

    /// The work's result, unless `limit` or the end comes first.
    async fn export(
        &mut self,
        limit: Duration,
        work: impl Future<Output = OTelSdkResult>,
    ) -> Ended {
        // The exporter keeps to the limit by itself, and can say more of what went wrong.
        let limit = limit.saturating_add(Duration::from_secs(1));
        let end = async {
            let deadline = self.announced().await;
            tokio::time::sleep_until(deadline).await;
        };
        tokio::select! {
            biased;
            result = work => Ended::By(result.map_err(|error| error.to_string())),
            () = tokio::time::sleep(limit) => Ended::By(Err("no answer".to_owned())),
            () = end => Ended::TooLate,
        }
    }
}

/// How an export ended.
enum Ended {
    By(Result<(), String>),
    /// spanprobe ends before it.
    TooLate,
}

impl Ended {
    fn count(self, counts: &Counts, signal: Signal, n: u64) -> bool {
        match self {
            Self::By(result) => {
                let taken = result.is_ok();
                counts.exported(signal, n, result);
                taken
            }
            Self::TooLate => {
                counts.of(signal).ended.fetch_add(n, Ordering::Relaxed);
                false
            }
        }
    }
}

/// Requests that wait to be sent.
struct Queue {
    timelines: mpsc::Receiver<Timeline>,
    phases: Arc<AtomicUsize>,
}

impl Queue {
    /// A batch, once there is one; none at the end.
    async fn next(&mut self, stop: &mut Stop) -> Option<Vec<Timeline>> {
        let mut batch = Vec::new();
        if self.timelines.recv_many(&mut batch, BATCH).await == 0 {
            return None;
        }
        if batch.len() < BATCH && !stop.is_announced() {
            stop.pause(GATHER).await;
            while batch.len() < BATCH
                && let Ok(timeline) = self.timelines.try_recv()
            {
                batch.push(timeline);
            }
        }
        let phases = batch.iter().map(|timeline| timeline.phases.len()).sum();
        self.phases.fetch_sub(phases, Ordering::Relaxed);
        Some(batch)
    }
}

async fn traces(
    mut exporter: SpanExporter,
    mut queue: Queue,
    shared: &Shared,
    mut stop: Stop,
    limit: Duration,
) {
    while let Some(batch) = queue.next(&mut stop).await {
        // A resource is a process; what is sent at once is of one.
        let mut processes: BTreeMap<(CompactString, u32), Vec<Timeline>> = BTreeMap::new();
        for timeline in batch {
            let process = (timeline.service.clone(), timeline.pid);
            processes.entry(process).or_default().push(timeline);
        }
        for timelines in processes.into_values() {
            if let Some(first) = timelines.first().filter(|_| !stop.is_over()) {
                exporter.set_resource(&shared.resources.process(first));
            }
            let mut rest = timelines.into_iter();
            // Nothing is made that can no longer be sent.
            while !stop.is_over()
                && let Some((spans, requests)) = part(&mut rest, shared)
            {
                let ended = stop.export(limit, exporter.export(spans)).await;
                ended.count(&shared.counts, Signal::Traces, requests);
            }
            let of = shared.counts.of(Signal::Traces);
            of.ended.fetch_add(rest.len() as u64, Ordering::Relaxed);
        }
    }
}

/// Spans for one export, and of how many requests; none when there are no more.
fn part(
    rest: &mut impl Iterator<Item = Timeline>,
    shared: &Shared,
) -> Option<(Vec<SpanData>, u64)> {
    let (mut spans, mut requests) = (Vec::new(), 0);
    while spans.len() < MAX_SPANS
        && let Some(timeline) = rest.next()
    {
        match shared.maker.spans(&timeline) {
            Some(more) => {
                spans.extend(more);
                requests += 1;
            }
            None => {
                let of = shared.counts.of(Signal::Traces);
                of.unsendable.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    (requests > 0).then_some((spans, requests))
}

async fn logs(
    mut exporter: LogExporter,
    mut happenings: mpsc::Receiver<Happening>,
    shared: &Shared,
    mut stop: Stop,
    limit: Duration,
) {
    exporter.set_resource(&shared.resources.agent());
    let maker = log::Maker::new(shared.maker.scope.clone());
    let mut batch = Vec::new();
    while happenings.recv_many(&mut batch, BATCH).await > 0 {
        let records: Vec<_> = batch.drain(..).map(|line| maker.record(&line)).collect();
        let records: Vec<_> = records.iter().map(|record| (record, &shared.maker.scope)).collect();
        let ended = stop.export(limit, exporter.export(LogBatch::new(&records))).await;
        ended.count(&shared.counts, Signal::Logs, records.len() as u64);
    }
}

async fn metrics(
    exporter: MetricExporter,
    readers: Readers,
    shared: &Shared,
    mut stop: Stop,
    (limit, interval): (Duration, Duration),
) {
    loop {
        stop.pause(interval).await;
        let last = stop.is_announced();
        for place in 0..readers.len() {
            let Some(collected) = readers.collect(place) else { continue };
            let ended = stop.export(limit, exporter.export(&collected)).await;
            // What was not collected is not lost: it goes with the next.
            if !ended.count(&shared.counts, Signal::Metrics, 1) {
                break;
            }
        }
        if last {
            return;
        }
    }
}
