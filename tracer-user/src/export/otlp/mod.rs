//! OpenTelemetry: requests as spans, distributions as metrics, and the event log, over OTLP.
//!
//! [`Otlp`] is held by the main thread and never blocks it: what is taken goes into bounded queues,
//! and a thread of its own sends it. What does not fit, and what no collector takes, is dropped and
//! counted. `docs/otlp.md` says what is sent.
//!
//! Only this room knows OpenTelemetry's crates.

mod attributes;
mod counts;
mod devices;
mod ids;
mod log;
mod meters;
mod resource;
mod sender;
mod settings;
mod span;
mod voice;

#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self as std_mpsc, RecvTimeoutError},
    },
    time::Duration,
};

pub use counts::Counts;
use meters::Meters;
pub use meters::Round;
use resource::Resources;
pub use settings::{SettingError, Settings, Signal};
use thiserror::Error;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{happening::Happening, timeline::model::Timeline};

/// Requests that wait to be sent.
const MAX_REQUESTS: usize = 4_096;
/// Phases of the requests that wait: these are most of the memory, about 10 MB at the most.
const MAX_PHASES: usize = 65_536;
/// Lines of the event log that wait.
const MAX_LINES: usize = 1_024;
/// How long the end may take.
const FLUSH: Duration = Duration::from_secs(3);
/// How long the thread may then take to count what was not sent.
const GRACE: Duration = Duration::from_secs(2);

/// Why nothing can be sent.
#[derive(Debug, Error)]
pub enum OtlpError {
    /// A setting makes no sense.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// It ended before it was ready.
    #[error("the thread that sends has failed")]
    Failed,
}

/// Sends to a collector.
pub struct Otlp {
    timelines: Option<mpsc::Sender<Timeline>>,
    phases: Arc<AtomicUsize>,
    happenings: Option<mpsc::Sender<Happening>>,
    meters: Option<Meters>,
    counts: Arc<Counts>,
    stop: watch::Sender<Option<Instant>>,
    done: std_mpsc::Receiver<()>,
}

impl Otlp {
    /// Begins to send. `host` is this machine's name, `run` a number that no other run has.
    ///
    /// # Errors
    /// Where a setting makes no sense. That no collector answers is no error.
    pub fn open(settings: Settings, host: &str, run: u128) -> Result<Self, OtlpError> {
        let counts = Arc::new(Counts::default());
        settings.notes.iter().for_each(|note| counts.note(note.clone()));
        let resources = Resources::new(&settings, host, run);
        let maker = span::Maker::new(run);
        let scope = maker.scope.clone();
        let [traces, logs, metrics] =
            [&settings.traces, &settings.logs, &settings.metrics].map(Option::is_some);

        let phases = Arc::new(AtomicUsize::new(0));
        let (send_timeline, timelines) = mpsc::channel(MAX_REQUESTS);
        let (send_happening, happenings) = mpsc::channel(MAX_LINES);
        let (send_readers, readers) = std_mpsc::sync_channel(1);
        let (send_stop, stop) = watch::channel(None);
        let (send_ready, ready) = std_mpsc::sync_channel(1);
        let (hold_done, done) = std_mpsc::sync_channel(0);
        let intake =
            sender::Intake { timelines, phases: Arc::clone(&phases), happenings, readers, stop };
        let shared =
            sender::Shared { resources: resources.clone(), maker, counts: Arc::clone(&counts) };
        sender::start(settings, shared, intake, send_ready, hold_done)?;
        let temporality = ready.recv().map_err(|_| OtlpError::Failed)??;
        let meters =
            metrics.then(|| Meters::new(resources, scope, temporality, Arc::clone(&counts)));
        if let Some(meters) = &meters {
            // Where nobody takes it, the thread has failed: that is noticed at the next use.
            let _ = send_readers.send(meters.readers());
        }
        Ok(Self {
            timelines: traces.then_some(send_timeline),
            phases,
            happenings: logs.then_some(send_happening),
            meters,
            counts,
            stop: send_stop,
            done,
        })
    }

    /// Takes requests that have ended. Never blocks.
    pub fn take(&mut self, timelines: &[Timeline]) {
        for timeline in timelines {
            if let Some(meters) = &mut self.meters {
                meters.add(timeline);
            }
            self.send(timeline);
        }
    }

    fn send(&self, timeline: &Timeline) {
        let Some(timelines) = &self.timelines else { return };
        let of = self.counts.of(Signal::Traces);
        let phases = timeline.phases.len();
        let waiting = self.phases.load(Ordering::Relaxed);
        if waiting.saturating_add(phases) > MAX_PHASES {
            of.queue_full.fetch_add(1, Ordering::Relaxed);
            return;
        }
        match timelines.try_reserve() {
            Ok(place) => {
                self.phases.fetch_add(phases, Ordering::Relaxed);
                place.send(timeline.clone());
            }
            Err(mpsc::error::TrySendError::Full(())) => {
                of.queue_full.fetch_add(1, Ordering::Relaxed);
            }
            Err(mpsc::error::TrySendError::Closed(())) => {
                of.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes lines of the event log. Never blocks.
    pub fn happened(&mut self, lines: &[Happening]) {
        let Some(happenings) = &self.happenings else { return };
        let of = self.counts.of(Signal::Logs);
        for line in lines {
            let lost = match happenings.try_send(line.clone()) {
                Ok(()) => continue,
                Err(mpsc::error::TrySendError::Full(_)) => &of.queue_full,
                Err(mpsc::error::TrySendError::Closed(_)) => &of.failed,
            };
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Time has passed. Never blocks.
    pub fn round(&mut self, round: Round<'_>) {
        if let Some(meters) = &mut self.meters {
            meters.round(round);
        }
    }

    /// What became of everything, for whoever shows counters.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// News for the operator since the last call.
    pub fn notes(&self) -> Vec<String> {
        self.counts.take_notes()
    }

    /// The end: sends what is left, for three seconds at the most. Lines for the operator.
    pub fn finish(self) -> Vec<String> {
        let Self { timelines, happenings, meters, counts, stop, done, .. } = self;
        let traces = timelines.is_some();
        // The thread sends what is in the queues and ends.
        drop((timelines, happenings));
        let _ = stop.send(Some(Instant::now() + FLUSH));
        let late = done.recv_timeout(FLUSH + GRACE);
        drop(meters);
        let mut lines = counts.take_notes();
        if late == Err(RecvTimeoutError::Timeout) {
            lines.push(
                "otlp: the thread that sends did not end in time: its last batch is not counted"
                    .to_owned(),
            );
        }
        lines.extend(
            Signal::ALL
                .into_iter()
                .filter(|signal| *signal != Signal::Traces || traces)
                .filter_map(|signal| counts.summary(signal)),
        );
        lines
    }
}
