//! See [`linerate_fuzz::options`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate_fuzz::options(data));
