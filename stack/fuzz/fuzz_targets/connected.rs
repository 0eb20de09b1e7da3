//! See [`linerate_fuzz::connected`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate_fuzz::connected(data));
