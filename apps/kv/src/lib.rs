//! Key-value cache: storage and client protocols.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the crate is not published")]

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
