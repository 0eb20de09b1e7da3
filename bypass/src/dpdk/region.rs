//! Memory of EAL's that is not a packet's: what an arena is made of.

use dpdk_sys as sys;
use std::ptr::NonNull;

/// EAL has not that much memory left in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("DPDK has no {bytes} bytes of memory left in one piece: reserve more hugepages, or ask for less")]
pub struct ReserveError {
    /// What was asked for.
    pub bytes: usize,
}

/// A piece of EAL's memory, zeroed at first, freed on drop. Every open port reaches it.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is memory that one value owns; nothing of it belongs to a thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives a pointer and a length, and reading or writing through the pointer is the caller's `unsafe`.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn reserve(bytes: usize) -> Result<Region, ReserveError> {
        const PAGE: u32 = 4096;
        const ANY_NODE: i32 = -1;
        // SAFETY: no name; the alignment is a power of two.
        let start = unsafe { sys::rte_zmalloc_socket(std::ptr::null(), bytes, PAGE, ANY_NODE) };
        NonNull::new(start.cast()).map(|start| Region { start, len: bytes }).ok_or(ReserveError { bytes })
    }

    /// Its first byte, at the start of a page.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` came from `rte_zmalloc_socket` and is freed once.
        unsafe { sys::rte_free(self.start.as_ptr().cast()) }
    }
}
