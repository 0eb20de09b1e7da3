//! Payload that is sent repeatedly, in memory that the open port can send from without a copy.

use linerate_bypass::Bytes;
use linerate_bypass::arena::Arena;
use std::sync::Mutex;

/// Arena bytes reserved for [`copy_to_arena`] per worker.
#[cfg(any(feature = "dpdk", feature = "rdma"))]
pub const PER_WORKER: usize = 256 << 10;

/// Memory that the open port can send from, if it has any.
static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Sets the arena that [`copy_to_arena`] allocates from.
#[cfg(any(feature = "dpdk", feature = "rdma"))]
pub fn set_arena(arena: Arena) {
    *lock() = Some(arena);
}

/// Returns a copy of `bytes` in the arena, or on the heap if there is no arena or it is full. Each sending thread makes
/// its own copy, because threads that share one contend on its reference count.
pub fn copy_to_arena(bytes: &[u8]) -> Bytes {
    match lock().as_ref().and_then(|arena| arena.alloc(bytes.len())) {
        Some(mut block) => {
            block.copy_from_slice(bytes);
            block.freeze()
        }
        None => Bytes::from(bytes.to_vec()),
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Arena>> {
    ARENA.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
