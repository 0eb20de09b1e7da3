//! Packet pools in EAL's memory.

use super::Mbuf;
use super::extbuf::PRIVATE_SIZE;
use super::segment::Segment;
use crate::dpdk::Eal;
use crate::dpdk::log;
use crate::prefetch::CACHE_LINE;
use dpdk_sys as sys;
use linerate_service::Bytes;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Configuration of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Number of packets.
    pub packets: u32,
    /// Data room of a packet in bytes, after its headroom.
    pub data_room: u16,
    /// NUMA node of the memory; `None` for any.
    pub numa_node: Option<u16>,
    /// True if the memory must be contiguous, as AF_XDP requires. Not for a device with physical addresses.
    pub contiguous: bool,
    /// Length of a device header that precedes a frame in memory. The header and the frame start a cache line.
    pub device_header: u16,
}

impl Default for MempoolConfig {
    fn default() -> Self {
        MempoolConfig { packets: 16_384, data_room: 2048, numa_node: None, contiguous: false, device_header: 0 }
    }
}

/// Reason that a pool could not be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no memory for {packets} packets of {data_room} bytes ({reason}): {remedy}use fewer workers, connections or \
     packets (--max-packets)"
)]
pub struct MempoolError {
    packets: u32,
    data_room: u16,
    reason: String,
    /// Command that reserves hugepages, if they are in use.
    remedy: String,
}

/// Handle to a packet pool. Clones refer to the same pool.
///
/// The memory of a pool is never freed, because packets, and [`Bytes`] created from them, may outlive every handle. A
/// pool without handles is kept for reuse by a port with the same configuration.
#[derive(Debug, Clone)]
pub struct Mempool {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    raw: NonNull<sys::rte_mempool>,
    config: MempoolConfig,
    excluded: AtomicBool,
}

// SAFETY: several threads may use a DPDK pool at once, and `raw` is valid until the process exits.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Pools without handles.
static IDLE: Mutex<Vec<Pool>> = Mutex::new(Vec::new());
static NAMES: AtomicU64 = AtomicU64::new(0);

/// Returns a size of the private area, a multiple of 8, with which a device header starts 0 to 7 bytes after the start
/// of a cache line. The header has `device_header` bytes and precedes the frame, which starts at the end of the
/// headroom.
fn private_size(device_header: u16) -> u16 {
    const LINE: u16 = CACHE_LINE as u16;
    // DPDK aligns mbufs to cache lines.
    const BEHIND_AREA: u16 = (sys::LR_MBUF_SIZE + sys::LR_MBUF_HEADROOM) as u16;
    let into_line = (BEHIND_AREA + PRIVATE_SIZE) % LINE;
    PRIVATE_SIZE + (device_header.next_multiple_of(8) % LINE + LINE - into_line) % LINE
}

/// Packets in the cache of each polling thread.
const CACHE: u32 = 256;
/// Maximum packets in the cache: DPDK lets it grow by half before it returns packets.
pub(crate) const CACHE_FULL: u32 = CACHE + CACHE / 2;

impl Mempool {
    /// Creates a pool in EAL's memory.
    pub fn new(eal: &Eal, config: MempoolConfig) -> Result<Mempool, MempoolError> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = idle.iter().position(|pool| pool.config == config) {
            return Ok(Mempool { pool: Arc::new(idle.swap_remove(found)) });
        }
        drop(idle);
        let error = |reason| {
            let MempoolConfig { packets, data_room, .. } = config;
            MempoolError { packets, data_room, reason, remedy: eal.reserve_hint() }
        };
        let headroom = sys::LR_MBUF_HEADROOM as u16;
        let room = config.data_room.checked_add(headroom).ok_or_else(|| error("too large".to_owned()))?;
        let name = CString::new(format!("linerate_{}", NAMES.fetch_add(1, Ordering::Relaxed))).unwrap_or_default();
        // DPDK rejects a cache of more than two thirds of the pool.
        let cache = CACHE.min(config.packets / 4);
        let mut raw = std::ptr::null_mut();
        log::reason(|| {
            // SAFETY: EAL runs, because `eal` exists. DPDK copies the name.
            raw = unsafe {
                sys::lr_pool_create(
                    name.as_ptr(),
                    config.packets,
                    cache,
                    private_size(config.device_header),
                    room,
                    config.numa_node.map_or(-1, i32::from),
                    i32::from(!config.contiguous),
                )
            };
            if raw.is_null() { -1 } else { 0 }
        })
        .map_err(error)?;
        let raw = NonNull::new(raw).ok_or_else(|| error("no memory".to_owned()))?;
        let pool = Mempool { pool: Arc::new(Pool { raw, config, excluded: AtomicBool::new(false) }) };
        // SAFETY: the pool has just been created.
        if config.contiguous && unsafe { sys::lr_pool_chunks(raw.as_ptr()) } != 1 {
            return Err(error("EAL's free memory is not contiguous".to_owned()));
        }
        Ok(pool)
    }

    /// Returns the number of packets of the pool, in use or free.
    pub fn size(&self) -> usize {
        self.pool.config.packets as usize
    }

    /// Returns the number of free packets, those in caches included. Exact only without concurrent use. Visits every
    /// cache, so it is not for the data path.
    pub fn available(&self) -> usize {
        // SAFETY: a pool is valid until the process exits.
        unsafe { sys::rte_mempool_avail_count(self.raw()) as usize }
    }

    /// Returns the data room of a packet in bytes, after its headroom.
    pub fn data_room(&self) -> usize {
        usize::from(self.pool.config.data_room)
    }

    /// Allocates an empty packet. Returns `None` if the pool is empty.
    #[inline]
    pub fn allocate(&self) -> Option<Mbuf> {
        allocate(self.raw())
    }

    /// Allocates a packet with `bytes` as its data, without a copy. Returns `bytes` if the pool is empty, devices
    /// cannot access them, or there are more than 65 535.
    pub fn attach(&self, bytes: Bytes) -> Result<Mbuf, Bytes> {
        let Some(mbuf) = self.allocate() else { return Err(bytes) };
        mbuf.attach(bytes)
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.pool.raw.as_ptr()
    }

    /// Excludes the pool from reuse, because the driver of its port does not return all packets.
    pub(crate) fn exclude_from_reuse(&self) {
        self.pool.excluded.store(true, Ordering::Relaxed);
    }
}

/// Allocates an empty packet from `pool`, which must be a pool of this crate.
#[inline]
pub(crate) fn allocate(pool: *mut sys::rte_mempool) -> Option<Mbuf> {
    // SAFETY: pools are valid until the process exits.
    let mbuf = NonNull::new(unsafe { sys::lr_alloc(pool) })?;
    // SAFETY: a fresh mbuf, whose reference the new value takes over.
    Some(unsafe { Mbuf::from_segment(Segment::new(mbuf)) })
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !*self.excluded.get_mut() {
            let again = Pool { raw: self.raw, config: self.config, excluded: AtomicBool::new(false) };
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(again);
        }
    }
}
