//! The slowest requests.

use crate::timeline::model::Timeline;

/// Keeps the `most` slowest requests, slowest first; of equals the earlier seen.
#[derive(Clone, Debug)]
pub struct Slowest {
    most: usize,
    kept: Vec<Timeline>,
}

impl Slowest {
    /// Keeps at most `most`.
    pub fn new(most: usize) -> Self {
        Self { most, kept: Vec::new() }
    }

    /// Takes a copy of `timeline` if it is slow enough.
    pub fn offer(&mut self, timeline: &Timeline) {
        let at = self.kept.partition_point(|kept| kept.duration_ns >= timeline.duration_ns);
        if at < self.most {
            self.kept.truncate(self.most - 1);
            self.kept.insert(at, timeline.clone());
        }
    }

    /// Slowest first.
    pub fn kept(&self) -> &[Timeline] {
        &self.kept
    }
}
