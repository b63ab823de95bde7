//! What the OpenTelemetry crates say of themselves: they do so by `tracing`, to whoever listens on
//! the thread. It is the only way to learn that a collector took a batch and rejected a part of it,
//! or that a variable was ignored.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};

use super::{counts::Counts, settings::Signal};

/// Listens on one thread.
pub struct Voice {
    counts: Arc<Counts>,
}

impl Voice {
    /// Counts rejections and notes warnings there.
    pub fn new(counts: Arc<Counts>) -> Self {
        Self { counts }
    }

    fn hear(&self, name: &str, said: &Said) {
        for (signal, n) in [
            (Signal::Traces, said.spans),
            (Signal::Metrics, said.data_points),
            (Signal::Logs, said.log_records),
        ] {
            if n > 0 {
                self.counts.of(signal).rejected.fetch_add(n, Ordering::Relaxed);
            }
        }
        // Failed exports are told of by their results.
        let known = name.starts_with("Export.") || name.ends_with(".ExportFailed");
        if !known && !said.words.is_empty() {
            self.counts.note(format!("otlp: {}", said.words));
        }
    }
}

impl Subscriber for Voice {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= Level::WARN
            && metadata.target().starts_with("opentelemetry")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        self.hear(event.metadata().name(), &said);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of one event that matter.
#[derive(Default)]
struct Said {
    spans: u64,
    data_points: u64,
    log_records: u64,
    words: String,
}

impl Visit for Said {
    fn record_i64(&mut self, field: &Field, value: i64) {
        let n = u64::try_from(value).unwrap_or(0);
        match field.name() {
            "rejected_spans" => self.spans = n,
            "rejected_data_points" => self.data_points = n,
            "rejected_log_records" => self.log_records = n,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let telling = ["message", "error_message", "error", "reason"].contains(&field.name());
        if telling && !value.is_empty() && !self.words.contains(value) {
            let between = if self.words.is_empty() { "" } else { ": " };
            self.words.push_str(between);
            self.words.push_str(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
