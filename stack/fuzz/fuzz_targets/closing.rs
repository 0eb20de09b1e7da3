//! See [`linerate_fuzz::closing`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate_fuzz::closing(data));
