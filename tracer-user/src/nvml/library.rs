//! Finding and loading NVML's library. It comes with the driver and is looked for at run time:
//! nothing is linked to it.

use std::{ffi::OsString, path::Path, sync::mpsc::sync_channel, thread, time::Duration};

use nvml_wrapper::{Nvml, error::NvmlError};

/// Where the library is looked for: by name first, as every program does; then where container
/// runtimes and driver containers put it on the host, which is not on the agent's library path.
const PLACES: [&str; 7] = [
    "libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
];

/// Why there is no NVML.
#[derive(Debug, thiserror::Error)]
pub enum NoNvml {
    /// No library was found.
    #[error("no NVML library: tried {}", .0.join(", "))]
    NotFound(Vec<String>),
    /// One was found and cannot be loaded, or is not NVML.
    #[error("{library} cannot be used as NVML: {why}")]
    Unusable {
        /// Where it was found.
        library: String,
        /// The loader's word.
        why: String,
    },
    /// It was loaded and says that it cannot work here.
    #[error("{library} was loaded, but does not work here: {why}")]
    Refused {
        /// Where it was found.
        library: String,
        /// Its word: that the driver is not loaded, for instance.
        why: String,
    },
}

/// Loads the library and initialises it: the one at `path`, else the first that is found.
///
/// # Errors
/// Where there is none, or it does not work; the error says what was tried.
pub fn open(path: Option<&Path>) -> Result<Nvml, NoNvml> {
    let places: Vec<OsString> = match path {
        Some(path) => vec![path.into()],
        None => PLACES.iter().map(OsString::from).collect(),
    };
    let mut tried = Vec::new();
    for place in places {
        let library = place.to_string_lossy().into_owned();
        match Nvml::builder().lib_path(&place).init() {
            Ok(nvml) => return Ok(nvml),
            Err(NvmlError::LibloadingError(error)) => {
                // A file that is there and cannot be loaded is worth saying.
                if Path::new(&place).is_absolute() && Path::new(&place).exists() {
                    return Err(NoNvml::Unusable { library, why: innermost(&error) });
                }
                tried.push(library);
            }
            Err(NvmlError::FailedToLoadSymbol(why)) => {
                return Err(NoNvml::Unusable { library, why });
            }
            Err(error) => return Err(NoNvml::Refused { library, why: error.to_string() }),
        }
    }
    Err(NoNvml::NotFound(tried))
}

/// What the library says that there is to read: its own version, and how many devices it knows.
pub struct Answer {
    /// Version of the library.
    pub version: String,
    /// Devices.
    pub devices: u32,
}

/// Loads the library and asks it, for no longer than this: it is somebody else's code and can hang
/// where a GPU is lost. `None` where it did not answer.
pub fn ask(within: Duration) -> Option<Result<Answer, NoNvml>> {
    let (send, answered) = sync_channel(1);
    let ask = move || {
        let answer = open(None).map(|nvml| Answer {
            version: nvml.sys_nvml_version().unwrap_or_else(|error| error.to_string()),
            devices: nvml.device_count().unwrap_or(0),
        });
        // Whoever asked may have gone.
        let _ = send.send(answer);
    };
    // Not joined: it may never come back.
    thread::Builder::new().name("nvml".into()).spawn(ask).ok()?;
    answered.recv_timeout(within).ok()
}

/// The loader's own word is the source of the wrapper's error.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_tried_is_said() {
        let error = open(Some(Path::new("no-such-library.so.1"))).unwrap_err();
        assert_eq!(error.to_string(), "no NVML library: tried no-such-library.so.1");
    }

    #[test]
    fn a_file_that_is_no_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libnvidia-ml.so.1");
        std::fs::write(&file, "text").unwrap();
        let error = open(Some(&file)).unwrap_err().to_string();
        assert!(error.contains("cannot be used as NVML"), "{error}");
        assert!(error.contains("libnvidia-ml.so.1"), "{error}");
    }
}
