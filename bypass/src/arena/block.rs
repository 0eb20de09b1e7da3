//! Arena block: written by one owner, then shared by readers.

use super::SharedArena;
use super::class::HEADER;
use crate::sync::refcount::RefCount;
use linerate_service::{Bytes, Memory, OwnerVtable};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Header in front of each block. Only its atomics change after carving.
#[repr(C, align(16))]
pub(super) struct Header {
    refs: RefCount,
    /// Next free block while the block is free, size class while it is allocated. A thread that pops too late may read
    /// the class as a link; the changed tag of the free list then fails its pop.
    pub(super) link: AtomicU32,
    /// Arena of the block. An allocated block holds a reference.
    shared: *const SharedArena,
}

const _: () = assert!(size_of::<Header>() == HEADER);

impl Header {
    /// Creates the header of a free block of `shared`, a pointer from an `Arc`. Block `next` follows in the free list.
    pub(super) fn new(shared: *const SharedArena, next: u32) -> Self {
        Header { refs: RefCount::one(), link: AtomicU32::new(next), shared }
    }

    /// Returns the first byte after the header.
    ///
    /// # Safety
    /// `this` is the header of a block.
    unsafe fn data(this: NonNull<Header>) -> NonNull<u8> {
        // SAFETY: a block is longer than its header.
        unsafe { this.add(1).cast() }
    }

    /// Releases a reference to the block. The last one returns the block to its arena.
    ///
    /// # Safety
    /// The caller gives up a reference.
    unsafe fn release(this: NonNull<Header>) {
        // SAFETY: the caller's reference keeps the block allocated, which keeps its arena.
        let header = unsafe { this.as_ref() };
        if header.refs.release() {
            let shared = header.shared;
            let class = header.link.load(Ordering::Relaxed) as usize;
            // SAFETY: the block's reference to `shared`, added in `ArenaMut::take`, is released after its last use.
            unsafe {
                (*shared).free(this, class);
                Arc::decrement_strong_count(shared);
            }
        }
    }
}

/// Exclusively owned, writable block. [`freeze`](Self::freeze) converts it to [`Bytes`]; dropping it frees it. A new
/// block has unspecified contents.
pub struct ArenaMut {
    header: NonNull<Header>,
    len: usize,
}

// SAFETY: the block is exclusively owned, and other threads access atomics behind `header` only.
unsafe impl Send for ArenaMut {}
// SAFETY: `&ArenaMut` only reads.
unsafe impl Sync for ArenaMut {}

impl ArenaMut {
    /// Allocates a free block of `class`.
    ///
    /// # Safety
    /// The caller has just popped or carved the block. It belongs to `shared` and has room for `len` bytes.
    pub(super) unsafe fn take(header: NonNull<Header>, shared: &Arc<SharedArena>, class: usize, len: usize) -> Self {
        // The block's reference to its arena, released in `Header::release`.
        std::mem::forget(Arc::clone(shared));
        // SAFETY: the header of a block is valid as long as its arena.
        let block = unsafe { header.as_ref() };
        block.refs.restart();
        block.link.store(class as u32, Ordering::Relaxed);
        ArenaMut { header, len }
    }

    /// Keeps the first `len` bytes, or all if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Converts the block to shared, immutable bytes.
    pub fn freeze(self) -> Bytes {
        let (header, len) = (self.header, self.len);
        std::mem::forget(self);
        // SAFETY: the block is allocated, so its arena is alive.
        let table = match unsafe { (*header.as_ref().shared).memory } {
            Memory::Process => &PROCESS,
            Memory::Device => &DEVICE,
        };
        // SAFETY: the block has room for `len` bytes. The bytes take over the owner's reference, so no one can write
        // them. The creator of the arena has guaranteed that device memory is EAL's.
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
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(Header::data(self.header).as_ptr(), self.len) }
    }
}

impl Drop for ArenaMut {
    fn drop(&mut self) {
        // SAFETY: releases the owner's reference.
        unsafe { Header::release(self.header) }
    }
}

impl fmt::Debug for ArenaMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArenaMut({} bytes)", self.len)
    }
}

/// # Safety
/// As for [`OwnerVtable::share`].
unsafe fn share(owner: *const ()) {
    // SAFETY: the owner is the header of a block to which the caller holds a reference.
    unsafe { (*owner.cast::<Header>()).refs.share() }
}

/// # Safety
/// As for [`OwnerVtable::release`].
unsafe fn release(owner: *const ()) {
    // SAFETY: as above, and the owner came from a `NonNull`.
    unsafe { Header::release(NonNull::new_unchecked(owner.cast_mut().cast())) }
}

static PROCESS: OwnerVtable = OwnerVtable { memory: Memory::Process, pooled: false, share, release };
static DEVICE: OwnerVtable = OwnerVtable { memory: Memory::Device, pooled: false, share, release };
