//! JSON lines: one timeline, or one line of the event log, one line.

use std::io::{self, Write};

use serde::Serialize;

/// Lines are handed to the writer when this many bytes have gathered, or on [`Jsonl::flush`].
const BATCH_BYTES: usize = 64 * 1024;

/// The output is gone. Reported once; the writer writes nothing more.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {source}; nothing more is written there")]
pub struct JsonlError {
    /// What was written to.
    pub name: String,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl JsonlError {
    /// The reader went away: for standard output a normal end (`| head`).
    pub fn is_broken_pipe(&self) -> bool {
        self.source.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Writes JSON lines until the output fails.
#[derive(Debug)]
pub struct Jsonl<W> {
    name: String,
    out: W,
    batch: Vec<u8>,
    in_batch: u64,
    written: u64,
    skipped: u64,
    stopped: bool,
}

impl<W: Write> Jsonl<W> {
    /// Writes to `out`, which messages call `name`. It needs no buffer of its own.
    pub fn new(name: impl Into<String>, out: W) -> Self {
        Self {
            name: name.into(),
            out,
            batch: Vec::new(),
            in_batch: 0,
            written: 0,
            skipped: 0,
            stopped: false,
        }
    }

    /// Adds a line; hands over a batch when one is full.
    ///
    /// # Errors
    /// The first failure of the output. Afterwards lines are counted in [`Self::skipped`].
    pub fn write(&mut self, line: &impl Serialize) -> Result<(), JsonlError> {
        if self.stopped {
            self.skipped += 1;
            return Ok(());
        }
        let start = self.batch.len();
        self.in_batch += 1;
        if let Err(error) = serde_json::to_writer(&mut self.batch, line) {
            self.batch.truncate(start);
            return Err(self.stop(error.into()));
        }
        self.batch.push(b'\n');
        if self.batch.len() >= BATCH_BYTES { self.hand_over() } else { Ok(()) }
    }

    /// Hands over what has gathered: call it often, so that readers see lines as they come.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn flush(&mut self) -> Result<(), JsonlError> {
        if self.stopped {
            return Ok(());
        }
        self.hand_over()?;
        self.out.flush().map_err(|error| self.stop(error))
    }

    /// Lines handed to the output.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Lines not written, or not known to be, since the output failed.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The output has failed.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// What is written to, as messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn hand_over(&mut self) -> Result<(), JsonlError> {
        if !self.batch.is_empty() {
            self.out.write_all(&self.batch).map_err(|error| self.stop(error))?;
        }
        self.batch.clear();
        self.written += std::mem::take(&mut self.in_batch);
        Ok(())
    }

    fn stop(&mut self, source: io::Error) -> JsonlError {
        self.stopped = true;
        self.skipped += std::mem::take(&mut self.in_batch);
        self.batch = Vec::new();
        JsonlError { name: self.name.clone(), source }
    }
}
