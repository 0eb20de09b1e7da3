//! One shard's keys and values.

mod heap;
mod index;
