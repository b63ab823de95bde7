//! Where timelines go beside the view: to whoever collects them. One field here for each exporter.

use anyhow::Context as _;

use crate::export::prometheus::{Now, Prometheus};
use crate::{
    export::health::{Health, Lost},
    happening::Happening,
    nvml,
    pipeline::Families,
    timeline::{
        figures::{Figures, Outgoing},
        model::Timeline,
    },
};

use super::args::OutletArgs;

/// What is told to each exporter about once a second.
#[allow(dead_code, reason = "each exporter takes its part")]
pub struct Round<'a> {
    /// Now, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// Requests that are open.
    pub open: &'a [Timeline],
    /// What was lost and what could not be seen, so far.
    pub health: &'a Health,
    /// Events seen so far.
    pub families: Families,
    /// Events lost so far, by place.
    pub lost: &'a [Lost],
    /// What the processes of each service did so far.
    pub figures: &'a [Figures],
    /// What every GPU said last.
    pub gpus: &'a nvml::Snapshot,
}

/// Everything that was asked for.
pub struct Outlets {
    prometheus: Option<Prometheus>,
    /// The GPUs' readings have the datacenter exporter's names too.
    dcgm_names: bool,
}

impl Outlets {
    /// Opens what was asked for.
    ///
    /// # Errors
    /// Where one cannot be opened at all: an address in use, a setting that makes no sense. A
    /// collector that does not answer is no error.
    pub fn open(args: &OutletArgs) -> anyhow::Result<Self> {
        let prometheus = match args.prometheus {
            None => None,
            Some(address) => Some(
                Prometheus::open(address)
                    .with_context(|| format!("cannot serve metrics on {address}"))?,
            ),
        };
        Ok(Self { prometheus, dcgm_names: args.dcgm_names })
    }

    /// Where to find what was opened, for the operator.
    pub fn opened(&self) -> Vec<String> {
        let prometheus = self.prometheus.iter();
        prometheus.map(|p| format!("metrics on http://{}/metrics", p.address())).collect()
    }

    /// Takes timelines of requests that have ended. Never blocks.
    pub fn take(&mut self, timelines: &[Timeline]) {
        if let Some(prometheus) = &mut self.prometheus {
            prometheus.take(timelines);
        }
    }

    /// Takes requests that the processes made of others. Never blocks.
    pub fn asked(&mut self, outgoing: &[Outgoing]) {
        if let Some(prometheus) = &mut self.prometheus {
            prometheus.asked(outgoing);
        }
    }

    /// Takes lines of the event log. Never blocks.
    pub fn happened(&mut self, _happenings: &[Happening]) {}

    /// Whether anybody wants to be told of each round.
    pub fn wants_rounds(&self) -> bool {
        self.prometheus.is_some()
    }

    /// Time has passed. Never blocks.
    pub fn round(&mut self, round: &Round<'_>) {
        if let Some(prometheus) = &mut self.prometheus {
            let Round { now_ns, open, families, lost, figures, gpus, .. } = *round;
            let gpus = nvml::metrics::metrics(gpus, now_ns, self.dcgm_names);
            prometheus.round(Now { open, families, lost, figures, gpus });
        }
    }

    /// The end: hands over what is left, within a few seconds. Lines for the operator.
    pub fn finish(self) -> Vec<String> {
        if let Some(prometheus) = self.prometheus {
            prometheus.close();
        }
        Vec::new()
    }
}
