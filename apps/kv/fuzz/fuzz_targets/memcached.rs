//! See [`linerate_kv_fuzz::memcached`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate_kv_fuzz::memcached(data));
