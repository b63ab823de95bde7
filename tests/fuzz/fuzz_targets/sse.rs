//! Server-sent events, cut at any byte.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tracer_user::protocol::sse::fuzz(data));
