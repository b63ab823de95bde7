//! A control group as a container runtime makes one, for a process to be in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::scratch::Scratch;

/// A group, removed when this is dropped; whoever was in it has to have ended by then.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    /// Folders above it that were made for it, outermost first.
    made: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes a group with this path below the root of the unified hierarchy.
    ///
    /// # Errors
    /// Where there is no such hierarchy, or it cannot be written to.
    pub fn new(path: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let root = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next()?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(place))
        });
        let mut folder = root.context("no unified hierarchy of control groups is mounted")?;
        let mut made = Vec::new();
        for part in path.split('/') {
            folder.push(part);
            if !folder.is_dir() {
                fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
                made.push(folder.clone());
            }
        }
        Ok(Self { folder, made })
    }

    /// Puts a process into it.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn add(&self, pid: u32) -> Result<()> {
        let file = self.folder.join("cgroup.procs");
        fs::write(&file, pid.to_string()).with_context(|| file.display().to_string())
    }

    /// A program that goes into the group and then becomes another one, as containers begin.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn starter(&self, scratch: &Scratch, program: &Path) -> Result<PathBuf> {
        use std::os::unix::fs::PermissionsExt as _;
        let file = scratch.file("start-in-container");
        let procs = self.folder.join("cgroup.procs");
        let script = format!(
            "#!/bin/sh\necho $$ > '{}' && exec '{}' \"$@\"\n",
            procs.display(),
            program.display()
        );
        fs::write(&file, script)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        Ok(file)
    }

    /// Whether groups can be made here; the reason where not.
    pub fn missing() -> Option<String> {
        let name = format!("spanprobe-test-{}", std::process::id());
        Self::new(&name).err().map(|error| format!("{error:#}"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // A group that somebody is still in stays; the machine is a test's.
            let _ = Command::new("rmdir").arg(folder).output();
        }
    }
}
