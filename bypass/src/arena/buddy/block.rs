//! One piece: first written by one owner, then read by many, and then on its way back.

use super::Inner;
use super::return_list::ReturnList;
use super::tree::UNITS;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::refcount::RefCount;
use crate::{Bytes, Memory, OwnerVtable};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Where pieces come back to.
pub(super) struct Home {
    /// Pieces that have come back, by their numbers.
    pub(super) returned: ReturnList,
    /// What the owner left while there were pieces elsewhere.
    pub(super) left: std::sync::Mutex<Option<Box<Inner>>>,
}

/// What lies apart from a chunk's pieces, so that they are whole.
#[repr(C)]
pub(super) struct Entries {
    pub(super) entries: [Entry; UNITS],
    pub(super) home: *const Home,
    pub(super) number: u32,
}

pub(super) struct Entry {
    pub(super) holders: RefCount,
    /// Its unit while it is taken, the next that has come back when it has.
    pub(super) link: AtomicU32,
}

impl Entry {
    /// The entries that this is one of, and its unit.
    ///
    /// # Safety
    /// `this` is the entry of a piece that is taken.
    pub(super) unsafe fn place(this: NonNull<Entry>) -> (NonNull<Entries>, usize) {
        // SAFETY: the entry is there as long as the piece is; while it is taken, its link is its unit, by which it lies
        // behind the first of them, where they all begin.
        unsafe {
            let unit = this.as_ref().link.load(Ordering::Relaxed) as usize;
            (this.sub(unit).cast(), unit)
        }
    }

    /// Gives up one hold on the piece; it goes back if it was the last.
    ///
    /// # Safety
    /// The caller has that hold.
    unsafe fn release(this: NonNull<Entry>) {
        // SAFETY: the entry is there as long as the piece is held.
        let entry = unsafe { this.as_ref() };
        if !entry.holders.release() {
            return;
        }
        // SAFETY: the piece is not back yet.
        let (entries, unit) = unsafe { Entry::place(this) };
        // SAFETY: as above; and the hold on the home was taken for this piece in `Pieces::take`.
        let (number, home) = unsafe {
            let entries = entries.as_ptr();
            ((*entries).number as usize * UNITS + unit, Arc::from_raw((*entries).home))
        };
        home.returned.push(number as u32, &entry.link);
    }
}

/// A piece that has one owner, to be written. [`freeze`](Self::freeze) makes it [`Bytes`]; dropping it gives it back.
///
/// A fresh one holds whatever was there.
pub struct Piece {
    pub(super) entry: NonNull<Entry>,
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    pub(super) memory: Memory,
}

// SAFETY: the owner of the piece, alone; what others reach of its entry is atomic.
unsafe impl Send for Piece {}
// SAFETY: `&Piece` only reads.
unsafe impl Sync for Piece {}

impl Piece {
    /// Keeps the first `len` bytes; nothing happens when there are no more than that.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// No more writing: the bytes as they are now, to be shared.
    pub fn freeze(self) -> Bytes {
        let piece = std::mem::ManuallyDrop::new(self);
        let table = match piece.memory {
            Memory::Process => &PROCESS,
            Memory::Device => &DEVICE,
        };
        // SAFETY: the piece has room for `len` bytes, and the bytes take over this owner's hold: nobody is left who
        // could write. Device memory is what the maker of the arena vouched for.
        unsafe { Bytes::from_owner(piece.start, piece.len, piece.entry.as_ptr().cast(), table) }
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the piece has room for `len` bytes and no other owner. All memory of an arena is initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: this owner's hold.
        unsafe { Entry::release(self.entry) }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes)", self.len)
    }
}

/// # Safety
/// As [`OwnerVtable::share`].
unsafe fn share(owner: *const ()) {
    // SAFETY: the owner is the entry of a piece that the caller has a hold on.
    unsafe { (*owner.cast::<Entry>()).holders.share() }
}

/// # Safety
/// As [`OwnerVtable::release`].
unsafe fn release(owner: *const ()) {
    // SAFETY: as above, and the owner came from a `NonNull`.
    unsafe { Entry::release(NonNull::new_unchecked(owner.cast_mut().cast())) }
}

pub(super) static PROCESS: OwnerVtable = OwnerVtable { memory: Memory::Process, pooled: false, share, release };
pub(super) static DEVICE: OwnerVtable = OwnerVtable { memory: Memory::Device, pooled: false, share, release };
