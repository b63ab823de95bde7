//! The oracle's file.

use std::fs::File;
use std::io::Write;

use super::record::Record;
use crate::clock::now;
use crate::process::pid;

/// Formats records and writes whole lines, appending: processes may share a file.
pub struct Writer {
    file: Option<File>,
    pending: Vec<u8>,
}

impl Writer {
    /// Opens the file; `%p` in its name is this process's id.
    pub fn open(path: &str) -> Self {
        let path = path.replace("%p", &pid().to_string());
        let file = File::options().append(true).create(true).open(&path);
        let file =
            file.map_err(|e| eprintln!("cudasim (simulated CUDA driver): oracle {path}: {e}")).ok();
        let start = format!(
            "{{\"t\":\"start\",\"pid\":{},\"at_ns\":{},\"driver\":\"simulated\"}}\n",
            pid(),
            now()
        );
        Writer { file, pending: start.into_bytes() }
    }

    /// Adds a line.
    pub fn put(&mut self, record: &Record) {
        record.write(&mut self.pending);
        if self.pending.len() > 1 << 18 {
            self.flush();
        }
    }

    /// Hands the lines to the kernel. A single append, so that lines of processes do not mix.
    pub fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let failed = self.file.as_mut().and_then(|f| f.write_all(&self.pending).err());
        if let Some(e) = failed {
            eprintln!("cudasim (simulated CUDA driver): oracle: {e}");
            self.file = None;
        }
        self.pending.clear();
    }
}
