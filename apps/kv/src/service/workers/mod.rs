//! Cooperation of the workers: shared state, messages, and access to shards of other workers.

pub mod access;
pub mod hub;
pub mod map_change;
pub mod messages;
pub mod remote_batch;
pub mod routed;
pub mod server;
pub mod shard_borrow;
