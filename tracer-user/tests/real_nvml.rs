//! The real NVML on a machine without a GPU: a degradation that has a name.
//!
//! `SPANPROBE_REAL_NVML` names the files, separated by colons; `cargo xtask test` fetches two driver
//! versions and sets it. They are not free to redistribute, so none is in the repository.
#![cfg(feature = "live")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{path::Path, time::Duration};

use tracer_user::nvml::{
    library::{NoNvml, open},
    sampler::{Message, Sampler, Settings},
};

/// The libraries to load; `None`, said loudly, where there are none.
fn libraries() -> Option<Vec<String>> {
    if Path::new("/proc/driver/nvidia").exists() {
        eprintln!("SKIPPED: this machine has an NVIDIA driver");
        return None;
    }
    let paths = std::env::var("SPANPROBE_REAL_NVML").ok().filter(|paths| !paths.is_empty());
    if paths.is_none() {
        eprintln!("SKIPPED: SPANPROBE_REAL_NVML names no libnvidia-ml.so files");
    }
    Some(paths?.split(':').map(str::to_owned).collect())
}

#[test]
fn without_a_driver_the_real_library_says_so() {
    let Some(libraries) = libraries() else { return };
    for library in libraries {
        match open(Some(Path::new(&library))) {
            Err(NoNvml::Refused { library: named, why }) => {
                assert_eq!(named, library);
                assert_eq!(why, "NVIDIA driver is not loaded", "{library}");
            }
            Err(other) => panic!("{library}: {other}"),
            Ok(_) => panic!("{library}: works without a driver"),
        }
    }
}

#[test]
fn the_sampler_ends_with_a_note() {
    let Some(libraries) = libraries() else { return };
    for library in libraries {
        let settings =
            Settings { library: Some((&library).into()), interval: Duration::from_secs(1) };
        let said = Sampler::start(settings).unwrap().finish();
        match &said[..] {
            [Message::Note(note)] => {
                assert!(note.contains("NVIDIA driver is not loaded"), "{note}");
                assert!(note.contains(&library), "{note}");
            }
            other => panic!("{library}: {other:?}"),
        }
    }
}
