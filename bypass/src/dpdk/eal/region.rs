//! Arena in EAL's memory, which every open port can access.

use crate::arena::{Arena, ArenaError, NoHugepages, hugepages};
use dpdk_sys as sys;
use linerate_service::Memory;
use std::ptr::NonNull;

/// Reason that EAL could not provide memory for an arena.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum ReserveError {
    #[error("DPDK has no {bytes} contiguous bytes of memory left: {reason}; then start again, or ask for less")]
    NoMemory { bytes: usize, reason: NoHugepages },
    /// The size is invalid for an arena.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

/// Allocation in EAL's memory, freed on drop.
struct Region {
    start: NonNull<u8>,
}

// SAFETY: a region exclusively owns memory that belongs to no thread.
unsafe impl Send for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` came from `rte_zmalloc_socket` and is freed once.
        unsafe { sys::rte_free(self.start.as_ptr().cast()) }
    }
}

/// Creates an arena in `bytes` of EAL's memory, which the ports need `ports_mb` MB of.
pub(crate) fn arena(bytes: usize, ports_mb: u64) -> Result<Arena, ReserveError> {
    const PAGE: u32 = 4096;
    const ANY_NODE: i32 = -1;
    // SAFETY: there is no name, and the alignment is a power of two.
    let start = unsafe { sys::rte_zmalloc_socket(std::ptr::null(), bytes, PAGE, ANY_NODE) };
    let start = NonNull::new(start.cast()).ok_or_else(|| {
        let needed_mb = (bytes as u64).div_ceil(1 << 20);
        ReserveError::NoMemory { bytes, reason: hugepages::reason(needed_mb, ports_mb.saturating_add(needed_mb)) }
    })?;
    let region = Region { start };
    // SAFETY: EAL allocated the memory, zeroed and exclusive, and frees it when the region is dropped, which the arena
    // does last. For bytes that cross a page boundary, `lr_iova` checks that they are contiguous for a device.
    Ok(unsafe { Arena::from_region(start, bytes, Memory::Device, move || drop(region)) }?)
}
