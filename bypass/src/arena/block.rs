//! One block of an arena: first written by one owner, then read by many.

use super::Shared;
use super::class::HEADER;
use crate::sync::refcount::RefCount;
use crate::{Bytes, Memory, OwnerVtable};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What lies in front of each block. Only its atomics change once it has been carved.
#[repr(C, align(16))]
pub(super) struct Header {
    holders: RefCount,
    /// The next free block while this one is free, the block's class while it is not. A thread that reads the one
    /// for the other, because it came too late to pop this block, is told so by the free list's tag.
    pub(super) link: AtomicU32,
    /// Whose block it is. While the block is taken, it has one hold on it.
    shared: *const Shared,
}

const _: () = assert!(size_of::<Header>() == HEADER);

impl Header {
    /// The header of a free block of `shared`, a pointer that came from an `Arc`; the block `next` follows in the
    /// free list.
    pub(super) fn new(shared: *const Shared, next: u32) -> Self {
        Header { holders: RefCount::one(), link: AtomicU32::new(next), shared }
    }

    /// The first byte behind the header.
    ///
    /// # Safety
    /// `this` is the header of a block.
    unsafe fn data(this: NonNull<Header>) -> NonNull<u8> {
        // SAFETY: a block is longer than its header.
        unsafe { this.add(1).cast() }
    }

    /// Gives up one hold on the block; it goes back to its arena if it was the last.
    ///
    /// # Safety
    /// The caller has that hold.
    unsafe fn release(this: NonNull<Header>) {
        // SAFETY: the block is taken as long as the caller holds it, and keeps its arena.
        let header = unsafe { this.as_ref() };
        if header.holders.release() {
            let shared = header.shared;
            let class = header.link.load(Ordering::Relaxed) as usize;
            // SAFETY: the block's hold on `shared`, taken in `ArenaMut::take`, is given back behind its last use.
            unsafe {
                (*shared).free(this, class);
                Arc::decrement_strong_count(shared);
            }
        }
    }
}

/// A block that has one owner, to be written. [`freeze`](Self::freeze) makes it [`Bytes`]; dropping it gives it back.
///
/// A fresh one holds whatever was there.
pub struct ArenaMut {
    header: NonNull<Header>,
    len: usize,
}

// SAFETY: the owner of the block, alone; everything behind `header` that others reach is atomic.
unsafe impl Send for ArenaMut {}
// SAFETY: `&ArenaMut` only reads.
unsafe impl Sync for ArenaMut {}

impl ArenaMut {
    /// The owner of a free block of `class`, from now on.
    ///
    /// # Safety
    /// The caller has just taken the block out of the free list, or carved it; it is one of `shared`'s and has
    /// room for `len` bytes.
    pub(super) unsafe fn take(header: NonNull<Header>, shared: &Arc<Shared>, class: usize, len: usize) -> Self {
        // The block's hold on its arena. It is given back in `Header::release`.
        std::mem::forget(Arc::clone(shared));
        // SAFETY: a block's header is valid as long as its arena.
        let block = unsafe { header.as_ref() };
        block.holders.restart();
        block.link.store(class as u32, Ordering::Relaxed);
        ArenaMut { header, len }
    }

    /// Keeps the first `len` bytes; nothing happens when there are no more than that.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// No more writing: the bytes as they are now, to be shared.
    pub fn freeze(self) -> Bytes {
        let (header, len) = (self.header, self.len);
        std::mem::forget(self);
        // SAFETY: taken, so it keeps its arena alive.
        let table = match unsafe { (*header.as_ref().shared).memory } {
            Memory::Process => &PROCESS,
            Memory::Device => &DEVICE,
        };
        // SAFETY: the block has room for `len` bytes, and the bytes take over this owner's hold: nobody is left
        // who could write. Device memory is what the maker of the arena vouched for.
        unsafe { Bytes::from_owner(Header::data(header), len, header.as_ptr().cast(), table) }
    }
}

impl Deref for ArenaMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block has room for `len` bytes and no other owner. All memory of an arena is initialised.
        unsafe { std::slice::from_raw_parts(Header::data(self.header).as_ptr(), self.len) }
    }
}

impl DerefMut for ArenaMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(Header::data(self.header).as_ptr(), self.len) }
    }
}

impl Drop for ArenaMut {
    fn drop(&mut self) {
        // SAFETY: this owner's hold.
        unsafe { Header::release(self.header) }
    }
}

impl fmt::Debug for ArenaMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArenaMut({} bytes)", self.len)
    }
}

/// # Safety
/// As [`OwnerVtable::share`].
unsafe fn share(owner: *const ()) {
    // SAFETY: the owner is the header of a block that the caller has a hold on.
    unsafe { (*owner.cast::<Header>()).holders.share() }
}

/// # Safety
/// As [`OwnerVtable::release`].
unsafe fn release(owner: *const ()) {
    // SAFETY: as above, and the owner came from a `NonNull`.
    unsafe { Header::release(NonNull::new_unchecked(owner.cast_mut().cast())) }
}

static PROCESS: OwnerVtable = OwnerVtable { memory: Memory::Process, pooled: false, share, release };
static DEVICE: OwnerVtable = OwnerVtable { memory: Memory::Device, pooled: false, share, release };
