//! See [`linerate_tls_fuzz::records`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate_tls_fuzz::records(data));
