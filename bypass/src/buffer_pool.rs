//! Pool of reusable heap buffers, shared in parts as [`Bytes`].

use crate::sync::refcount::RefCount;
use crossbeam_queue::ArrayQueue;
use linerate_service::{Bytes, Memory, OwnerVtable};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of the rest of a buffer after a split, so that two owners share no cache line.
const LINE: usize = 64;

/// Pool of heap buffers of one size.
///
/// A [`Buffer`] has one owner, which fills it and splits parts off as [`Bytes`]. The buffer returns to the pool when it
/// and all of its parts have been dropped, on any thread.
///
/// ```
/// use linerate_bypass::BufferPool;
/// let pool = BufferPool::new(4096, 8, 64);
/// let mut buffer = pool.take().unwrap();
/// buffer[..5].copy_from_slice(b"hello");
/// let hello = buffer.split_to(5);
/// buffer[..5].copy_from_slice(b"world");
/// assert_eq!((&hello[..], &buffer.freeze(5)[..]), (&b"hello"[..], &b"world"[..]));
/// ```
#[derive(Clone)]
pub struct BufferPool {
    pool: Arc<Pool>,
}

struct Pool {
    idle: ArrayQueue<Box<Header>>,
    buffer_size: usize,
    limit: usize,
    /// Number of buffers that exist, idle ones included.
    live: AtomicUsize,
}

/// Header of a buffer, to which the buffer and its parts point. It is a leaked box while it is referenced, and a box
/// again in the pool.
struct Header {
    refs: RefCount,
    /// Memory of `size` bytes, allocated and freed with the header.
    data: NonNull<u8>,
    size: usize,
    /// The pool; `None` while the buffer is idle, which prevents a reference cycle.
    pool: Option<Arc<Pool>>,
}

// SAFETY: the header owns `data`, so both may move to another thread together.
unsafe impl Send for Header {}

impl Header {
    fn new(size: usize) -> Box<Header> {
        let data = Box::into_raw(vec![0u8; size].into_boxed_slice());
        // SAFETY: a box is never null.
        let data = unsafe { NonNull::new_unchecked(data.cast()) };
        Box::new(Header { refs: RefCount::one(), data, size, pool: None })
    }
}

impl Drop for Header {
    fn drop(&mut self) {
        // SAFETY: `data` and `size` are those of the boxed slice that `new` leaked. They are dropped once, here.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.data.as_ptr(), self.size)) });
    }
}

impl BufferPool {
    /// Creates a pool of buffers of `buffer_size` bytes, at most `limit` at a time. Up to `keep` idle buffers are kept,
    /// the others are freed. Buffers are allocated on demand.
    ///
    /// # Panics
    /// If `buffer_size` or `keep` is 0.
    pub fn new(buffer_size: usize, keep: usize, limit: usize) -> Self {
        assert!(buffer_size > 0, "a buffer needs at least one byte");
        let pool = Pool { idle: ArrayQueue::new(keep), buffer_size, limit, live: AtomicUsize::new(0) };
        BufferPool { pool: Arc::new(pool) }
    }

    /// Takes a buffer with unspecified contents. Returns `None` if `limit` buffers are in use.
    pub fn take(&self) -> Option<Buffer> {
        let pool = &self.pool;
        let mut header = match pool.idle.pop() {
            Some(header) => header,
            None => {
                let below = |live| (live < pool.limit).then_some(live + 1);
                pool.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
                Header::new(pool.buffer_size)
            }
        };
        header.refs.restart();
        header.pool = Some(self.pool.clone());
        // SAFETY: a box is never null.
        let header = unsafe { NonNull::new_unchecked(Box::into_raw(header)) };
        Some(Buffer { header, start: 0 })
    }

    /// Returns a copy of `bytes`, on the heap if it exceeds a buffer or the limit of buffers is reached.
    pub fn copy(&self, bytes: &[u8]) -> Bytes {
        match self.take() {
            Some(mut buffer) if bytes.len() <= buffer.len() => {
                buffer[..bytes.len()].copy_from_slice(bytes);
                buffer.freeze(bytes.len())
            }
            _ => Bytes::from(bytes.to_vec()),
        }
    }

    /// Returns the size of a buffer in bytes.
    pub fn buffer_size(&self) -> usize {
        self.pool.buffer_size
    }

    /// Returns the number of buffers in use, parts included. Exact only without concurrent use of the pool.
    pub fn in_use(&self) -> usize {
        self.pool.live.load(Ordering::Relaxed).saturating_sub(self.pool.idle.len())
    }
}

/// Exclusively owned buffer, or the rest of one after [`split_to`](Self::split_to).
pub struct Buffer {
    header: NonNull<Header>,
    /// Offset of the rest that has not been split off.
    start: usize,
}

// SAFETY: a buffer is the only access to its bytes from `start` on, and all other header fields are thread-safe.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` reads bytes, which are written through `&mut Buffer` only, and atomics.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn header(&self) -> &Header {
        // SAFETY: the header lives while it is referenced, and this buffer holds a reference. While it is referenced,
        // it is accessed through shared references only.
        unsafe { self.header.as_ref() }
    }

    /// Splits off the first `n` bytes as shared, immutable bytes. The rest starts at the next cache line.
    ///
    /// # Panics
    /// If `n` exceeds the length.
    pub fn split_to(&mut self, n: usize) -> Bytes {
        assert!(n <= self.len(), "cannot split {n} bytes off {}", self.len());
        if n == 0 {
            return Bytes::new();
        }
        let header = self.header();
        // SAFETY: `start` is within the buffer, and `n <= len` bytes follow it.
        let first = unsafe { header.data.add(self.start) };
        header.refs.share();
        self.start = (self.start + n).next_multiple_of(LINE).min(header.size);
        // SAFETY: the `n` bytes from `first` live until the reference just counted is released. `start` has moved past
        // them, so this buffer, the only writer, does not write them: `reset` moves `start` back only when all other
        // references are gone. The functions of `OWNER` may be called on any thread.
        unsafe { Bytes::from_owner(first, n, self.header.as_ptr().cast_const().cast(), &OWNER) }
    }

    /// Copies `bytes` to the front and splits the copy off. Returns `None` if it does not fit.
    pub fn split_copy(&mut self, bytes: &[u8]) -> Option<Bytes> {
        let front = self.get_mut(..bytes.len())?;
        front.copy_from_slice(bytes);
        Some(self.split_to(bytes.len()))
    }

    /// Shares the first `n` bytes and drops the rest.
    ///
    /// # Panics
    /// If `n` exceeds the length.
    pub fn freeze(mut self, n: usize) -> Bytes {
        self.split_to(n)
    }

    /// Restores the full length if all parts have been dropped. Returns whether they have.
    pub fn reset(&mut self) -> bool {
        let unshared = self.header().refs.is_sole();
        if unshared {
            self.start = 0;
        }
        unshared
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let header = self.header();
        // SAFETY: `start <= size`, the bytes are initialised, and no `Bytes` covers them from `start` on.
        unsafe { std::slice::from_raw_parts(header.data.add(self.start).as_ptr(), header.size - self.start) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let header = self.header();
        // SAFETY: as in `deref`; `&mut self` is the only access to these bytes.
        unsafe { std::slice::from_raw_parts_mut(header.data.add(self.start).as_ptr(), header.size - self.start) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the buffer's reference is released once, here.
        unsafe { release(self.header.as_ptr().cast_const().cast()) }
    }
}

static OWNER: OwnerVtable = OwnerVtable { memory: Memory::Process, pooled: false, share, release };

/// Adds a reference.
///
/// # Safety
/// `owner` is the header of a buffer, and the caller holds a reference.
unsafe fn share(owner: *const ()) {
    // SAFETY: the caller's reference keeps the header alive.
    unsafe { &*owner.cast::<Header>() }.refs.share();
}

/// Releases a reference. The last one returns the buffer to its pool.
///
/// # Safety
/// `owner` is the header of a buffer, and the caller gives up a reference.
unsafe fn release(owner: *const ()) {
    let header = owner.cast::<Header>();
    // SAFETY: the caller's reference keeps the header alive.
    if unsafe { &*header }.refs.release() {
        // SAFETY: the last reference is gone.
        unsafe { recycle(header) }
    }
}

/// Returns a buffer to its pool.
///
/// # Safety
/// `take` leaked the box of `header`, and there is no reference to it.
#[inline(never)]
unsafe fn recycle(header: *const Header) {
    // SAFETY: `take` leaked this box, and this is the only access.
    let mut header = unsafe { Box::from_raw(header.cast_mut()) };
    if let Some(pool) = header.pool.take()
        && let Err(surplus) = pool.idle.push(header)
    {
        drop(surplus);
        pool.live.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_unchanged_while_the_rest_is_written() {
        let pool = BufferPool::new(256, 1, 1);
        let mut buffer = pool.take().unwrap();
        buffer.fill(1);
        let first = buffer.split_to(10);
        assert_eq!(buffer.len(), 256 - LINE);
        buffer.fill(2);
        let second = buffer.split_to(256 - LINE);
        assert!(buffer.is_empty());
        assert!(first.iter().all(|&b| b == 1) && second.iter().all(|&b| b == 2));
        assert!(!buffer.reset());
        drop((first, second.clone()));
        assert!(!buffer.reset());
        drop(second);
        assert!(buffer.reset());
        assert_eq!(buffer.len(), 256);
    }

    #[test]
    fn copies_are_split_off_until_the_buffer_is_full() {
        let mut buffer = BufferPool::new(128, 1, 1).take().unwrap();
        let first = buffer.split_copy(b"first").unwrap();
        assert_eq!(buffer.len(), 128 - LINE);
        assert!(buffer.split_copy(&[0; 128 - LINE + 1]).is_none());
        let second = buffer.split_copy(&[2; 128 - LINE]).unwrap();
        assert_eq!((&first[..], &second[..]), (&b"first"[..], &[2; 128 - LINE][..]));
        assert!(buffer.split_copy(&[3]).is_none());
    }

    #[test]
    fn buffer_returns_when_its_last_part_is_dropped_on_any_thread() {
        let pool = BufferPool::new(64, 2, 2);
        let buffer = pool.take().unwrap();
        let address = buffer.as_ptr();
        let bytes = buffer.freeze(5);
        let other = bytes.slice(1..2);
        drop(bytes);
        assert_eq!(pool.in_use(), 1);
        std::thread::spawn(move || drop(other)).join().unwrap();
        assert_eq!(pool.in_use(), 0);
        assert_eq!(pool.take().unwrap().as_ptr(), address);
    }

    #[test]
    fn pool_honours_its_limit_and_keeps_few_idle_buffers() {
        let pool = BufferPool::new(64, 1, 3);
        let buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((buffers.len(), pool.in_use()), (3, 3));
        drop(buffers);
        assert_eq!((pool.in_use(), pool.pool.live.load(Ordering::Relaxed)), (0, 1));
        let again: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(again.len(), 3, "dropping makes room again");
    }

    #[test]
    fn copies_are_exact_for_any_size_and_count() {
        const SIZE: usize = 2048;
        const LIMIT: usize = if cfg!(miri) { 20 } else { 1 << 14 };
        let pool = BufferPool::new(SIZE, 256, LIMIT);
        let of = |n: usize| (0..n).map(|i| (i * 7) as u8).collect::<Vec<_>>();
        for n in [0, 1, SIZE - 1, SIZE, SIZE + 1, 9000] {
            assert_eq!(&pool.copy(&of(n))[..], of(n));
        }
        let held: Vec<_> = (0..LIMIT + 10).map(|n| pool.copy(&n.to_be_bytes())).collect();
        assert!(held.iter().enumerate().all(|(n, bytes)| bytes[..] == n.to_be_bytes()));
        drop(held);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn parts_outlive_the_pool() {
        let pool = BufferPool::new(64, 1, 1);
        let mut buffer = pool.take().unwrap();
        drop(pool);
        buffer[..3].copy_from_slice(b"abc");
        assert_eq!(&buffer.freeze(3)[..], b"abc");
    }

    #[test]
    fn parts_are_shared_and_dropped_on_many_threads() {
        let pool = BufferPool::new(1024, 4, 4);
        for round in 0..if cfg!(miri) { 5 } else { 200u8 } {
            let mut buffer = pool.take().unwrap();
            let threads: Vec<_> = (0..3)
                .map(|n| {
                    buffer[..100].fill(round ^ n);
                    let part = buffer.split_to(100);
                    std::thread::spawn(move || {
                        let copies = [part.clone(), part.slice(50..), part];
                        assert!(copies.iter().all(|copy| copy.iter().all(|&b| b == round ^ n)));
                    })
                })
                .collect();
            drop(buffer);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(pool.in_use(), 0);
        }
    }

    #[test]
    #[should_panic(expected = "cannot split 65 bytes off 64")]
    fn split_beyond_the_end_panics() {
        BufferPool::new(64, 1, 1).take().unwrap().split_to(65);
    }
}
