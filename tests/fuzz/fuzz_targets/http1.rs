//! HTTP/1.1 as it comes from strangers, cut at any byte and entered at any point.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tracer_user::protocol::http1::fuzz(data));
