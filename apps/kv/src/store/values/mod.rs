//! Operations on keys, strings and hashes.

pub mod fetch;
pub mod hashes;
pub mod keys;
pub mod strings;
