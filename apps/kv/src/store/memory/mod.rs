//! Memory of a shard: the item heap, values in the arena, and numbered objects.

pub mod heap;
pub mod item;
pub mod long_value;
pub mod slab;

use std::num::NonZeroU32;

/// Location of an item in the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location(pub NonZeroU32);
