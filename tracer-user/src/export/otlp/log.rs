//! The event log as OTLP log records.

use opentelemetry::{
    InstrumentationScope,
    logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _, Severity},
};
use opentelemetry_sdk::logs::{SdkLogRecord, SdkLogger, SdkLoggerProvider};

use super::{attributes::cut, span};
use crate::happening::{Happening, Kind};

/// Makes records. The provider has no processor: nothing is sent by it.
pub struct Maker {
    logger: SdkLogger,
}

impl Maker {
    /// Speaking for this scope.
    pub fn new(scope: InstrumentationScope) -> Self {
        Self { logger: SdkLoggerProvider::builder().build().logger_with_scope(scope) }
    }

    /// The record of a happening.
    pub fn record(&self, happening: &Happening) -> SdkLogRecord {
        let mut record = self.logger.create_log_record();
        let (severity, text) = severity(happening.kind);
        record.set_event_name(happening.kind.as_str());
        record.set_timestamp(span::at(happening.unix_ns, 0));
        record.set_observed_timestamp(span::at(happening.unix_ns, 0));
        record.set_severity_number(severity);
        record.set_severity_text(text);
        record.set_body(AnyValue::from(cut(&happening.text)));
        record.add_attribute("spanprobe.event", happening.kind.as_str());
        if let Some(pid) = happening.pid {
            record.add_attribute("process.pid", i64::from(pid));
        }
        if let Some(service) = &happening.service {
            record.add_attribute("process.executable.name", cut(service));
        }
        if let Some(gpu) = &happening.gpu {
            record.add_attribute("hw.id", cut(gpu));
        }
        record
    }
}

/// How bad it is.
fn severity(kind: Kind) -> (Severity, &'static str) {
    match kind {
        Kind::Xid | Kind::Ecc | Kind::OutOfMemory => (Severity::Error, "ERROR"),
        Kind::Loss | Kind::CostShed | Kind::ThrottleBegin => (Severity::Warn, "WARN"),
        _ => (Severity::Info, "INFO"),
    }
}
