//! Bytes that are sent over and over, where the open port reaches them: from elsewhere each would be copied first.

use linerate_bypass::Bytes;
use linerate_bypass::arena::Arena;
use std::sync::Mutex;

/// What [`within_reach`] takes for each worker at most.
#[cfg(any(feature = "dpdk", feature = "rdma"))]
pub const PER_WORKER: usize = 256 << 10;

/// Memory that the open port reaches, if there is one.
static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Makes `arena` the place for what is sent from now on.
#[cfg(any(feature = "dpdk", feature = "rdma"))]
pub fn set_arena(arena: Arena) {
    *lock() = Some(arena);
}

/// A copy of `bytes` that the open port reaches, if there is such memory and room in it. To be made once by each thread
/// that sends of it, so that no two count its holders in one place.
pub fn within_reach(bytes: &[u8]) -> Bytes {
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
