//! A key-value cache: storage, and the protocols of its clients.
#![forbid(unsafe_code)]

pub mod memcached;
pub mod resp;
pub mod shards;
pub mod sink;
pub mod store;
