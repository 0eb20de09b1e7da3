//! Pools of packets in EAL's memory.

use super::Mbuf;
use super::extbuf::PRIVATE_SIZE;
use super::segment::Segment;
use crate::Bytes;
use crate::dpdk::Eal;
use crate::dpdk::eal::log;
use crate::prefetch::CACHE_LINE;
use dpdk_sys as sys;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A pool to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Packets in it.
    pub packets: u32,
    /// Bytes of data that one packet has room for, behind its headroom.
    pub data_room: u16,
    /// The NUMA node of its memory; `None` for any.
    pub numa_node: Option<u16>,
    /// One piece of memory without gaps, as AF_XDP needs; not for a device that is given physical addresses.
    pub one_piece: bool,
    /// Bytes in front of a frame that the device reads and writes with it: they and the frame begin a cache line together.
    pub in_front: u16,
}

impl Default for MempoolConfig {
    fn default() -> Self {
        MempoolConfig { packets: 16_384, data_room: 2048, numa_node: None, one_piece: false, in_front: 0 }
    }
}

/// A pool could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no memory for {packets} packets of {data_room} bytes ({reason}): reserve more hugepages, give --memory more \
     MB, or ask for a smaller pool"
)]
pub struct MempoolError {
    packets: u32,
    data_room: u16,
    reason: String,
}

/// A pool of packets. A handle: clones are the same pool.
///
/// Its memory is never given back to EAL, because packets, and the [`Bytes`] made of them, may outlive every handle on
/// any thread; when the last handle goes, the pool waits for another port to want the like.
#[derive(Debug, Clone)]
pub struct Mempool {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    raw: NonNull<sys::rte_mempool>,
    config: MempoolConfig,
    tainted: AtomicBool,
}

// SAFETY: DPDK's pools may be used by all threads at once; `raw` is valid until the process ends.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Pools that nobody has a handle on.
static IDLE: Mutex<Vec<Pool>> = Mutex::new(Vec::new());
static NAMES: AtomicU64 = AtomicU64::new(0);

/// Bytes of private area behind which what is `in_front` of a frame that begins at the headroom's end begins a cache line, or a few
/// bytes into it: the area is a multiple of 8.
fn private_size(in_front: u16) -> u16 {
    const LINE: u16 = CACHE_LINE as u16;
    // DPDK aligns mbufs to cache lines.
    const BEHIND_AREA: u16 = (sys::LR_MBUF_SIZE + sys::LR_MBUF_HEADROOM) as u16;
    let into_line = (BEHIND_AREA + PRIVATE_SIZE) % LINE;
    PRIVATE_SIZE + (in_front.next_multiple_of(8) % LINE + LINE - into_line) % LINE
}

/// Packets that each polling thread keeps for itself.
const CACHE: u32 = 256;
/// Packets that it has for itself at most: DPDK lets a cache grow by half before it gives any back.
pub(crate) const CACHE_FULL: u32 = CACHE + CACHE / 2;

impl Mempool {
    /// Makes a pool in EAL's memory.
    pub fn new(_eal: &Eal, config: MempoolConfig) -> Result<Mempool, MempoolError> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = idle.iter().position(|pool| pool.config == config) {
            return Ok(Mempool { pool: Arc::new(idle.swap_remove(found)) });
        }
        drop(idle);
        let error = |reason| MempoolError { packets: config.packets, data_room: config.data_room, reason };
        let headroom = sys::LR_MBUF_HEADROOM as u16;
        let room = config.data_room.checked_add(headroom).ok_or_else(|| error("too large".to_owned()))?;
        let name = CString::new(format!("linerate_{}", NAMES.fetch_add(1, Ordering::Relaxed))).unwrap_or_default();
        // DPDK refuses a cache of more than two thirds of the pool.
        let cache = CACHE.min(config.packets / 4);
        let mut raw = std::ptr::null_mut();
        log::reason(|| {
            // SAFETY: EAL runs, as `_eal` proves; the name is a string that DPDK copies.
            raw = unsafe {
                sys::lr_pool_create(
                    name.as_ptr(),
                    config.packets,
                    cache,
                    private_size(config.in_front),
                    room,
                    config.numa_node.map_or(-1, i32::from),
                    i32::from(!config.one_piece),
                )
            };
            if raw.is_null() { -1 } else { 0 }
        })
        .map_err(error)?;
        let raw = NonNull::new(raw).ok_or_else(|| error("no memory".to_owned()))?;
        let pool = Mempool { pool: Arc::new(Pool { raw, config, tainted: AtomicBool::new(false) }) };
        // SAFETY: the pool was just made.
        if config.one_piece && unsafe { sys::lr_pool_chunks(raw.as_ptr()) } != 1 {
            return Err(error("EAL's free memory is in pieces".to_owned()));
        }
        Ok(pool)
    }

    /// Packets in the pool, in use or not.
    pub fn size(&self) -> usize {
        self.pool.config.packets as usize
    }

    /// Packets that can be allocated, those in the threads' caches included. Exact only while nobody allocates or
    /// frees; it looks at every cache, so it is not for the data path.
    pub fn available(&self) -> usize {
        // SAFETY: a pool is valid until the process ends.
        unsafe { sys::rte_mempool_avail_count(self.raw()) as usize }
    }

    /// Bytes of data that one packet has room for, behind its headroom.
    pub fn data_room(&self) -> usize {
        usize::from(self.pool.config.data_room)
    }

    /// An empty packet, or `None` when the pool is empty.
    #[inline]
    pub fn allocate(&self) -> Option<Mbuf> {
        allocate(self.raw())
    }

    /// A packet whose data is `bytes`, not copied; they come back when the pool is empty, when no device can reach
    /// them, or when there are more than 65 535.
    pub fn attach(&self, bytes: Bytes) -> Result<Mbuf, Bytes> {
        let Some(mbuf) = self.allocate() else { return Err(bytes) };
        mbuf.hold(bytes)
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.pool.raw.as_ptr()
    }

    /// Keeps the pool from being used by another port: its driver does not give all packets back.
    pub(crate) fn taint(&self) {
        self.pool.tainted.store(true, Ordering::Relaxed);
    }
}

/// An empty packet of `pool`, which is one of ours.
#[inline]
pub(crate) fn allocate(pool: *mut sys::rte_mempool) -> Option<Mbuf> {
    // SAFETY: pools are valid until the process ends.
    let mbuf = NonNull::new(unsafe { sys::lr_alloc(pool) })?;
    // SAFETY: a fresh mbuf, with one reference that is ours.
    Some(unsafe { Mbuf::from_segment(Segment::new(mbuf)) })
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !*self.tainted.get_mut() {
            let again = Pool { raw: self.raw, config: self.config, tainted: AtomicBool::new(false) };
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(again);
        }
    }
}
