//! A bounded pool of packet buffers in one piece of memory.

use super::packet::{Rest, View};
use crate::sync::free_list::FreeList;
use crate::sync::refcount::RefCount;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// Bytes in front of the data of a fresh packet, as DPDK has by default (`RTE_PKTMBUF_HEADROOM`).
pub const HEADROOM: usize = 128;

/// One place of a pool: this description, and right behind it the buffer.
///
/// Whoever took the place from the pool owns `view` and `rest` alone: a packet. The buffer may have further holders,
/// clones and `Bytes`, which `holders` counts; the place goes back when the last one goes.
///
/// All that a frame of one segment needs is in the first cache line.
#[repr(C, align(64))]
pub(super) struct Slot {
    pub(super) holders: RefCount,
    index: u32,
    pub(super) pool: NonNull<Pool>,
    pub(super) view: UnsafeCell<View>,
    pub(super) rest: UnsafeCell<Rest>,
}

const _: () = assert!(size_of::<Slot>() == 128 && std::mem::offset_of!(Slot, rest) == 64);

/// What the places of a pool share. It lives on the heap until its handle and all places are given back.
pub(super) struct Pool {
    memory: NonNull<u8>,
    /// What was allocated, of which `memory` is the aligned part.
    allocation: NonNull<u8>,
    layout: Layout,
    stride: usize,
    /// Bytes behind the headroom of each buffer.
    data_room: usize,
    capacity: usize,
    free: FreeList,
    links: Box<[AtomicU32]>,
    /// Places that are taken, and one for the handle.
    holders: AtomicUsize,
}

/// The owner of a pool, who takes packets out of it.
pub(super) struct PoolHandle(NonNull<Pool>);

// SAFETY: everything in `Pool` that changes after `new` is atomic; the memory it points to belongs to the slots,
// each of which has one owner.
unsafe impl Send for PoolHandle {}
// SAFETY: as above.
unsafe impl Sync for PoolHandle {}

impl PoolHandle {
    /// A pool of `capacity` buffers with `data_room` bytes behind the headroom of each.
    ///
    /// # Panics
    /// If there would be none, or more or longer ones than can be numbered or addressed.
    pub(super) fn new(capacity: usize, data_room: usize) -> Self {
        assert!(capacity > 0, "a packet pool of no packets");
        assert!(u32::try_from(capacity).is_ok_and(|n| n < u32::MAX), "a packet pool of {capacity} packets");
        let stride = data_room
            .checked_add(size_of::<Slot>() + HEADROOM)
            .and_then(|bytes| bytes.checked_next_multiple_of(align_of::<Slot>()))
            // Views count bytes in 32 bits.
            .filter(|bytes| u32::try_from(*bytes).is_ok());
        let layout = stride
            .and_then(|stride| stride.checked_mul(capacity)?.checked_add(align_of::<Slot>()))
            // Aligned by hand: of an allocator asked for alignment zeroed memory is written to, all of it, at once.
            .and_then(|bytes| Layout::from_size_align(bytes, 1).ok());
        let (Some(stride), Some(layout)) = (stride, layout) else {
            panic!("a packet pool of {capacity} packets of {data_room} bytes is larger than memory can be");
        };
        // SAFETY: the layout is not of size zero. Zeroed, so that bytes nobody wrote yet can be read.
        let allocation = unsafe { alloc_zeroed(layout) };
        let Some(allocation) = NonNull::new(allocation) else { handle_alloc_error(layout) };
        // SAFETY: the layout has room for one alignment more than the places take.
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
            holders: AtomicUsize::new(1),
        };
        pool.free.push_chain(0, capacity as u32 - 1, |place| pool.link(place));
        PoolHandle(NonNull::from(Box::leak(Box::new(pool))))
    }

    fn pool(&self) -> &Pool {
        // SAFETY: the pool lives as long as its handle.
        unsafe { self.0.as_ref() }
    }

    /// A place that nobody else has.
    #[inline]
    pub(super) fn take(&self) -> Option<NonNull<Slot>> {
        // SAFETY: the pool lives as long as its handle.
        unsafe { Pool::take(self.0) }
    }

    pub(super) fn capacity(&self) -> usize {
        self.pool().capacity
    }

    pub(super) fn available(&self) -> usize {
        let pool = self.pool();
        // A taker counts itself just before it takes and a giver stops counting itself just after it gave, so
        // seen from a third thread there may seem to be more takers than places.
        (pool.capacity + 1).saturating_sub(pool.holders.load(Ordering::Acquire))
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        // SAFETY: this is the handle's own hold on the pool.
        unsafe { Pool::let_go(self.0) }
    }
}

impl Pool {
    fn link(&self, place: u32) -> &AtomicU32 {
        &self.links[place as usize]
    }

    /// A place that nobody else has, with a view of nothing behind the headroom.
    ///
    /// # Safety
    /// The pool lives: the caller has its handle or one of its places.
    #[inline]
    pub(super) unsafe fn take(this: NonNull<Pool>) -> Option<NonNull<Slot>> {
        // SAFETY: alive, by the contract.
        let pool = unsafe { this.as_ref() };
        // Relaxed: nothing can end the pool while the caller holds a part of it.
        pool.holders.fetch_add(1, Ordering::Relaxed);
        let Some(index) = pool.free.pop(|place| pool.link(place)) else {
            pool.holders.fetch_sub(1, Ordering::Release);
            return None;
        };
        // SAFETY: `index` is below the capacity, so the place lies within the pool's memory.
        let slot = unsafe { pool.memory.add(index as usize * pool.stride).cast::<Slot>() };
        let place = slot.as_ptr();
        // SAFETY: `slot` is aligned (so is the memory, and the stride is a multiple) and the free list gave it to
        // us alone. What it held before was dropped when it was given back. `rest` stays as it was: zero, which is a
        // value of it, or what the packet before has left.
        unsafe {
            (&raw mut (*place).holders).write(RefCount::one());
            (&raw mut (*place).index).write(index);
            (&raw mut (*place).pool).write(this);
            let view = View::empty(slot, Slot::buffer(slot).add(HEADROOM));
            (&raw mut (*place).view).write(UnsafeCell::new(view));
        }
        Some(slot)
    }

    /// Stops holding the pool. The last one to do so frees it.
    ///
    /// # Safety
    /// The caller held it as a handle or as a place, and does not use it any more.
    #[inline]
    unsafe fn let_go(this: NonNull<Pool>) {
        // SAFETY: held by the caller until the subtraction.
        if unsafe { this.as_ref() }.holders.fetch_sub(1, Ordering::Release) == 1 {
            // SAFETY: nobody holds it any more.
            unsafe { Pool::end(this) };
        }
    }

    /// Frees the pool.
    ///
    /// # Safety
    /// The last one has just let go of it.
    #[cold]
    unsafe fn end(this: NonNull<Pool>) {
        // What the others did with it comes before.
        fence(Ordering::Acquire);
        // SAFETY: made by `Box::leak` in `new`, and nobody holds it any more.
        let pool = unsafe { Box::from_raw(this.as_ptr()) };
        // SAFETY: allocated with this layout in `new`; no place of it is taken any more.
        unsafe { dealloc(pool.allocation.as_ptr(), pool.layout) };
    }
}

impl Slot {
    /// The start of the buffer.
    ///
    /// # Safety
    /// `this` is a place of a pool.
    #[inline]
    pub(super) unsafe fn buffer(this: NonNull<Slot>) -> NonNull<u8> {
        // SAFETY: the buffer lies right behind the slot, in the same allocation.
        unsafe { this.add(1).cast() }
    }

    /// The end of the buffer.
    ///
    /// # Safety
    /// `this` is a place of a pool that has been taken.
    #[inline]
    pub(super) unsafe fn buffer_end(this: NonNull<Slot>) -> NonNull<u8> {
        // SAFETY: a taken place has been written and keeps its pool alive; the stride has room for this.
        unsafe { Slot::buffer(this).add(HEADROOM + this.as_ref().pool.as_ref().data_room) }
    }

    /// Gives up one hold on the buffer, and the place goes back to its pool if it was the last.
    ///
    /// # Safety
    /// The caller has that hold, and what the view held has been dropped if this is the owner of the view.
    #[inline]
    pub(super) unsafe fn release(this: NonNull<Slot>) {
        // SAFETY: the slot is alive as long as the caller's hold.
        let slot = unsafe { this.as_ref() };
        if slot.holders.release() {
            let (pool, index) = (slot.pool, slot.index);
            // SAFETY: the taken place keeps the pool alive until it lets go below.
            let alive = unsafe { pool.as_ref() };
            alive.free.push(index, |place| alive.link(place));
            // SAFETY: this is the hold of the place just given back.
            unsafe { Pool::let_go(pool) };
        }
    }
}
