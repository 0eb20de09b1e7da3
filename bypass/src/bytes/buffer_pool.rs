//! Blocks of memory that are filled by their only owner, shared as [`Bytes`], and used again.

use crate::{Bytes, Memory, OwnerVtable};
use crossbeam_queue::ArrayQueue;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// Where the rest of a buffer begins after a split: at a multiple of this, so that two owners share no cache line.
const LINE: usize = 64;

/// A pool of buffers of one size, on the heap.
///
/// A [`Buffer`] belongs to one owner, who fills it and hands parts of it out as [`Bytes`]. When the buffer and all
/// of its parts have been dropped, on whatever thread, it is back in the pool.
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
    home: Arc<Home>,
}

struct Home {
    idle: ArrayQueue<Box<Header>>,
    buffer_size: usize,
    limit: usize,
    /// Blocks in existence, idle ones included.
    live: AtomicUsize,
}

/// What a buffer and its parts point to. It lies in a box that is given up while anyone refers to it, and is a
/// box again in the pool.
struct Header {
    refs: AtomicUsize,
    /// `size` bytes of the buffer's own, made and freed with the header.
    data: NonNull<u8>,
    size: usize,
    /// The pool; `None` while the buffer lies in it, lest the two keep each other alive.
    home: Option<Arc<Home>>,
}

// SAFETY: `data` is memory of the header's own; whoever has the header has it, on whatever thread.
unsafe impl Send for Header {}

impl Header {
    fn new(size: usize) -> Box<Header> {
        let data = Box::into_raw(vec![0u8; size].into_boxed_slice());
        // SAFETY: a box is never null.
        let data = unsafe { NonNull::new_unchecked(data.cast()) };
        Box::new(Header { refs: AtomicUsize::new(0), data, size, home: None })
    }
}

impl Drop for Header {
    fn drop(&mut self) {
        // SAFETY: `data` and `size` are those of the boxed slice that `new` gave up, and are dropped once, here.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.data.as_ptr(), self.size)) });
    }
}

impl BufferPool {
    /// A pool of buffers of `buffer_size` bytes, of which at most `limit` exist at a time. Of those nobody uses it
    /// keeps `keep` and frees the rest. None is made before it is asked for.
    ///
    /// # Panics
    /// If `buffer_size` or `keep` is 0.
    pub fn new(buffer_size: usize, keep: usize, limit: usize) -> Self {
        assert!(buffer_size > 0, "a buffer needs at least one byte");
        let home = Home { idle: ArrayQueue::new(keep), buffer_size, limit, live: AtomicUsize::new(0) };
        BufferPool { home: Arc::new(home) }
    }

    /// Takes a buffer, with whatever was in it; `None` when `limit` buffers are in use.
    pub fn take(&self) -> Option<Buffer> {
        let home = &self.home;
        let mut header = match home.idle.pop() {
            Some(header) => header,
            None => {
                let below = |live| (live < home.limit).then_some(live + 1);
                home.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
                Header::new(home.buffer_size)
            }
        };
        *header.refs.get_mut() = 1;
        header.home = Some(self.home.clone());
        // SAFETY: a box is never null.
        let header = unsafe { NonNull::new_unchecked(Box::into_raw(header)) };
        Some(Buffer { header, start: 0 })
    }

    /// The size of a buffer in bytes.
    pub fn buffer_size(&self) -> usize {
        self.home.buffer_size
    }

    /// Blocks that are out: those that somebody has, or has a part of. Exact only while nobody takes or drops one.
    pub fn in_use(&self) -> usize {
        self.home.live.load(Ordering::Relaxed).saturating_sub(self.home.idle.len())
    }
}

/// A buffer, or the rest of one after [`split_to`](Self::split_to): bytes of which this is the only owner.
pub struct Buffer {
    header: NonNull<Header>,
    /// Where the part begins that has not been split off.
    start: usize,
}

// SAFETY: a buffer is the only way to its bytes from `start` on, and the header is made for several threads.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` only reads: the bytes, which nobody writes without `&mut Buffer`, and atomics.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn header(&self) -> &Header {
        // SAFETY: the header lives as long as a reference counted in it does, and this buffer holds one. While
        // any does, it is only ever shared.
        unsafe { self.header.as_ref() }
    }

    /// Splits the first `n` bytes off, to be shared and no longer written. The rest begins at the next cache
    /// line.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, n: usize) -> Bytes {
        assert!(n <= self.len(), "cannot split {n} bytes off {}", self.len());
        if n == 0 {
            return Bytes::new();
        }
        let header = self.header();
        // SAFETY: `start` is within the buffer: `n <= len` bytes follow it.
        let first = unsafe { header.data.add(self.start) };
        // Relaxed as in `Arc`: a new reference is only made from one that is held.
        header.refs.fetch_add(1, Ordering::Relaxed);
        self.start = (self.start + n).next_multiple_of(LINE).min(header.size);
        // SAFETY: the `n` bytes from `first` live until the reference just counted is released, and `start` has
        // moved past them, so that this buffer, the only one who could, writes them no more: `reset` moves back
        // only when all other references are gone. `OWNER`'s functions work on any thread.
        unsafe { Bytes::from_owner(first, n, self.header.as_ptr().cast_const().cast(), &OWNER) }
    }

    /// Shares the first `n` bytes and gives the rest up.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn freeze(mut self, n: usize) -> Bytes {
        self.split_to(n)
    }

    /// Makes the buffer whole again if every part split off has been dropped, and returns whether that was so.
    pub fn reset(&mut self) -> bool {
        // Acquire: what the last reader of a part did comes before what is written next.
        let alone = self.header().refs.load(Ordering::Acquire) == 1;
        if alone {
            self.start = 0;
        }
        alone
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let header = self.header();
        // SAFETY: `start <= size`, the bytes are initialised, and from `start` on no `Bytes` covers them.
        unsafe { std::slice::from_raw_parts(header.data.add(self.start).as_ptr(), header.size - self.start) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let header = self.header();
        // SAFETY: as in `deref`; and this buffer, borrowed alone here, is the only way to these bytes.
        unsafe { std::slice::from_raw_parts_mut(header.data.add(self.start).as_ptr(), header.size - self.start) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the buffer's own reference is given back once, here.
        unsafe { release(self.header.as_ptr().cast_const().cast()) }
    }
}

static OWNER: OwnerVtable = OwnerVtable { memory: Memory::Process, pooled: false, share, release };

/// Takes one more reference.
///
/// # Safety
/// `owner` is the header of a buffer of which the caller holds a reference.
unsafe fn share(owner: *const ()) {
    // SAFETY: the caller's reference keeps the header alive.
    unsafe { &*owner.cast::<Header>() }.refs.fetch_add(1, Ordering::Relaxed);
}

/// Gives a reference back; with the last one, the buffer goes home.
///
/// # Safety
/// `owner` is the header of a buffer of which the caller gives a reference up.
unsafe fn release(owner: *const ()) {
    let header = owner.cast::<Header>();
    // SAFETY: the caller's reference keeps the header alive. Release, and the fence below: what others did with
    // the bytes comes before their next use.
    if unsafe { &*header }.refs.fetch_sub(1, Ordering::Release) != 1 {
        return;
    }
    fence(Ordering::Acquire);
    // SAFETY: `take` gave this box up, and the last reference is gone: nobody else can reach it.
    let mut header = unsafe { Box::from_raw(header.cast_mut()) };
    if let Some(home) = header.home.take()
        && let Err(surplus) = home.idle.push(header)
    {
        drop(surplus);
        home.live.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_bytes_while_the_rest_is_written() {
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
    fn a_block_comes_back_when_its_last_part_is_dropped_on_any_thread() {
        let pool = BufferPool::new(64, 2, 2);
        let buffer = pool.take().unwrap();
        let place = buffer.as_ptr();
        let bytes = buffer.freeze(5);
        let other = bytes.slice(1..2);
        drop(bytes);
        assert_eq!(pool.in_use(), 1);
        std::thread::spawn(move || drop(other)).join().unwrap();
        assert_eq!(pool.in_use(), 0);
        assert_eq!(pool.take().unwrap().as_ptr(), place);
    }

    #[test]
    fn no_more_than_the_limit_exist_and_no_more_than_asked_are_kept() {
        let pool = BufferPool::new(64, 1, 3);
        let buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((buffers.len(), pool.in_use()), (3, 3));
        drop(buffers);
        assert_eq!((pool.in_use(), pool.home.live.load(Ordering::Relaxed)), (0, 1));
        let again: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(again.len(), 3, "dropping makes room again");
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
    fn parts_may_be_shared_and_dropped_by_many_threads_at_once() {
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
    fn splitting_off_more_than_there_is_panics() {
        BufferPool::new(64, 1, 1).take().unwrap().split_to(65);
    }
}
