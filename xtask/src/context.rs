//! Where things are: the repository, the cache that outlives clones, and the cargo that called.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cmd;

/// What every subcommand is handed.
pub(crate) struct Context {
    /// Root of the repository.
    pub(crate) root: PathBuf,
    /// Tools and environments that are expensive to make and independent of the checkout.
    pub(crate) cache: PathBuf,
    /// The cargo that started this program.
    cargo: OsString,
}

/// A cargo profile that this project builds in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Fast to build, overflow checks on.
    Debug,
    /// What is measured and shown.
    Release,
}

impl Context {
    pub(crate) fn new() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().context("xtask lies outside a repository")?.to_owned();
        let cache = absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .map_or_else(|| root.join("target/cache"), |base| base.join("spanprobe"));
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Ok(Self { root, cache, cargo })
    }

    /// Where `cargo install` puts the tools that this project builds for itself.
    pub(crate) fn tools(&self) -> PathBuf {
        self.cache.join("tools")
    }

    /// Cargo's target folder.
    pub(crate) fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// Where cargo puts what it builds in `profile`.
    pub(crate) fn built(&self, profile: Profile) -> PathBuf {
        self.target().join(profile.folder())
    }

    /// Cargo, in the environment that this program was called with.
    pub(crate) fn cargo(&self) -> std::process::Command {
        let mut cargo = cmd::clean(&self.cargo);
        cargo.current_dir(&self.root);
        cargo
    }
}

impl Profile {
    /// The profile that `--release` chooses, or its absence.
    pub(crate) fn from_release(release: bool) -> Self {
        if release { Self::Release } else { Self::Debug }
    }

    /// The folder's name under `target`.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }

    /// What cargo must be told to build in this profile.
    pub(crate) fn flag(self) -> Option<&'static str> {
        match self {
            Self::Debug => None,
            Self::Release => Some("--release"),
        }
    }
}

/// The folder that a variable names, if it names one.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The program `name` on the search path or where system tools live.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([Path::new("/usr/sbin").to_owned(), Path::new("/sbin").to_owned()])
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}
