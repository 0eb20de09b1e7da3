//! See [`linerate_kv_fuzz::resp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate_kv_fuzz::resp(data));
