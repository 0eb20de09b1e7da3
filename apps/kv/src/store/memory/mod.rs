//! Memory of a shard: the item heap, values in the arena, and numbered objects.

pub mod heap;
pub mod item;
pub mod long_value;
pub mod slab;
