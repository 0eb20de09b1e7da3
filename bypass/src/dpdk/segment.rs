//! One `rte_mbuf`: a pointer, and its fields at the offsets that the compiler found in DPDK's headers.

use dpdk_sys as sys;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// From this count of references on, a segment is never freed and its references are no longer counted: the field has
/// 16 bits, and safe code can clone [`Bytes`](crate::Bytes) without end. Losing a packet buffer beats losing count.
const SATURATED: u16 = 0x4000;
/// Where a saturated count is put. DPDK's own code still gives references back; there are fewer than [`SATURATED`] of
/// those, so the count stays above it.
const STUCK: u16 = 0xc000;

/// A pointer to a live `rte_mbuf`.
///
/// Its functions are safe on the promise made to [`new`](Self::new); writing ones are for who owns the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Segment(NonNull<sys::rte_mbuf>);

impl Segment {
    /// # Safety
    /// `mbuf` must be an mbuf of a pool, and the caller must hold a reference of it for as long as the value, or a
    /// copy of it, is used.
    pub unsafe fn new(mbuf: NonNull<sys::rte_mbuf>) -> Self {
        Segment(mbuf)
    }

    pub fn as_ptr(self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    fn field<T>(self, offset: u32) -> *mut T {
        // SAFETY: the offset is that of a field of the mbuf which this points to.
        unsafe { self.0.as_ptr().byte_add(offset as usize).cast() }
    }

    fn get<T: Copy>(self, offset: u32) -> T {
        // SAFETY: a live mbuf has initialised fields at these offsets, which are aligned for their types; while it is
        // shared nobody writes those that are read here (contract of `new`).
        unsafe { self.field::<T>(offset).read() }
    }

    fn set<T>(self, offset: u32, value: T) {
        // SAFETY: as for `get`; who calls a writing function owns the segment.
        unsafe { self.field::<T>(offset).write(value) }
    }

    fn references(&self) -> &AtomicU16 {
        // SAFETY: the count lives as long as the mbuf; everyone, DPDK included, changes it atomically while there is
        // more than one reference.
        unsafe { AtomicU16::from_ptr(self.field(sys::LR_MBUF_REFCNT)) }
    }

    pub fn data_len(self) -> usize {
        usize::from(self.get::<u16>(sys::LR_MBUF_DATA_LEN))
    }

    pub fn set_data_len(self, len: usize) {
        debug_assert!(len <= usize::from(u16::MAX));
        self.set(sys::LR_MBUF_DATA_LEN, len as u16);
    }

    pub fn data_off(self) -> usize {
        usize::from(self.get::<u16>(sys::LR_MBUF_DATA_OFF))
    }

    pub fn set_data_off(self, offset: usize) {
        debug_assert!(offset <= usize::from(u16::MAX));
        self.set(sys::LR_MBUF_DATA_OFF, offset as u16);
    }

    pub fn buf_len(self) -> usize {
        usize::from(self.get::<u16>(sys::LR_MBUF_BUF_LEN))
    }

    /// Bytes in this segment and those behind it; true of a head only.
    pub fn pkt_len(self) -> usize {
        self.get::<u32>(sys::LR_MBUF_PKT_LEN) as usize
    }

    pub fn set_pkt_len(self, len: usize) {
        debug_assert!(u32::try_from(len).is_ok());
        self.set(sys::LR_MBUF_PKT_LEN, len as u32);
    }

    /// Segments in the chain; true of a head only.
    pub fn segments(self) -> usize {
        usize::from(self.get::<u16>(sys::LR_MBUF_NB_SEGS))
    }

    pub fn set_segments(self, n: usize) {
        debug_assert!((1..=usize::from(u16::MAX)).contains(&n));
        self.set(sys::LR_MBUF_NB_SEGS, n as u16);
    }

    pub fn next(self) -> Option<Segment> {
        NonNull::new(self.get::<*mut sys::rte_mbuf>(sys::LR_MBUF_NEXT)).map(Segment)
    }

    pub fn set_next(self, next: Option<Segment>) {
        self.set(sys::LR_MBUF_NEXT, next.map_or(std::ptr::null_mut(), Segment::as_ptr));
    }

    pub fn last(self) -> Segment {
        let mut last = self;
        while let Some(next) = last.next() {
            last = next;
        }
        last
    }

    pub fn flags(self) -> u64 {
        self.get(sys::LR_MBUF_OL_FLAGS)
    }

    pub fn set_flags(self, flags: u64) {
        self.set(sys::LR_MBUF_OL_FLAGS, flags);
    }

    pub fn tx_offload(self) -> u64 {
        self.get(sys::LR_MBUF_TX_OFFLOAD)
    }

    pub fn set_tx_offload(self, word: u64) {
        self.set(sys::LR_MBUF_TX_OFFLOAD, word);
    }

    pub fn rss_hash(self) -> u32 {
        self.get(sys::LR_MBUF_RSS_HASH)
    }

    pub fn vlan_tci(self) -> u16 {
        self.get(sys::LR_MBUF_VLAN_TCI)
    }

    /// The pool that the mbuf itself came from.
    pub fn pool(self) -> *mut sys::rte_mempool {
        self.get(sys::LR_MBUF_POOL)
    }

    pub fn shinfo(self) -> *mut std::ffi::c_void {
        self.get(sys::LR_MBUF_SHINFO)
    }

    pub fn private(self) -> *mut std::ffi::c_void {
        // SAFETY: a live mbuf of a pool.
        unsafe { sys::lr_private(self.as_ptr()) }
    }

    /// The first byte of its data.
    pub fn data(self) -> NonNull<u8> {
        let buffer: *mut u8 = self.get(sys::LR_MBUF_BUF_ADDR);
        // SAFETY: a live mbuf has a buffer, and its data begin within it.
        unsafe { NonNull::new_unchecked(buffer.add(self.data_off())) }
    }

    pub fn is_external(self) -> bool {
        self.flags() & sys::LR_MBUF_EXTERNAL != 0
    }

    /// Whether nobody else can see its bytes: they are in its own buffer, and it has one reference.
    pub fn is_exclusive(self) -> bool {
        // Acquire: what those did who gave their references back has happened before we write.
        self.flags() & (sys::LR_MBUF_INDIRECT | sys::LR_MBUF_EXTERNAL) == 0
            && self.references().load(Ordering::Acquire) == 1
    }

    /// Whether the buffer that its data lie in can have no more references.
    pub fn is_saturated(self) -> bool {
        // SAFETY: a live mbuf, which keeps the buffer and its count alive.
        unsafe { sys::lr_references(self.as_ptr()) >= SATURATED - 1 }
    }

    /// Takes one more reference. Atomic always: unlike DPDK's function it may be called by several threads at once
    /// that share a single reference.
    pub fn share(self) {
        if self.references().fetch_add(1, Ordering::Relaxed) >= SATURATED - 1 {
            self.references().store(STUCK, Ordering::Relaxed);
        }
    }

    /// Gives a reference back, on any thread; the last one frees the segment.
    ///
    /// # Safety
    /// The caller holds a reference, and uses neither it nor the segment again.
    pub unsafe fn release(self) {
        if self.references().load(Ordering::Acquire) >= SATURATED {
            return;
        }
        // SAFETY: the caller's reference is given back once.
        unsafe { sys::lr_free_segment(self.as_ptr()) }
    }
}
