//! Symbol and build-id lookup in a library file, which any traced process may have written.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tracer_user::discover::driver::fuzz_elf(data));
