//! The kernel half's own diagnostics, which it writes with aya-log.

use std::sync::{Arc, Mutex, PoisonError};

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};

use super::ProbeError;

/// Messages kept between two readings; more are counted in the last one.
const MAX_MESSAGES: usize = 32;

/// Reads what the kernel half has to say.
pub struct KernelLog {
    logger: EbpfLogger<Arc<Sink>>,
    sink: Arc<Sink>,
}

/// Gathers messages.
#[derive(Default)]
struct Sink(Mutex<Gathered>);

#[derive(Default)]
struct Gathered {
    messages: Vec<String>,
    more: u64,
}

impl Log for Sink {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut gathered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gathered.messages.len() < MAX_MESSAGES {
            gathered.messages.push(format!("kernel half: {}", record.args()));
        } else {
            gathered.more += 1;
        }
    }

    fn flush(&self) {}
}

impl KernelLog {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, ProbeError> {
        let sink = Arc::new(Sink::default());
        let logger = EbpfLogger::init_with_logger(ebpf, Arc::clone(&sink))
            .map_err(|error| ProbeError::Log(error.to_string()))?;
        Ok(Self { logger, sink })
    }

    /// Messages since the last call.
    pub fn read(&mut self) -> Vec<String> {
        self.logger.flush();
        let gathered =
            std::mem::take(&mut *self.sink.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut messages = gathered.messages;
        if gathered.more > 0 {
            messages.push(format!("kernel half: and {} more messages", gathered.more));
        }
        messages
    }
}
