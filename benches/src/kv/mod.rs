//! The key-value service with requests from memory.

pub(crate) mod memory;
pub mod service;
pub mod workers;

/// Keys of a service, and bytes of a value.
pub const KEYS: u64 = 100_000;
pub const VALUE: usize = 64;
