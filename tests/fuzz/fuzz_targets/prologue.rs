//! The first instructions of a function, from which the place of its probe is chosen.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tracer_user::discover::attach_point::fuzz_prologue(data));
