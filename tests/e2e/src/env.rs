//! Where the programs under test lie: from the environment that `cargo xtask` sets, else beside
//! this program.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::scratch::Scratch;

/// Programs, libraries, and what they need.
#[derive(Debug, Clone)]
pub struct Env {
    /// The agent.
    pub spanprobe: PathBuf,
    /// Folder with the simulated `libcuda.so.1`, where it was built.
    pub sim: Option<PathBuf>,
    /// The simulated NVML, where it was built.
    pub nvml: Option<PathBuf>,
    /// Folder with the compiled fixtures: `fixture-client` and the servers.
    pub servers: PathBuf,
    /// A Python with the servers' packages, where there is one.
    pub python: Option<PathBuf>,
    /// A Prometheus server, where there is one.
    pub prometheus: Option<PathBuf>,
    /// `tests/servers/python/serve.py`.
    pub serve: PathBuf,
    /// The repository.
    pub root: PathBuf,
}

fn set(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Cargo's folder of this build: that of the program, or the one above `deps`.
fn built() -> Result<PathBuf> {
    let program = env::current_exe().context("this program has no path")?;
    let mut folder = program.parent().context("this program lies nowhere")?;
    if folder.ends_with("deps") {
        folder = folder.parent().unwrap_or(folder);
    }
    Ok(folder.to_owned())
}

/// The simulated driver under the name that programs load.
fn simulator(built: &Path) -> Option<PathBuf> {
    let folder = built.join("sim");
    let library = folder.join("libcuda.so.1");
    if library.is_file() {
        return Some(folder);
    }
    // As `cargo xtask build` lays it out.
    let made =
        fs::create_dir_all(&folder).and_then(|()| fs::copy(built.join("libcuda.so"), library));
    made.ok().map(|_| folder)
}

impl Env {
    /// Looks.
    ///
    /// # Errors
    /// Where this program does not know where it lies.
    pub fn new() -> Result<Self> {
        let built = built()?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .context("this crate lies outside its repository")?
            .to_owned();
        let spanprobe = set("SPANPROBE_BIN").unwrap_or_else(|| built.join("spanprobe"));
        let sim = set("SPANPROBE_SIM_DIR")
            .filter(|folder| folder.join("libcuda.so.1").is_file())
            .or_else(|| simulator(&built));
        let nvml = sim.as_ref().map(|folder| folder.join("libnvidia-ml.so.1"));
        let nvml =
            nvml.into_iter().chain([built.join("libnvidia_ml.so")]).find(|path| path.is_file());
        let servers = set("SPANPROBE_SERVERS_DIR").unwrap_or(built);
        let python = set("SPANPROBE_VENV")
            .map(|venv| venv.join("bin/python3"))
            .filter(|python| python.exists());
        let prometheus = set("SPANPROBE_PROMETHEUS_BIN").filter(|program| program.is_file());
        let serve = root.join("tests/servers/python/serve.py");
        Ok(Self { spanprobe, sim, nvml, servers, python, prometheus, serve, root })
    }

    /// One of the compiled fixtures.
    pub fn fixture(&self, name: &str) -> PathBuf {
        self.servers.join(name)
    }

    /// Puts the simulated driver first on the library path.
    pub fn with_driver(&self, command: &mut Command) {
        let Some(sim) = &self.sim else { return };
        let mut path = sim.clone().into_os_string();
        if let Some(old) = env::var_os("LD_LIBRARY_PATH").filter(|old| !old.is_empty()) {
            path.push(":");
            path.push(old);
        }
        command.env("LD_LIBRARY_PATH", path);
    }

    /// The same, with a copy of the simulated driver that nobody else maps: probes in it are those
    /// of this run.
    ///
    /// # Errors
    /// Where it cannot be copied.
    pub fn own_driver(&self, scratch: &Scratch) -> Result<Self> {
        let from = self.sim.as_ref().context("the simulated driver is not built")?;
        let folder = scratch.file("driver");
        fs::create_dir_all(&folder)?;
        fs::copy(from.join("libcuda.so.1"), folder.join("libcuda.so.1"))?;
        Ok(Self { sim: Some(folder), ..self.clone() })
    }

    /// Why nothing can be traced here; `None` where it can.
    pub fn cannot_trace(&self) -> Option<String> {
        if !self.spanprobe.is_file() {
            return Some(format!("{} is not built", self.spanprobe.display()));
        }
        if !rustix::process::geteuid().is_root() {
            return Some("not root: eBPF programs cannot be loaded".to_owned());
        }
        if !Path::new("/sys/kernel/tracing/events/raw_syscalls").exists() {
            return Some("tracefs is not mounted on /sys/kernel/tracing".to_owned());
        }
        let fixture = self.fixture("fixture-threaded");
        (!fixture.is_file()).then(|| format!("{} is not built", fixture.display()))
    }

    /// Why no program can use a GPU here; `None` where the simulated one is there.
    pub fn no_driver(&self) -> Option<String> {
        self.sim.is_none().then(|| "the simulated driver is not built (tests/cudasim)".to_owned())
    }

    /// Why no GPU can be asked here; `None` where the simulated NVML is there.
    pub fn no_nvml(&self) -> Option<String> {
        self.nvml.is_none().then(|| "the simulated NVML is not built (tests/nvmlsim)".to_owned())
    }

    /// Why no Prometheus runs here; `None` where it does.
    pub fn no_prometheus(&self) -> Option<String> {
        self.prometheus.is_none().then(|| {
            "no Prometheus server (SPANPROBE_PROMETHEUS_BIN, as `cargo xtask setup --for test` brings it)"
                .to_owned()
        })
    }

    /// Why tinygrad's server does not run here; `None` where it does.
    pub fn no_tinygrad(&self) -> Option<String> {
        let Some(python) = &self.python else { return self.no_python() };
        // `venv/bin/python3`; the packages lie in `venv/lib/python3.N/site-packages`.
        let lib = python.ancestors().nth(2).map(|venv| venv.join("lib"));
        let versions = lib.and_then(|lib| fs::read_dir(lib).ok()).into_iter().flatten().flatten();
        let packages: Vec<PathBuf> =
            versions.map(|version| version.path().join("site-packages")).collect();
        let missing = ["tinygrad", "openai", "nvidia"]
            .into_iter()
            .find(|name| !packages.iter().any(|folder| folder.join(name).is_dir()));
        missing.map(|name| {
            format!("the Python environment has no {name} (`cargo xtask setup` makes it anew)")
        })
    }

    /// Why no Python server runs here; `None` where they do.
    pub fn no_python(&self) -> Option<String> {
        self.python.is_none().then(|| {
            "no Python environment (SPANPROBE_VENV, as `cargo xtask setup` makes it)".to_owned()
        })
    }
}
