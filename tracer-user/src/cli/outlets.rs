//! Where timelines go beside the view: to whoever collects them. One field here for each exporter.

use crate::{
    export::health::Health, happening::Happening, pipeline::Families, timeline::model::Timeline,
};

use super::args::OutletArgs;

/// What is told to each exporter about once a second.
pub struct Round<'a> {
    /// Now, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// Requests that are open.
    pub open: &'a [Timeline],
    /// What was lost and what could not be seen, so far.
    pub health: &'a Health,
    /// Events seen so far.
    pub families: Families,
}

/// Everything that was asked for.
pub struct Outlets {}

impl Outlets {
    /// Opens what was asked for.
    ///
    /// # Errors
    /// Where one cannot be opened at all: an address in use, a setting that makes no sense. A
    /// collector that does not answer is no error.
    pub fn open(_args: &OutletArgs) -> anyhow::Result<Self> {
        Ok(Self {})
    }

    /// Takes timelines of requests that have ended. Never blocks.
    pub fn take(&mut self, _timelines: &[Timeline]) {}

    /// Takes lines of the event log. Never blocks.
    pub fn happened(&mut self, _happenings: &[Happening]) {}

    /// Whether anybody wants to be told of each round.
    pub fn wants_rounds(&self) -> bool {
        false
    }

    /// Time has passed. Never blocks.
    pub fn round(&mut self, _round: &Round<'_>) {}

    /// The end: hands over what is left, within a few seconds. Lines for the operator.
    pub fn finish(self) -> Vec<String> {
        Vec::new()
    }
}
