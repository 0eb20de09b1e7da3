//! See [`linerate_roce_fuzz::packets`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate_roce_fuzz::packets(data));
