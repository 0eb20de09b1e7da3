//! One `rte_mbuf`: a pointer, and its fields at the offsets that the compiler found in DPDK's headers.

use super::header_ownership;
use super::refcnt::{Counts, SATURATED};
use crate::sync::atomic::{AtomicU16, Ordering};
use dpdk_sys as sys;
use std::ptr::NonNull;

/// What makes a driver write into a frame's headers while sending it.
pub(crate) const OFFLOADS: u64 = sys::LR_TX_L4_MASK | sys::LR_TX_TCP_SEG | sys::LR_TX_IP_CKSUM;

/// A pointer to a live `rte_mbuf`.
///
/// Its functions are safe on the promise made to [`new`](Self::new); writing ones are for who owns the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Segment(NonNull<sys::rte_mbuf>);

impl Segment {
    /// # Safety
    /// `mbuf` must be an mbuf of a pool, and the caller must hold a reference of it for as long as the value, or a
    /// copy of it, is used.
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
        // SAFETY: the offset is that of a field of the mbuf which this points to.
        unsafe { self.0.as_ptr().byte_add(offset as usize).cast() }
    }

    #[inline]
    pub(crate) fn get<T: Copy>(self, offset: u32) -> T {
        // SAFETY: a live mbuf has initialised fields at these offsets, which are aligned for their types; while it is
        // shared nobody writes those that are read here (contract of `new`).
        unsafe { self.field::<T>(offset).read() }
    }

    #[inline]
    pub(crate) fn set<T>(self, offset: u32, value: T) {
        // SAFETY: as for `get`; who calls a writing function owns the segment.
        unsafe { self.field::<T>(offset).write(value) }
    }

    #[inline]
    fn references(&self) -> &AtomicU16 {
        // SAFETY: the count lives as long as the mbuf; everyone, DPDK included, changes it atomically while there is
        // more than one reference.
        unsafe { AtomicU16::from_ptr(self.field(sys::LR_MBUF_REFCNT)) }
    }

    /// The number of [`Bytes`](crate::Bytes) over it.
    #[inline]
    fn holders(&self) -> &AtomicU16 {
        // SAFETY: a field of ours, reserved before there were packets, that lives as long as the mbuf and that only this
        // reads and writes.
        unsafe { AtomicU16::from_ptr(self.field(header_ownership::holders())) }
    }

    #[inline]
    fn counts(&self) -> Counts<'_> {
        Counts { references: self.references(), holders: self.holders() }
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

    /// Bytes in this segment and those behind it; true of a head only.
    #[inline]
    pub fn pkt_len(self) -> usize {
        self.get::<u32>(sys::LR_MBUF_PKT_LEN) as usize
    }

    #[inline]
    pub fn set_pkt_len(self, len: usize) {
        debug_assert!(u32::try_from(len).is_ok());
        self.set(sys::LR_MBUF_PKT_LEN, len as u32);
    }

    /// Segments in the chain; true of a head only.
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

    /// How far from the start of its data a driver may write that does the offloads asked of this head: to the end of the
    /// headers, which are at least as long as their fixed parts, whatever was asked.
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

    /// The pool that the mbuf itself came from.
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

    /// The first byte of its data.
    #[inline]
    pub fn data(self) -> NonNull<u8> {
        let buffer: *mut u8 = self.get(sys::LR_MBUF_BUF_ADDR);
        // SAFETY: a live mbuf has a buffer, and its data begin within it.
        unsafe { NonNull::new_unchecked(buffer.add(self.data_off())) }
    }

    #[inline]
    pub fn is_external(self) -> bool {
        self.flags() & sys::LR_MBUF_EXTERNAL != 0
    }

    /// Whether its bytes are in its own buffer.
    #[inline]
    pub fn is_direct(self) -> bool {
        self.flags() & (sys::LR_MBUF_INDIRECT | sys::LR_MBUF_EXTERNAL) == 0
    }

    /// Whether it has one reference: its packet's.
    #[inline]
    pub fn is_sole(self) -> bool {
        self.counts().is_sole()
    }

    /// Whether nobody else can see its bytes: they are in its own buffer, and it has one reference.
    #[inline]
    pub fn is_exclusive(self) -> bool {
        self.is_direct() && self.is_sole()
    }

    /// Whether the buffer that its data lie in can have no more references.
    #[inline]
    pub fn is_saturated(self) -> bool {
        // SAFETY: a live mbuf, which keeps the buffer and its count alive.
        unsafe { sys::lr_references(self.as_ptr()) >= SATURATED - 1 }
    }

    /// Frees it: the caller's reference is the last.
    #[inline]
    fn free(self) {
        // As DPDK wants what it frees: with its last reference.
        self.references().store(1, Ordering::Relaxed);
        // SAFETY: the reference of which the functions that lead here take over, and there is no other.
        unsafe { sys::lr_free_segment(self.as_ptr()) }
    }

    /// One holder more, beside the caller.
    #[inline]
    pub fn share(self) {
        self.counts().share();
    }

    /// Makes the packet's reference that of a first holder, or gives it back if there are holders, of which the caller is
    /// one from now on.
    ///
    /// # Safety
    /// The caller has the packet's reference, and does not use it again.
    #[inline]
    pub unsafe fn hold(self) {
        if self.counts().hold() {
            self.free();
        }
    }

    /// Makes the caller a holder of its data from `from` on, and keeps account of the bytes that are still its packet's alone.
    /// `false` when it can have no more references.
    ///
    /// # Safety
    /// The caller has the packet's reference to itself: no other thread shares or gives up that same one meanwhile.
    #[inline]
    pub unsafe fn retain(self, from: usize) -> bool {
        let end = self.data_off() + from;
        if self.is_sole() {
            header_ownership::set_end(self, self.is_direct().then_some(end));
            self.counts().retain_sole();
            return true;
        }
        if !self.counts().retain_shared() {
            return false;
        }
        header_ownership::set_end(self, header_ownership::end(self).map(|before| before.min(end)));
        true
    }

    /// The caller is a holder no more, on any thread; with the last reference the segment is freed.
    ///
    /// # Safety
    /// The caller is a holder, and does not use the segment again.
    #[inline]
    pub unsafe fn release(self) {
        if self.counts().release() {
            self.free();
        }
    }

    /// Lets the segment of a packet look as if the packet's reference were the only one, until [`reclaim`](Self::reclaim):
    /// for a driver that then writes in front of the data, which it may if no holder sees those bytes. `false`, and nothing
    /// has changed, if the packet has no holders beside it, or others than holders.
    ///
    /// Meanwhile the caller is a holder, so that the holders' reference is not given back, and there is nobody else to change
    /// the count of references by.
    ///
    /// # Safety
    /// The caller has the packet's reference to itself, and until it reclaims the segment nobody gives that back.
    #[inline]
    pub unsafe fn lend(self) -> bool {
        header_ownership::end(self).is_some_and(|end| self.data_off() <= end) && self.counts().lend()
    }

    /// Ends what [`lend`](Self::lend) began, when the driver has decided; it may have taken the packet over.
    ///
    /// # Safety
    /// The segment is lent, by the caller.
    #[inline]
    pub unsafe fn reclaim(self) {
        if self.counts().reclaim() {
            self.free();
        }
    }
}
