//! Payload that is sent repeatedly, in memory that the open port can send from without a copy.

use linerate::Network;
use linerate_bypass::Via;
use linerate_bypass::arena::Arena;
use linerate_service::Bytes;
use std::sync::Mutex;

/// Arena bytes for the payload of one worker.
const PER_WORKER: usize = 256 << 10;

/// Memory that the open network can send from, if it has any.
static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Allocates the memory of constant payload of loads and services on `network`, unless it copies sent bytes anyway.
pub fn allocate_payload(network: &Network, via: &Via) {
    if *via == Via::Kernel {
        return;
    }
    match network.arena(network.workers() * PER_WORKER) {
        Ok(arena) => *lock() = Some(arena),
        Err(error) => tracing::warn!("constant payload is copied for each packet: {error}"),
    }
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
