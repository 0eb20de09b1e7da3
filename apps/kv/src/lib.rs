//! Key-value cache: storage and client protocols.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod commands;
pub mod counters;
pub mod export;
pub mod memcached;
pub mod resp;
pub mod service;
pub mod shards;
pub mod store;
pub mod value;
