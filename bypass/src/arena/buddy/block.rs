//! Buddy block: written by one owner, shared by readers, then returned.

use super::Inner;
use super::return_list::ReturnList;
use super::tree::UNITS;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::refcount::RefCount;
use linerate_service::{Bytes, Memory, OwnerVtable};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Destination of returned blocks.
pub(super) struct Home {
    /// Numbers of the returned blocks.
    pub(super) returned: ReturnList,
    /// Memory of an allocator that was dropped while blocks were allocated.
    pub(super) left: std::sync::Mutex<Option<Box<Inner>>>,
}

/// Metadata of the blocks of a chunk, outside of the chunk, so that blocks are powers of two.
#[repr(C)]
pub(super) struct Entries {
    pub(super) entries: [Entry; UNITS],
    pub(super) home: *const Home,
    pub(super) number: u32,
}

pub(super) struct Entry {
    pub(super) refs: RefCount,
    /// Unit of the block while it is allocated, next returned block afterwards.
    pub(super) link: AtomicU32,
}

impl Entry {
    /// Returns the table of an entry, and its unit.
    ///
    /// # Safety
    /// `this` is the entry of an allocated block.
    pub(super) unsafe fn table_and_unit(this: NonNull<Entry>) -> (NonNull<Entries>, usize) {
        // SAFETY: the entry lives as long as the block. While the block is allocated, the link is the unit, by which
        // the entry follows the first entry, where the table starts.
        unsafe {
            let unit = this.as_ref().link.load(Ordering::Relaxed) as usize;
            (this.sub(unit).cast(), unit)
        }
    }

    /// Releases a reference to the block. The last one returns the block.
    ///
    /// # Safety
    /// The caller gives up a reference.
    unsafe fn release(this: NonNull<Entry>) {
        // SAFETY: the caller's reference keeps the entry alive.
        let entry = unsafe { this.as_ref() };
        if !entry.refs.release() {
            return;
        }
        // SAFETY: the block has not been returned yet.
        let (entries, unit) = unsafe { Entry::table_and_unit(this) };
        // SAFETY: as above. The reference to `home` was added for this block in `BuddyArena::alloc_within`.
        let (number, home) = unsafe {
            let entries = entries.as_ptr();
            ((*entries).number as usize * UNITS + unit, Arc::from_raw((*entries).home))
        };
        home.returned.push(number as u32, &entry.link);
    }
}

/// Exclusively owned, writable block. [`freeze`](Self::freeze) converts it to [`Bytes`]; dropping it frees it. A new
/// block has unspecified contents.
pub struct BuddyMut {
    pub(super) entry: NonNull<Entry>,
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    pub(super) memory: Memory,
}

// SAFETY: the block is exclusively owned, and other threads access atomics of its entry only.
unsafe impl Send for BuddyMut {}
// SAFETY: `&BuddyMut` only reads.
unsafe impl Sync for BuddyMut {}

impl BuddyMut {
    /// Keeps the first `len` bytes, or all if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Converts the block to shared, immutable bytes.
    pub fn freeze(self) -> Bytes {
        let block = std::mem::ManuallyDrop::new(self);
        let table = match block.memory {
            Memory::Process => &PROCESS,
            Memory::Device => &DEVICE,
        };
        // SAFETY: the block has room for `len` bytes. The bytes take over the owner's reference, so no one can write
        // them. The creator of the arena has guaranteed that device memory is EAL's.
        unsafe { Bytes::from_owner(block.start, block.len, block.entry.as_ptr().cast(), table) }
    }
}

impl Deref for BuddyMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block has room for `len` bytes and no other owner. All memory of an arena is initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for BuddyMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for BuddyMut {
    fn drop(&mut self) {
        // SAFETY: releases the owner's reference.
        unsafe { Entry::release(self.entry) }
    }
}

impl fmt::Debug for BuddyMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuddyMut({} bytes)", self.len)
    }
}

/// # Safety
/// As for [`OwnerVtable::share`].
unsafe fn share(owner: *const ()) {
    // SAFETY: the owner is the entry of a block to which the caller holds a reference.
    unsafe { (*owner.cast::<Entry>()).refs.share() }
}

/// # Safety
/// As for [`OwnerVtable::release`].
unsafe fn release(owner: *const ()) {
    // SAFETY: as above, and the owner came from a `NonNull`.
    unsafe { Entry::release(NonNull::new_unchecked(owner.cast_mut().cast())) }
}

pub(super) static PROCESS: OwnerVtable = OwnerVtable { memory: Memory::Process, pooled: false, share, release };
pub(super) static DEVICE: OwnerVtable = OwnerVtable { memory: Memory::Device, pooled: false, share, release };
