//! Session files, which come from other machines and are cut by crashes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tracer_user::record::fuzz(data));
