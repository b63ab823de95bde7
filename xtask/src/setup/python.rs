//! Python environments: of the real servers that tests and the demo trace, and of a real back end.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Report, apt};
use crate::cmd;
use crate::context::{Context, which};

/// The test servers' environment.
pub(super) fn ensure(context: &Context, report: &mut Report) -> Option<PathBuf> {
    environment(context, report, &SERVERS)
}

/// The environment of the back end that traces are read back from.
pub(super) fn phoenix(context: &Context, report: &mut Report) -> Option<PathBuf> {
    environment(context, report, &PHOENIX)
}

/// An environment with certain packages.
struct Environment {
    /// What it is for.
    what: &'static str,
    /// The first part of its folder's name.
    folder: &'static str,
    requirements: &'static str,
    /// What does not work without it.
    without: &'static str,
}

const SERVERS: Environment = Environment {
    what: "Python environment of the test servers",
    folder: "venv",
    requirements: "tests/servers/python/requirements.txt",
    without: "tests and oracle runs against Python servers are skipped",
};

const PHOENIX: Environment = Environment {
    what: "Python environment of Phoenix (about 900 MB)",
    folder: "phoenix",
    requirements: "tests/e2e/python/phoenix.txt",
    without: "no trace is read back from a real back end",
};

/// The environment, made when there is none for the requirements as they are now.
fn environment(context: &Context, report: &mut Report, wanted: &Environment) -> Option<PathBuf> {
    let file = context.root.join(wanted.requirements);
    let Ok(requirements) = fs::read(&file) else {
        report.missing(wanted.requirements, "git checkout the file", wanted.without);
        return None;
    };
    let venv = context.cache.join(format!("{}-{:016x}", wanted.folder, fnv1a(&requirements)));
    let python = venv.join("bin/python3");
    // Written last, so that an interrupted installation is taken up again.
    let complete = venv.join(".complete");
    // `exists` follows links: an upgrade of the system's Python can leave them dangling.
    if complete.exists() && python.exists() {
        report.have(wanted.what);
        return Some(venv);
    }
    let made = interpreter(report).and_then(|system| {
        report.doing(format!("making the {} ({})", wanted.what, wanted.requirements));
        fs::create_dir_all(&context.cache)?;
        cmd::run(cmd::clean(system).args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = cmd::clean(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .arg("--requirement")
            .arg(&file);
        cmd::run(&mut pip)?;
        fs::write(&complete, "")?;
        Ok(())
    });
    match made {
        Ok(()) => Some(venv),
        Err(error) => {
            report.missing(wanted.what, format!("{error:#}"), wanted.without);
            None
        }
    }
}

/// A Python that can make environments.
fn interpreter(report: &Report) -> Result<PathBuf> {
    let usable =
        |python: &Path| cmd::succeeds(cmd::clean(python).args(["-c", "import ensurepip, venv"]));
    match which("python3") {
        Some(python) if usable(&python) => Ok(python),
        _ => {
            apt::install(report, &["python3", "python3-venv"])?;
            // The packages' own, not another one that comes first on the path.
            Ok(PathBuf::from("/usr/bin/python3"))
        }
    }
}

/// FNV-1a: only has to tell one version of a file from another.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
