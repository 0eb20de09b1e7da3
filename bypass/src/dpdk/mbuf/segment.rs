//! Single `rte_mbuf`, with its fields at the offsets in DPDK's headers.

use super::header_ownership;
use super::refcnt::{RefCounts, SATURATED};
use crate::dpdk::mbuf_fields::handles_offset;
use crate::sync::atomic::{AtomicU16, Ordering};
use dpdk_sys as sys;
use std::ptr::NonNull;

/// Offload flags for which a driver writes the headers of a frame while sending it.
pub(crate) const OFFLOADS: u64 = sys::LR_TX_L4_MASK | sys::LR_TX_TCP_SEG | sys::LR_TX_IP_CKSUM;

/// Pointer to a live `rte_mbuf`.
///
/// Its functions are safe by the contract of [`new`](Self::new). Functions that write require ownership of the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Segment(NonNull<sys::rte_mbuf>);

impl Segment {
    /// Creates a pointer to a segment.
    ///
    /// # Safety
    /// `mbuf` must be an mbuf of a pool, and the caller must hold a reference to it for as long as the value, or a copy
    /// of it, is used.
    #[inline]
    pub unsafe fn new(mbuf: NonNull<sys::rte_mbuf>) -> Self {
        Segment(mbuf)
    }

    #[inline]
    pub fn as_ptr(self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    #[inline]
    fn field<T>(self, offset: u32) -> *mut T {
        // SAFETY: the offset is that of a field of the mbuf.
        unsafe { self.0.as_ptr().byte_add(offset as usize).cast() }
    }

    #[inline]
    pub(crate) fn get<T: Copy>(self, offset: u32) -> T {
        // SAFETY: a live mbuf has initialised, aligned fields at these offsets. Fields that are read here are not
        // written while the mbuf is shared (contract of `new`).
        unsafe { self.field::<T>(offset).read() }
    }

    #[inline]
    pub(crate) fn set<T>(self, offset: u32, value: T) {
        // SAFETY: as for `get`; the caller of a writing function owns the segment.
        unsafe { self.field::<T>(offset).write(value) }
    }

    #[inline]
    fn refcnt(&self) -> &AtomicU16 {
        // SAFETY: the count lives as long as the mbuf. This crate and DPDK change it atomically while it exceeds 1.
        unsafe { AtomicU16::from_ptr(self.field(sys::LR_MBUF_REFCNT)) }
    }

    /// Returns the count of [`Bytes`](linerate_service::Bytes) handles.
    #[inline]
    fn handles(&self) -> &AtomicU16 {
        // SAFETY: a dynamic field, registered before packets existed, that lives as long as the mbuf and that only this
        // crate accesses.
        unsafe { AtomicU16::from_ptr(self.field(handles_offset())) }
    }

    #[inline]
    fn counts(&self) -> RefCounts<'_> {
        RefCounts { refcnt: self.refcnt(), handles: self.handles() }
    }

    #[inline]
    pub fn data_len(self) -> usize {
        usize::from(self.get::<u16>(sys::LR_MBUF_DATA_LEN))
    }

    #[inline]
    pub fn set_data_len(self, len: usize) {
        debug_assert!(len <= usize::from(u16::MAX));
        self.set(sys::LR_MBUF_DATA_LEN, len as u16);
    }

    #[inline]
    pub fn data_off(self) -> usize {
        usize::from(self.get::<u16>(sys::LR_MBUF_DATA_OFF))
    }

    #[inline]
    pub fn set_data_off(self, offset: usize) {
        debug_assert!(offset <= usize::from(u16::MAX));
        self.set(sys::LR_MBUF_DATA_OFF, offset as u16);
    }

    #[inline]
    pub fn buf_len(self) -> usize {
        usize::from(self.get::<u16>(sys::LR_MBUF_BUF_LEN))
    }

    /// Returns the length of this segment and those after it. Valid in a head only.
    #[inline]
    pub fn pkt_len(self) -> usize {
        self.get::<u32>(sys::LR_MBUF_PKT_LEN) as usize
    }

    #[inline]
    pub fn set_pkt_len(self, len: usize) {
        debug_assert!(u32::try_from(len).is_ok());
        self.set(sys::LR_MBUF_PKT_LEN, len as u32);
    }

    /// Returns the number of segments in the chain. Valid in a head only.
    #[inline]
    pub fn segments(self) -> usize {
        usize::from(self.get::<u16>(sys::LR_MBUF_NB_SEGS))
    }

    #[inline]
    pub fn set_segments(self, n: usize) {
        debug_assert!((1..=usize::from(u16::MAX)).contains(&n));
        self.set(sys::LR_MBUF_NB_SEGS, n as u16);
    }

    #[inline]
    pub fn next(self) -> Option<Segment> {
        NonNull::new(self.get::<*mut sys::rte_mbuf>(sys::LR_MBUF_NEXT)).map(Segment)
    }

    #[inline]
    pub fn set_next(self, next: Option<Segment>) {
        self.set(sys::LR_MBUF_NEXT, next.map_or(std::ptr::null_mut(), Segment::as_ptr));
    }

    #[inline]
    pub fn last(self) -> Segment {
        let mut last = self;
        while let Some(next) = last.next() {
            last = next;
        }
        last
    }

    #[inline]
    pub fn flags(self) -> u64 {
        self.get(sys::LR_MBUF_OL_FLAGS)
    }

    #[inline]
    pub fn set_flags(self, flags: u64) {
        self.set(sys::LR_MBUF_OL_FLAGS, flags);
    }

    #[inline]
    pub fn tx_offload(self) -> u64 {
        self.get(sys::LR_MBUF_TX_OFFLOAD)
    }

    #[inline]
    pub fn set_tx_offload(self, word: u64) {
        self.set(sys::LR_MBUF_TX_OFFLOAD, word);
    }

    /// Returns the number of bytes at the start of the data that a driver may write for the requested offloads: the
    /// headers, with at least the length of their fixed parts even if a shorter length was requested.
    #[inline]
    pub fn headers_written(self) -> usize {
        const IPV4: usize = 20;
        const TCP: usize = 20;
        const UDP: usize = 8;
        let (flags, word) = (self.flags(), self.tx_offload());
        let field = |bits: u32, shift: u32| (word >> shift) as usize & ((1 << bits) - 1);
        let l2 = field(sys::LR_TX_L2_LEN_BITS, sys::LR_TX_L2_LEN_SHIFT);
        let l3 = field(sys::LR_TX_L3_LEN_BITS, sys::LR_TX_L3_LEN_SHIFT);
        let l4 = field(sys::LR_TX_L4_LEN_BITS, sys::LR_TX_L4_LEN_SHIFT);
        let least = match flags & sys::LR_TX_L4_MASK {
            _ if flags & sys::LR_TX_TCP_SEG != 0 => TCP,
            0 => 0,
            l4 if l4 == sys::LR_TX_UDP_CKSUM => UDP,
            _ => TCP,
        };
        l2 + l3.max(IPV4) + l4.max(least)
    }

    #[inline]
    pub fn rss_hash(self) -> u32 {
        self.get(sys::LR_MBUF_RSS_HASH)
    }

    #[inline]
    pub fn vlan_tci(self) -> u16 {
        self.get(sys::LR_MBUF_VLAN_TCI)
    }

    #[inline]
    pub fn set_vlan_tci(self, tci: u16) {
        self.set(sys::LR_MBUF_VLAN_TCI, tci);
    }

    /// Returns the pool of the mbuf itself.
    #[inline]
    pub fn pool(self) -> *mut sys::rte_mempool {
        self.get(sys::LR_MBUF_POOL)
    }

    #[inline]
    pub fn shinfo(self) -> *mut std::ffi::c_void {
        self.get(sys::LR_MBUF_SHINFO)
    }

    #[inline]
    pub fn private(self) -> *mut std::ffi::c_void {
        // SAFETY: a live mbuf of a pool.
        unsafe { sys::lr_private(self.as_ptr()) }
    }

    #[inline]
    pub fn data(self) -> NonNull<u8> {
        let buffer: *mut u8 = self.get(sys::LR_MBUF_BUF_ADDR);
        // SAFETY: a live mbuf has a buffer, and its data start within it.
        unsafe { NonNull::new_unchecked(buffer.add(self.data_off())) }
    }

    #[inline]
    pub fn is_external(self) -> bool {
        self.flags() & sys::LR_MBUF_EXTERNAL != 0
    }

    /// Returns whether the bytes are in the mbuf's own buffer.
    #[inline]
    pub fn is_direct(self) -> bool {
        self.flags() & (sys::LR_MBUF_INDIRECT | sys::LR_MBUF_EXTERNAL) == 0
    }

    /// Returns whether the packet's reference is the only one.
    #[inline]
    pub fn is_sole(self) -> bool {
        self.counts().is_sole()
    }

    /// Returns whether the bytes are exclusive: in the mbuf's own buffer, with one reference.
    #[inline]
    pub fn is_exclusive(self) -> bool {
        self.is_direct() && self.is_sole()
    }

    /// Returns whether the reference count of the data's buffer is exhausted.
    #[inline]
    pub fn is_saturated(self) -> bool {
        // SAFETY: a live mbuf, which keeps the buffer and its count alive.
        unsafe { sys::lr_references(self.as_ptr()) >= SATURATED - 1 }
    }

    /// Frees the segment. The caller's reference is the last.
    #[inline]
    fn free(self) {
        // DPDK frees a segment with its last reference.
        self.refcnt().store(1, Ordering::Relaxed);
        // SAFETY: takes over the last reference, as the callers have established.
        unsafe { sys::lr_free_segment(self.as_ptr()) }
    }

    /// Adds a handle. The caller holds one.
    #[inline]
    pub fn add_handle(self) {
        self.counts().add_handle();
    }

    /// Converts the packet's reference to a handle.
    ///
    /// # Safety
    /// The caller holds the packet's reference, and does not use it afterwards.
    #[inline]
    pub unsafe fn packet_to_handle(self) {
        if self.counts().packet_to_handle() {
            self.free();
        }
    }

    /// Adds a handle to the data from `from` on, and updates the end of the packet's exclusive bytes. Returns `false`
    /// if the reference count is exhausted.
    ///
    /// # Safety
    /// The caller uses the packet's reference exclusively: no other thread shares or releases it meanwhile.
    #[inline]
    pub unsafe fn retain(self, from: usize) -> bool {
        let end = self.data_off() + from;
        if self.is_sole() {
            header_ownership::set_end(self, self.is_direct().then_some(end));
            self.counts().add_first_handle();
            return true;
        }
        if !self.counts().add_handle_to_shared() {
            return false;
        }
        header_ownership::set_end(self, header_ownership::end(self).map(|before| before.min(end)));
        true
    }

    /// Releases a handle, on any thread. The last reference frees the segment.
    ///
    /// # Safety
    /// The caller holds a handle, and does not use the segment afterwards.
    #[inline]
    pub unsafe fn release_handle(self) {
        if self.counts().release_handle() {
            self.free();
        }
    }

    /// Masks the reference count as 1 until [`restore_refcnt`](Self::restore_refcnt), for a driver that then writes in
    /// front of the data. The bytes there must be exclusive to the packet. Returns `false`, without an effect, if there
    /// are no handles, or other references than handles, or the bytes are not exclusive.
    ///
    /// The caller holds a handle meanwhile, so the reference of the handles is not released, and no one else changes
    /// the reference count.
    ///
    /// # Safety
    /// The caller uses the packet's reference exclusively, and it is not released before the count is restored.
    #[inline]
    pub unsafe fn mask_refcnt(self) -> bool {
        header_ownership::end(self).is_some_and(|end| self.data_off() <= end) && self.counts().mask_refcnt()
    }

    /// Ends the masking by [`mask_refcnt`](Self::mask_refcnt), after the driver has decided. The driver may own the
    /// packet now.
    ///
    /// # Safety
    /// The caller has masked the reference count.
    #[inline]
    pub unsafe fn restore_refcnt(self) {
        if self.counts().restore_refcnt() {
            self.free();
        }
    }
}
