//! Memory of EAL's that is not a packet's: an arena that every open port reaches.

use crate::Memory;
use crate::arena::{Arena, ArenaError};
use dpdk_sys as sys;
use std::ptr::NonNull;

/// EAL could not give an arena its memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// It has not that much left in one piece.
    #[error("DPDK has no {0} bytes of memory left in one piece: reserve more hugepages, or ask for less")]
    NoMemory(usize),
    /// The arena cannot be of that size.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

/// A piece of EAL's memory, freed on drop.
struct Region {
    start: NonNull<u8>,
}

// SAFETY: a region is memory that one value owns; nothing of it belongs to a thread.
unsafe impl Send for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` came from `rte_zmalloc_socket` and is freed once.
        unsafe { sys::rte_free(self.start.as_ptr().cast()) }
    }
}

/// An arena in `bytes` of EAL's memory.
pub(crate) fn arena(bytes: usize) -> Result<Arena, ReserveError> {
    const PAGE: u32 = 4096;
    const ANY_NODE: i32 = -1;
    // SAFETY: no name; the alignment is a power of two.
    let start = unsafe { sys::rte_zmalloc_socket(std::ptr::null(), bytes, PAGE, ANY_NODE) };
    let start = NonNull::new(start.cast()).ok_or(ReserveError::NoMemory(bytes))?;
    let region = Region { start };
    // SAFETY: EAL gave the memory, zeroed, to nobody else, and takes it back when the region is dropped, which the
    // arena does last of all. Across the border of two pages, packets check what a device sees.
    Ok(unsafe { Arena::from_region(start, bytes, Memory::Device, move || drop(region)) }?)
}
