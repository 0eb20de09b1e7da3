//! See [`linerate_fuzz::listening`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate_fuzz::listening(data));
