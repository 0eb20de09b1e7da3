//! A key-value cache.
#![forbid(unsafe_code)]

pub mod store;
