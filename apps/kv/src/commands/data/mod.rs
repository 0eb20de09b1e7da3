//! Commands on keys, strings and hashes.

pub mod bits;
pub mod expiry;
pub mod glob;
pub mod hashes;
pub mod keys;
pub mod numbers;
pub mod scan;
pub mod strings;
