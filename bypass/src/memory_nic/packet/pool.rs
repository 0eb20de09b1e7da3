//! Bounded packet pool in one allocation.

use super::{Rest, View};
use crate::sync::free_list::FreeList;
use crate::sync::refcount::RefCount;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// Headroom of an allocated packet, as by default in DPDK (`RTE_PKTMBUF_HEADROOM`).
pub const HEADROOM: usize = 128;

/// Slot of a pool: this description, followed by the buffer.
///
/// The packet that took the slot owns `view` and `rest` exclusively. The buffer may have further references, from
/// clones and `Bytes`, which `refs` counts. The slot returns to the pool with the last one.
///
/// The first cache line contains everything that a frame of one segment needs.
#[repr(C, align(64))]
pub(in crate::memory_nic) struct Slot {
    pub(in crate::memory_nic) refs: RefCount,
    index: u32,
    pub(in crate::memory_nic) pool: NonNull<Pool>,
    pub(in crate::memory_nic) view: UnsafeCell<View>,
    pub(in crate::memory_nic) rest: UnsafeCell<Rest>,
}

const _: () = assert!(size_of::<Slot>() == 128 && std::mem::offset_of!(Slot, rest) == 64);

/// State shared by the slots of a pool. It is leaked to the heap until its handle and all slots have been dropped.
pub(in crate::memory_nic) struct Pool {
    memory: NonNull<u8>,
    /// Address of the allocation, of which `memory` is the aligned part.
    allocation: NonNull<u8>,
    layout: Layout,
    stride: usize,
    /// Bytes after the headroom of each buffer.
    data_room: usize,
    capacity: usize,
    free: FreeList,
    links: Box<[AtomicU32]>,
    /// Number of taken slots, plus one for the handle.
    refs: AtomicUsize,
}

/// Owner of a pool, which allocates packets.
pub(in crate::memory_nic) struct PoolHandle(NonNull<Pool>);

// SAFETY: everything in `Pool` that changes after `new` is atomic. The memory belongs to the slots, each of which has
// one owner.
unsafe impl Send for PoolHandle {}
// SAFETY: as above.
unsafe impl Sync for PoolHandle {}

impl PoolHandle {
    /// Creates a pool of `capacity` buffers with `data_room` bytes after the headroom of each.
    ///
    /// # Panics
    /// If `capacity` is 0, or the number or length of the buffers exceeds 32 bits or the address space.
    pub(in crate::memory_nic) fn new(capacity: usize, data_room: usize) -> Self {
        assert!(capacity > 0, "a packet pool needs at least one packet");
        assert!(u32::try_from(capacity).is_ok_and(|n| n < u32::MAX), "a packet pool cannot have {capacity} packets");
        let stride = data_room
            .checked_add(size_of::<Slot>() + HEADROOM)
            .and_then(|bytes| bytes.checked_next_multiple_of(align_of::<Slot>()))
            // Views count bytes in 32 bits.
            .filter(|bytes| u32::try_from(*bytes).is_ok());
        let layout = stride
            .and_then(|stride| stride.checked_mul(capacity)?.checked_add(align_of::<Slot>()))
            // Aligned by hand: for a larger alignment, the allocator would write all of the zeroed memory at once.
            .and_then(|bytes| Layout::from_size_align(bytes, 1).ok());
        let (Some(stride), Some(layout)) = (stride, layout) else {
            panic!("a packet pool of {capacity} packets of {data_room} bytes exceeds the address space");
        };
        // SAFETY: the layout has a non-zero size. Zeroed, because bytes that were never written can be read.
        let allocation = unsafe { alloc_zeroed(layout) };
        let Some(allocation) = NonNull::new(allocation) else { handle_alloc_error(layout) };
        // SAFETY: the layout has room for one alignment more than the slots occupy.
        let memory = unsafe { allocation.add(allocation.align_offset(align_of::<Slot>())) };
        let pool = Pool {
            memory,
            allocation,
            layout,
            stride,
            data_room,
            capacity,
            free: FreeList::new(),
            links: (1..=capacity as u32).map(AtomicU32::new).collect(),
            refs: AtomicUsize::new(1),
        };
        pool.free.push_chain(0, capacity as u32 - 1, |index| pool.link(index));
        PoolHandle(NonNull::from(Box::leak(Box::new(pool))))
    }

    fn pool(&self) -> &Pool {
        // SAFETY: the pool lives as long as its handle.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(in crate::memory_nic) fn take(&self) -> Option<NonNull<Slot>> {
        // SAFETY: the pool lives as long as its handle.
        unsafe { Pool::take(self.0) }
    }

    pub(in crate::memory_nic) fn capacity(&self) -> usize {
        self.pool().capacity
    }

    pub(in crate::memory_nic) fn available(&self) -> usize {
        let pool = self.pool();
        // `in_use` is incremented before a slot is taken, and decremented after it is returned, so another thread may
        // see more users than slots.
        (pool.capacity + 1).saturating_sub(pool.refs.load(Ordering::Acquire))
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        // SAFETY: releases the handle's reference to the pool.
        unsafe { Pool::release(self.0) }
    }
}

impl Pool {
    fn link(&self, index: u32) -> &AtomicU32 {
        &self.links[index as usize]
    }

    /// Takes a free slot, with an empty view after the headroom.
    ///
    /// # Safety
    /// The pool is alive: the caller holds its handle or one of its slots.
    #[inline]
    pub(in crate::memory_nic) unsafe fn take(this: NonNull<Pool>) -> Option<NonNull<Slot>> {
        // SAFETY: alive, by the contract.
        let pool = unsafe { this.as_ref() };
        // Relaxed: the caller's reference keeps the pool alive.
        pool.refs.fetch_add(1, Ordering::Relaxed);
        let Some(index) = pool.free.pop(|index| pool.link(index)) else {
            pool.refs.fetch_sub(1, Ordering::Release);
            return None;
        };
        // SAFETY: `index` is below the capacity, so the slot lies within the pool's memory.
        let slot = unsafe { pool.memory.add(index as usize * pool.stride).cast::<Slot>() };
        let raw = slot.as_ptr();
        // SAFETY: `slot` is aligned, because the memory is and the stride is a multiple, and exclusive, by the free
        // list. Its previous contents were dropped when it was returned. `rest` is kept: zero, which is a valid value,
        // or the value of the previous packet.
        unsafe {
            (&raw mut (*raw).refs).write(RefCount::one());
            (&raw mut (*raw).index).write(index);
            (&raw mut (*raw).pool).write(this);
            let view = View::empty(slot, Slot::buffer(slot).add(HEADROOM));
            (&raw mut (*raw).view).write(UnsafeCell::new(view));
        }
        Some(slot)
    }

    /// Releases a reference to the pool. The last one frees it.
    ///
    /// # Safety
    /// The caller gives up a reference, a handle or a slot, and does not use the pool afterwards.
    #[inline]
    unsafe fn release(this: NonNull<Pool>) {
        // SAFETY: the caller holds a reference until the subtraction.
        if unsafe { this.as_ref() }.refs.fetch_sub(1, Ordering::Release) == 1 {
            // SAFETY: that was the last reference.
            unsafe { Pool::end(this) };
        }
    }

    /// Frees the pool.
    ///
    /// # Safety
    /// The last reference has just been released.
    #[cold]
    unsafe fn end(this: NonNull<Pool>) {
        // Acquire: accesses of other threads happen before this.
        fence(Ordering::Acquire);
        // SAFETY: from `Box::leak` in `new`, without a reference.
        let pool = unsafe { Box::from_raw(this.as_ptr()) };
        // SAFETY: allocated with this layout in `new`; no slot is taken.
        unsafe { dealloc(pool.allocation.as_ptr(), pool.layout) };
    }
}

impl Slot {
    /// Returns the start of the buffer.
    ///
    /// # Safety
    /// `this` is a slot of a pool.
    #[inline]
    pub(in crate::memory_nic) unsafe fn buffer(this: NonNull<Slot>) -> NonNull<u8> {
        // SAFETY: the buffer follows the slot in the same allocation.
        unsafe { this.add(1).cast() }
    }

    /// Returns the end of the buffer.
    ///
    /// # Safety
    /// `this` is a taken slot of a pool.
    #[inline]
    pub(in crate::memory_nic) unsafe fn buffer_end(this: NonNull<Slot>) -> NonNull<u8> {
        // SAFETY: a taken slot is initialised and keeps its pool alive; the stride has room for the buffer.
        unsafe { Slot::buffer(this).add(HEADROOM + this.as_ref().pool.as_ref().data_room) }
    }

    /// Releases a reference to the buffer. The last one returns the slot to its pool.
    ///
    /// # Safety
    /// The caller gives up a reference. If it owns the view, it has dropped the view's contents.
    #[inline]
    pub(in crate::memory_nic) unsafe fn release(this: NonNull<Slot>) {
        // SAFETY: the caller's reference keeps the slot alive.
        let slot = unsafe { this.as_ref() };
        if slot.refs.release() {
            let (pool, index) = (slot.pool, slot.index);
            // SAFETY: the taken slot keeps the pool alive until it is released below.
            let alive = unsafe { pool.as_ref() };
            alive.free.push(index, |index| alive.link(index));
            // SAFETY: releases the reference of the slot just returned.
            unsafe { Pool::release(pool) };
        }
    }
}
