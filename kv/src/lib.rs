//! A key-value cache.
#![forbid(unsafe_code)]

mod store;
