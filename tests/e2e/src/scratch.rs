//! A folder for the files of one run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// Removed with its last holder; kept, and named, where `SPANPROBE_KEEP` is set.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one.
    ///
    /// # Errors
    /// Where the folder cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("spanprobe-e2e-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it that does not exist yet.
    pub fn file(&self, name: &str) -> PathBuf {
        (0..)
            .map(|n| if n == 0 { self.0.join(name) } else { self.0.join(format!("{n}-{name}")) })
            .find(|path| !path.exists())
            .unwrap_or_else(|| self.0.join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("SPANPROBE_KEEP").is_some() {
            eprintln!("kept {}", self.0.display());
        } else {
            // What is left lies in the folder for temporary files.
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
