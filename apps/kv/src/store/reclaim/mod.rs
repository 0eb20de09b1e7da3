//! Reclaiming memory: expiry, eviction, and compaction.

pub mod eviction;
pub mod expiry_wheel;
pub mod lost_slots;
pub mod memory_pressure;
