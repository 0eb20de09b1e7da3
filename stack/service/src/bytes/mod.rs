//! Owned, shared slices of bytes.

#[cfg(feature = "bytes")]
mod convert;
mod queue;

pub use queue::{BytesQueue, VECTOR};

use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

/// Kind of memory in which [`Bytes`] lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Memory of this process that devices do not access.
    Process,
    /// Memory that the open DPDK ports can access: an mbuf, or an arena in EAL's memory.
    Device,
}

/// Functions and properties of one kind of owner of [`Bytes`].
pub struct OwnerVtable {
    /// Kind of memory.
    pub memory: Memory,
    /// True if the bytes occupy a buffer of a port's packet pool, which is not available for packets meanwhile.
    pub pooled: bool,
    /// Adds a reference to the owner.
    ///
    /// # Safety
    /// The argument is the `owner` of a live `Bytes` created with this table.
    pub share: unsafe fn(*const ()),
    /// Releases a reference to the owner, on any thread.
    ///
    /// # Safety
    /// The argument is the `owner` of a `Bytes` created with this table, which is not used afterwards.
    pub release: unsafe fn(*const ()),
}

/// Immutable bytes with shared ownership of their memory: an mbuf, an arena block, a vector, or a static.
///
/// A clone adds a reference and copies nothing; a slice covers a part. `Bytes` may be sent to and dropped on any
/// thread: the memory returns to its pool from there.
///
/// ```
/// use linerate_service::Bytes;
/// let mut line = Bytes::from(b"GET key\r\n".to_vec());
/// let verb = line.split_to(3);
/// line.advance(1);
/// assert_eq!(&verb[..], b"GET");
/// assert_eq!(&line[..], b"key\r\n");
/// ```
pub struct Bytes {
    start: NonNull<u8>,
    len: usize,
    owner: *const (),
    table: &'static OwnerVtable,
}

// SAFETY: the bytes are never written while a `Bytes` exists (contract of `from_owner`), and the functions of the
// table may be called on any thread (contract of `OwnerVtable`).
unsafe impl Send for Bytes {}
// SAFETY: as above; `&Bytes` allows reading and `clone`, and `share` may be called on several threads at once
// (contract of `from_owner`).
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Creates empty bytes.
    pub const fn new() -> Self {
        Bytes::from_static(&[])
    }

    /// Creates bytes from a static slice.
    pub const fn from_static(bytes: &'static [u8]) -> Self {
        Bytes {
            // SAFETY: the pointer of a slice is never null.
            start: unsafe { NonNull::new_unchecked(bytes.as_ptr().cast_mut()) },
            len: bytes.len(),
            owner: std::ptr::null(),
            table: &STATIC,
        }
    }

    /// Creates bytes whose memory `owner` keeps alive through `table`. Takes over one reference to the owner.
    ///
    /// # Safety
    /// - `start` must be valid for reads of `len` bytes, and no one may write them, until `table.release(owner)` has
    ///   been called once for this value and once for each `table.share(owner)`.
    /// - The functions of `table` may be called with `owner` on any thread, several at once.
    /// - With [`Memory::Device`], the bytes must lie in memory that EAL allocated.
    #[inline]
    pub unsafe fn from_owner(start: NonNull<u8>, len: usize, owner: *const (), table: &'static OwnerVtable) -> Self {
        Bytes { start, len, owner, table }
    }

    /// Returns the kind of memory.
    #[inline]
    pub fn memory(&self) -> Memory {
        self.table.memory
    }

    /// Returns whether the bytes occupy a buffer of a port's packet pool.
    #[inline]
    pub fn is_pooled(&self) -> bool {
        self.table.pooled
    }

    /// Returns whether the bytes are a vector or a part of one, which they keep as a whole.
    #[inline]
    pub fn is_vec(&self) -> bool {
        std::ptr::eq(self.table, &HEAP)
    }

    /// Returns the owner, if it is of the kind `table`.
    #[inline]
    pub fn owner_of(&self, table: &'static OwnerVtable) -> Option<*const ()> {
        std::ptr::eq(self.table, table).then_some(self.owner)
    }

    /// Returns another handle to the `range` of these bytes. Copies nothing.
    ///
    /// # Panics
    /// If the range does not lie within the bytes.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Bytes {
        let part = &self[(range.start_bound().cloned(), range.end_bound().cloned())];
        let start = NonNull::from(part).cast();
        let len = part.len();
        let mut slice = self.clone();
        slice.start = start;
        slice.len = len;
        slice
    }

    /// Drops the first `n` bytes.
    ///
    /// # Panics
    /// If `n` exceeds the length.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len, "cannot advance {n} bytes in {}", self.len);
        // SAFETY: `n <= len`, so the result points into the same slice or to its end.
        self.start = unsafe { self.start.add(n) };
        self.len -= n;
    }

    /// Keeps the first `n` bytes, or all if there are fewer.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }

    /// Splits off and returns the first `n` bytes.
    ///
    /// # Panics
    /// If `n` exceeds the length.
    #[inline]
    pub fn split_to(&mut self, n: usize) -> Bytes {
        if n == self.len {
            return std::mem::take(self);
        }
        let front = self.slice(..n);
        self.advance(n);
        front
    }
}

impl Drop for Bytes {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `owner` belongs to `table`, and this value's reference is released once, here.
        unsafe { (self.table.release)(self.owner) }
    }
}

impl Clone for Bytes {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: `owner` belongs to `table` and is alive through this value.
        unsafe { (self.table.share)(self.owner) };
        Bytes { ..*self }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: readable and not written while this value holds its reference (contract of `from_owner`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes::new()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        // Two allocations: vectors become shared bytes outside the data path only.
        Bytes::from(Arc::new(bytes))
    }
}

impl From<Arc<Vec<u8>>> for Bytes {
    /// Shares the vector. Its other owners can modify it once these bytes and all slices of them have been dropped
    /// ([`Arc::get_mut`]).
    fn from(owner: Arc<Vec<u8>>) -> Self {
        let start = NonNull::from(owner.as_slice()).cast();
        let len = owner.len();
        // SAFETY: the vector lives and is not written while a reference to the `Arc` exists.
        unsafe { Bytes::from_owner(start, len, Arc::into_raw(owner).cast(), &HEAP) }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

static STATIC: OwnerVtable = OwnerVtable { memory: Memory::Process, pooled: false, share: |_| {}, release: |_| {} };

static HEAP: OwnerVtable = OwnerVtable {
    memory: Memory::Process,
    pooled: false,
    // SAFETY: the owner came from `Arc::into_raw`, and the caller holds a reference to it.
    share: |owner| unsafe { Arc::increment_strong_count(owner.cast::<Vec<u8>>()) },
    // SAFETY: the owner came from `Arc::into_raw`, and the caller gives up a reference to it.
    release: |owner| unsafe { Arc::decrement_strong_count(owner.cast::<Vec<u8>>()) },
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn slices_share_memory_and_move_the_ends() {
        let whole = Bytes::from((0..100).collect::<Vec<u8>>());
        let part = whole.slice(10..20);
        assert_eq!(part.as_ptr(), whole[10..].as_ptr());
        assert_eq!(part.slice(3..), whole.slice(13..20));
        let mut rest = part.clone();
        let front = rest.split_to(4);
        assert_eq!((&front[..], &rest[..]), (&whole[10..14], &whole[14..20]));
        rest.truncate(1);
        assert_eq!(&rest[..], [14]);
    }

    #[test]
    fn shared_vector_is_reusable_once_its_slices_are_dropped() {
        let mut vector = Arc::new(vec![1, 2, 3]);
        let mut bytes = Bytes::from(vector.clone());
        let front = bytes.split_to(1);
        assert_eq!((front.as_ptr(), &bytes[..]), (vector.as_ptr(), &[2, 3][..]));
        drop(bytes);
        assert!(Arc::get_mut(&mut vector).is_none());
        drop(front);
        Arc::get_mut(&mut vector).unwrap().push(4);
    }

    #[test]
    #[should_panic(expected = "range end index 11 out of range")]
    fn slice_beyond_the_end_panics() {
        let _ = Bytes::from(vec![0; 10]).slice(5..11);
    }

    #[test]
    fn slice_accepts_every_kind_of_range() {
        use std::ops::Bound::{Excluded, Unbounded};
        let digits = Bytes::from_static(b"0123456789");
        assert_eq!(digits.slice(..), digits);
        assert_eq!(&digits.slice(7..)[..], b"789");
        assert_eq!(&digits.slice(..=1)[..], b"01");
        assert_eq!(&digits.slice((Excluded(7), Unbounded))[..], b"89");
        assert!(digits.slice(10..).is_empty());
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn slice_to_the_largest_index_panics_without_wrapping() {
        let _ = Bytes::from(vec![0; 10]).slice(..=usize::MAX);
    }

    #[test]
    #[should_panic(expected = "cannot advance 11 bytes in 10")]
    fn advance_beyond_the_end_panics() {
        Bytes::from(vec![0; 10]).advance(11);
    }

    #[test]
    fn owner_is_released_once_per_handle_on_any_thread() {
        static HANDLES: AtomicUsize = AtomicUsize::new(1);
        static COUNTED: OwnerVtable = OwnerVtable {
            memory: Memory::Process,
            pooled: false,
            share: |_| {
                HANDLES.fetch_add(1, Ordering::SeqCst);
            },
            release: |_| {
                HANDLES.fetch_sub(1, Ordering::SeqCst);
            },
        };
        // SAFETY: the bytes are static, and the table only counts.
        let mut bytes = unsafe { Bytes::from_owner(NonNull::from(b"abcdef").cast(), 6, std::ptr::null(), &COUNTED) };
        let clone = bytes.clone();
        let front = bytes.split_to(2);
        assert_eq!(HANDLES.load(Ordering::SeqCst), 3);
        let all = bytes.split_to(4);
        assert!(bytes.is_empty());
        drop(bytes);
        assert_eq!(HANDLES.load(Ordering::SeqCst), 3);
        std::thread::spawn(move || drop((clone, front, all))).join().unwrap();
        assert_eq!(HANDLES.load(Ordering::SeqCst), 0);
    }
}
