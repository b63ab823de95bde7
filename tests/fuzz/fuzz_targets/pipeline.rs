//! Everything from records to timelines: whatever the records say, every timeline tiles.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tracer_user::pipeline::fuzz(data);
});
