//! Figures of services that no single request has: GPU time of all their work, what of their driver
//! is hooked, and the requests that they made of others.

use std::collections::BTreeMap;

use crate::{
    gpu::{Refine, Step},
    stream::{Exchange, reason},
};

/// Services whose GPU time is summed apart; the rest is one.
const MAX_SERVICES: usize = 256;
/// Outgoing requests that wait for whoever counts them; beyond, they are dropped and counted.
const MAX_OUTGOING: usize = 16_384;
/// What the services beyond the cap are called together.
const OTHER: &str = "other";

/// What the processes of one service did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Name of their executable.
    pub service: String,
    /// One of them used, or may use, the GPU.
    pub uses_gpu: bool,
    /// Least GPU time of all their steps, ns. Never falls.
    pub gpu_lower_ns: u64,
    /// Most GPU time of all their steps, ns. Never falls: bounds that were tightened later do not
    /// count.
    pub gpu_upper_ns: u64,
    /// Sites of the driver that are hooked, in those that run.
    pub hooked: u64,
    /// Sites of the driver that exist, in those that run.
    pub sites: u64,
}

/// A request that a service made of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Name of the asking process's executable.
    pub service: String,
    /// Port of the one that was asked, where known.
    pub port: Option<u16>,
    /// From the entry of the call that wrote the request's first byte to the exit of the one that
    /// read the answer's last, ns.
    pub duration_ns: u64,
}

impl Outgoing {
    /// Of an exchange in which the process is the client; `None` where its begin or its end was not
    /// seen.
    pub fn of(exchange: &Exchange, service: &str) -> Option<Self> {
        if exchange.incomplete.contains(&reason::END_NOT_SEEN) {
            return None;
        }
        let from_ns = Some(exchange.first_read.enter_ns).filter(|ns| *ns > 0)?;
        let to_ns = exchange.last_write.map_or(exchange.end_ns, |read| read.exit_ns);
        Some(Self {
            service: service.to_owned(),
            port: exchange.peer.map(|peer| peer.port()),
            duration_ns: to_ns.checked_sub(from_ns)?,
        })
    }
}

/// GPU time by service, and outgoing requests that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct Sums {
    busy: BTreeMap<String, Busy>,
    outgoing: Vec<Outgoing>,
    dropped: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    lower_ns: u64,
    upper_ns: u64,
}

impl Sums {
    /// A step was proven complete.
    pub(super) fn step(&mut self, service: &str, step: &Step) {
        let busy = self.busy(service);
        busy.lower_ns = busy.lower_ns.saturating_add(step.lower_ns);
        busy.upper_ns = busy.upper_ns.saturating_add(step.upper_ns);
    }

    /// Its bounds are tighter than was said.
    pub(super) fn refine(&mut self, service: &str, step: &Step, refine: &Refine) {
        let more_ns = refine.lower_ns.saturating_sub(step.lower_ns);
        let busy = self.busy(service);
        busy.lower_ns = busy.lower_ns.saturating_add(more_ns);
    }

    fn busy(&mut self, service: &str) -> &mut Busy {
        let full = self.busy.len() >= MAX_SERVICES && !self.busy.contains_key(service);
        let service = if full { OTHER } else { service };
        self.busy.entry(service.to_owned()).or_default()
    }

    /// A request that a process made of another has ended.
    pub(super) fn asked(&mut self, exchange: &Exchange, service: &str) {
        if self.outgoing.len() >= MAX_OUTGOING {
            self.dropped += 1;
        } else {
            self.outgoing.extend(Outgoing::of(exchange, service));
        }
    }

    /// Outgoing requests since the last call.
    pub(super) fn take_outgoing(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outgoing)
    }

    /// Outgoing requests that nobody will ever see.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The sums, and what is said of the processes that are known: name, whether it uses the GPU,
    /// sites hooked, sites that exist.
    pub(super) fn figures<'a>(
        &self,
        processes: impl Iterator<Item = (&'a str, bool, (u64, u64))>,
    ) -> Vec<Figures> {
        let mut all: BTreeMap<&str, Figures> = BTreeMap::new();
        for (service, busy) in &self.busy {
            let figures = all.entry(service).or_default();
            figures.uses_gpu = true;
            (figures.gpu_lower_ns, figures.gpu_upper_ns) = (busy.lower_ns, busy.upper_ns);
        }
        for (service, uses_gpu, (hooked, sites)) in processes {
            let figures = all.entry(service).or_default();
            figures.uses_gpu |= uses_gpu;
            figures.hooked += hooked;
            figures.sites += sites;
        }
        all.into_iter()
            .map(|(service, figures)| Figures { service: service.to_owned(), ..figures })
            .collect()
    }
}
