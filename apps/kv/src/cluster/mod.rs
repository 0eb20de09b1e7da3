//! Static Redis Cluster: hash slots, and the nodes that serve them.
//!
//! Each worker is a node with its own port. Nodes and slots change only when a new [`ClusterMap`] replaces the current
//! one. In cluster mode the hash of a key contains its slot, so the shard of a key follows from its hash as without
//! cluster mode.

mod map;
mod slot;

pub use map::{ClusterMap, MapError, Node, OwnNodes};
pub use slot::{SLOTS, key_slot, slot_of_hash};

pub(crate) use map::NO_SHARD;
pub(crate) use slot::hash_with_slot;
