//! Where timelines go beside the view: to whoever collects them. One field here for each exporter.

use std::fs::File;

use anyhow::Context as _;

use crate::export::prometheus::{Now, Prometheus};
use crate::{
    agent::clock,
    cost::Costs,
    export::{
        health::Lost,
        jsonl::{Jsonl, JsonlError},
        otlp::{self, Otlp, Settings},
    },
    happening::{Happening, Kind},
    intake::input::SessionStart,
    nvml,
    pipeline::Families,
    timeline::{
        figures::{Figures, Outgoing},
        model::Timeline,
    },
};

use super::args::OutletArgs;

/// What is told to each exporter about once a second.
pub struct Round<'a> {
    /// Now, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// Requests that are open.
    pub open: &'a [Timeline],
    /// Events seen so far.
    pub families: Families,
    /// Events lost so far, by place.
    pub lost: &'a [Lost],
    /// What the processes of each service did so far.
    pub figures: &'a [Figures],
    /// What every GPU said last.
    pub gpus: &'a nvml::Snapshot,
    /// What tracing has cost so far.
    pub costs: &'a Costs,
}

/// Everything that was asked for.
pub struct Outlets {
    prometheus: Option<Prometheus>,
    /// The GPUs' readings have the datacenter exporter's names too.
    dcgm_names: bool,
    otlp: Option<Otlp>,
    events: Option<Jsonl<File>>,
    notes: Vec<String>,
}

impl Outlets {
    /// Opens what was asked for.
    ///
    /// # Errors
    /// Where one cannot be opened at all: an address in use, a setting that makes no sense. A
    /// collector that does not answer is no error.
    pub fn open(args: &OutletArgs, start: &SessionStart) -> anyhow::Result<Self> {
        let events = args.events.as_ref().map(|path| {
            let file =
                File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            Ok::<_, anyhow::Error>(Jsonl::new(path.display().to_string(), file))
        });
        let otlp = args.otlp.as_deref().map(|endpoint| {
            let settings = Settings::from_env(Some(endpoint).filter(|text| !text.is_empty()))?;
            Otlp::open(settings, &start.host, u128::from_be_bytes(start.seed))
        });
        let prometheus = args.prometheus.map(|address| {
            Prometheus::open(address).with_context(|| format!("cannot serve metrics on {address}"))
        });
        let mut outlets = Self {
            prometheus: prometheus.transpose()?,
            dcgm_names: args.dcgm_names,
            otlp: otlp.transpose().context("cannot send over OTLP")?,
            events: events.transpose()?,
            notes: Vec::new(),
        };
        outlets.notes.extend(
            outlets.prometheus.iter().map(|p| format!("metrics on http://{}/metrics", p.address())),
        );
        outlets.agent(Kind::AgentStart, format!("began to trace {}", start.selectors.join(" ")));
        Ok(outlets)
    }

    /// Takes timelines of requests that have ended. Never blocks.
    pub fn take(&mut self, timelines: &[Timeline]) {
        if let Some(prometheus) = &mut self.prometheus {
            prometheus.take(timelines);
        }
        if let Some(otlp) = &mut self.otlp {
            otlp.take(timelines);
        }
    }

    /// Takes requests that the processes made of others. Never blocks.
    pub fn asked(&mut self, outgoing: &[Outgoing]) {
        if let Some(prometheus) = &mut self.prometheus {
            prometheus.asked(outgoing);
        }
    }

    /// Takes lines of the event log. Never blocks.
    pub fn happened(&mut self, happenings: &[Happening]) {
        if happenings.is_empty() {
            return;
        }
        if let Some(otlp) = &mut self.otlp {
            otlp.happened(happenings);
        }
        if let Some(events) = &mut self.events
            && let Err(error) = write(events, happenings)
        {
            self.notes.push(error.to_string());
        }
    }

    /// Something that spanprobe itself did, now.
    fn agent(&mut self, kind: Kind, text: String) {
        let unix_ns = clock::monotonic_ns().saturating_add_signed(clock::realtime_offset_ns());
        self.happened(&[Happening::new(unix_ns, kind, text)]);
    }

    /// Whether anybody wants to be told of each round.
    pub fn wants_rounds(&self) -> bool {
        self.prometheus.is_some() || self.otlp.is_some()
    }

    /// Time has passed. Never blocks.
    pub fn round(&mut self, round: &Round<'_>) {
        if let Some(prometheus) = &mut self.prometheus {
            let Round { now_ns, open, families, lost, figures, gpus, costs } = *round;
            let gpus = nvml::metrics::metrics(gpus, now_ns, self.dcgm_names);
            let counts = self.otlp.as_ref().map(Otlp::counts);
            let unsent = counts.map(|counts| counts.dropped()).unwrap_or_default();
            prometheus.round(Now { open, families, lost, figures, gpus, costs, unsent: &unsent });
        }
        if let Some(otlp) = &mut self.otlp {
            let Round { now_ns, open, families, lost, gpus, .. } = *round;
            let gpus = nvml::metrics::metrics(gpus, now_ns, false);
            otlp.round(otlp::Round { now_ns, open, families, lost, gpus });
        }
    }

    /// News for the operator since the last call.
    pub fn notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(self.otlp.iter().flat_map(Otlp::notes));
        notes
    }

    /// The end: hands over what is left, within a few seconds. Lines for the operator.
    pub fn finish(mut self) -> Vec<String> {
        self.agent(Kind::AgentStop, "ended".to_owned());
        if let Some(prometheus) = self.prometheus.take() {
            prometheus.close();
        }
        let mut lines = self.notes();
        if let Some(events) = &self.events
            && events.skipped() > 0
        {
            lines.push(format!("{}: {} lines were not written", events.name(), events.skipped()));
        }
        lines.extend(self.otlp.into_iter().flat_map(Otlp::finish));
        lines
    }
}

/// Every line, so that those that an output does not take are counted.
fn write(events: &mut Jsonl<File>, happenings: &[Happening]) -> Result<(), JsonlError> {
    let written = happenings.iter().map(|happening| events.write(happening));
    let first = written.fold(Ok(()), Result::and);
    first.and(events.flush())
}
