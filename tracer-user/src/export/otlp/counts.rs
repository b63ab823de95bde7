//! What became of everything that was to be sent.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::settings::Signal;

/// Notes that wait to be shown; further ones are not kept.
const MAX_NOTES: usize = 16;
/// Longest note, characters: errors quote what a collector said.
const MAX_NOTE: usize = 300;

/// Counters of one signal. Traces count requests, `rejected` spans; logs count lines; metrics count
/// services, `rejected` data points.
#[derive(Debug, Default)]
pub struct OfSignal {
    /// Taken by the collector.
    pub sent: AtomicU64,
    /// Dropped since the queue was full.
    pub queue_full: AtomicU64,
    /// Dropped since the collector did not take them in time, or refused them.
    pub failed: AtomicU64,
    /// Not sent since spanprobe ended first.
    pub ended: AtomicU64,
    /// Said by the collector to be left out of what it took.
    pub rejected: AtomicU64,
    /// Not sendable: no valid ids.
    pub unsendable: AtomicU64,
    /// The last export failed.
    failing: Mutex<bool>,
}

impl OfSignal {
    /// What was dropped, by reason.
    pub fn dropped(&self) -> [(&'static str, u64); 5] {
        [
            ("queue-full", &self.queue_full),
            ("export-failed", &self.failed),
            ("ended", &self.ended),
            ("rejected", &self.rejected),
            ("unsendable", &self.unsendable),
        ]
        .map(|(reason, n)| (reason, n.load(Ordering::Relaxed)))
    }
}

/// Counters of all signals, and what the operator should hear.
#[derive(Debug, Default)]
pub struct Counts {
    traces: OfSignal,
    metrics: OfSignal,
    logs: OfSignal,
    notes: Mutex<VecDeque<String>>,
}

impl Counts {
    /// Those of one signal.
    pub fn of(&self, signal: Signal) -> &OfSignal {
        match signal {
            Signal::Traces => &self.traces,
            Signal::Metrics => &self.metrics,
            Signal::Logs => &self.logs,
        }
    }

    /// What was dropped, by signal and reason, zeros too: for who shows counters.
    pub fn dropped(&self) -> Vec<(&'static str, &'static str, u64)> {
        let of = |signal: Signal| {
            self.of(signal).dropped().map(|(reason, n)| (signal.as_str(), reason, n))
        };
        Signal::ALL.into_iter().flat_map(of).collect()
    }

    /// An export ended: counts `n`, and says so where that is news.
    pub fn exported(&self, signal: Signal, n: u64, result: Result<(), String>) {
        let of = self.of(signal);
        let mut failing = of.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(()) => {
                of.sent.fetch_add(n, Ordering::Relaxed);
                if std::mem::take(&mut *failing) {
                    self.note(format!("otlp: {} are taken again", signal.as_str()));
                }
            }
            Err(why) => {
                of.failed.fetch_add(n, Ordering::Relaxed);
                if !std::mem::replace(&mut *failing, true) {
                    self.note(format!(
                        "otlp: {} are dropped, the collector does not take them: {why}",
                        signal.as_str()
                    ));
                }
            }
        }
    }

    /// Something for the operator.
    pub fn note(&self, mut text: String) {
        if let Some((end, _)) = text.char_indices().nth(MAX_NOTE) {
            text.truncate(end);
        }
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX_NOTES && !notes.contains(&text) {
            notes.push_back(text);
        }
    }

    /// Hands the notes out.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// A line on one signal for the end.
    pub fn summary(&self, signal: Signal) -> Option<String> {
        let (of, what) = (self.of(signal), signal.as_str());
        let sent = of.sent.load(Ordering::Relaxed);
        let dropped: Vec<_> = of
            .dropped()
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(reason, n)| format!("{reason} {n}"))
            .collect();
        match (signal, dropped.is_empty()) {
            (Signal::Traces, true) => Some(format!("otlp: {sent} requests sent, none dropped")),
            (Signal::Traces, false) => {
                Some(format!("otlp: {sent} requests sent, dropped: {}", dropped.join(", ")))
            }
            (_, true) => None,
            (_, false) => Some(format!("otlp: {what} dropped: {}", dropped.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_said_once() {
        let counts = Counts::default();
        for _ in 0..3 {
            counts.exported(Signal::Traces, 2, Err("refused".to_owned()));
        }
        assert_eq!(counts.take_notes().len(), 1);
        counts.exported(Signal::Traces, 5, Ok(()));
        counts.exported(Signal::Traces, 5, Ok(()));
        assert_eq!(counts.take_notes().len(), 1);
        let line = counts.summary(Signal::Traces).unwrap();
        assert_eq!(line, "otlp: 10 requests sent, dropped: export-failed 6");
    }
}
