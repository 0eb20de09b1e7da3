//! Copies of short received slices.

use linerate_bypass::{Buffer, BufferPool};
use linerate_service::Bytes;
use std::cell::{OnceCell, RefCell};

/// Longest slice that is copied. The copy takes fewer instructions than taking the packet, and a task that keeps the
/// bytes does not keep a packet of the port.
pub(crate) const SHORT: usize = 256;
/// Size of a buffer, which is shared by many copies.
const BUFFER_SIZE: usize = 16 << 10;
/// Maximum number of buffers of a worker.
const BUFFERS: usize = 256;
/// Maximum number of idle buffers that are kept for reuse.
const KEPT: usize = 16;

/// Buffers of one worker for copies of short slices.
#[derive(Default)]
pub(crate) struct ShortReads {
    pool: OnceCell<BufferPool>,
    current: RefCell<Option<Buffer>>,
}

impl ShortReads {
    /// Returns a copy of `slice` if it has 1 to [`SHORT`] bytes. Returns `None` otherwise, and if the copies in use
    /// occupy all buffers.
    #[inline]
    pub fn copy(&self, slice: &[u8]) -> Option<Bytes> {
        if slice.is_empty() || slice.len() > SHORT {
            return None;
        }
        let mut current = self.current.borrow_mut();
        if let Some(buffer) = &mut *current
            && let Some(copy) = buffer.split_copy(slice)
        {
            return Some(copy);
        }
        self.renew(&mut current)?.split_copy(slice)
    }

    /// Provides an empty buffer: the current one if all of its copies have been dropped, or another one.
    #[inline(never)]
    fn renew<'a>(&self, current: &'a mut Option<Buffer>) -> Option<&'a mut Buffer> {
        if !current.as_mut().is_some_and(Buffer::reset) {
            let pool = self.pool.get_or_init(|| BufferPool::new(BUFFER_SIZE, KEPT, BUFFERS));
            // The buffer is shared by its copies until the last of them is dropped.
            *current = None;
            *current = pool.take();
        }
        current.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_independent_and_bounded() {
        let reads = ShortReads::default();
        let mut held: Vec<Bytes> = Vec::new();
        while let Some(copy) = reads.copy(&[held.len() as u8; SHORT]) {
            held.push(copy);
            assert!(held.len() * SHORT <= BUFFERS * BUFFER_SIZE);
        }
        assert_eq!(held.len(), BUFFERS * BUFFER_SIZE / SHORT);
        assert!(held.iter().enumerate().all(|(n, bytes)| bytes[..] == [n as u8; SHORT]));
        held.clear();
        assert_eq!(reads.copy(b"again").as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn buffer_is_used_again_once_its_copies_are_dropped() {
        let reads = ShortReads::default();
        for _ in 0..10 * BUFFERS * BUFFER_SIZE / SHORT {
            reads.copy(&[1; SHORT]).expect("no copy is held");
        }
        assert_eq!(reads.pool.get().map(BufferPool::in_use), Some(1));
    }
}
