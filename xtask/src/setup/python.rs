//! The Python environment of the real servers that tests and the demo trace.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Report, apt};
use crate::cmd;
use crate::context::{Context, which};

const REQUIREMENTS: &str = "tests/servers/python/requirements.txt";
const WITHOUT: &str = "tests and oracle runs against Python servers are skipped";

/// The environment, made when there is none for the requirements as they are now.
pub(super) fn ensure(context: &Context, report: &mut Report) -> Option<PathBuf> {
    let file = context.root.join(REQUIREMENTS);
    let Ok(requirements) = fs::read(&file) else {
        report.missing(REQUIREMENTS, "git checkout the file", WITHOUT);
        return None;
    };
    let venv = context.cache.join(format!("venv-{:016x}", fnv1a(&requirements)));
    let python = venv.join("bin/python3");
    // Written last, so that an interrupted installation is taken up again.
    let complete = venv.join(".complete");
    // `exists` follows links: an upgrade of the system's Python can leave them dangling.
    if complete.exists() && python.exists() {
        report.have("Python environment of the test servers");
        return Some(venv);
    }
    let made = interpreter(report).and_then(|system| {
        report.doing(format!("making the Python environment of the test servers ({REQUIREMENTS})"));
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
            report.missing("the Python servers' environment", format!("{error:#}"), WITHOUT);
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
