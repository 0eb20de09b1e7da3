//! Queue of byte slices.

use crate::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Maximum number of slices in one vectored write.
pub const VECTOR: usize = 64;

/// Number of slices that a queue may hold regardless of their size. Beyond it, slices should average [`WORTHWHILE`]
/// bytes, because a slice keeps its whole buffer.
const SLICES: usize = 64;
const WORTHWHILE: usize = 4096;

/// Queue of non-empty byte slices, in order.
#[derive(Debug, Default)]
pub struct BytesQueue {
    slices: VecDeque<Bytes>,
    len: usize,
}

impl BytesQueue {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of slices.
    pub fn slices(&self) -> usize {
        self.slices.len()
    }

    /// Appends `bytes`.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.slices.push_back(bytes);
        }
    }

    /// Prepends `bytes`.
    pub fn push_front(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.slices.push_front(bytes);
        }
    }

    /// Returns the first slice, or an empty one.
    pub fn front(&self) -> &[u8] {
        self.slices.front().map_or(&[], |slice| slice)
    }

    /// Removes and returns the first slice, or its first `max` bytes.
    pub fn take(&mut self, max: usize) -> Option<Bytes> {
        let front = self.slices.front_mut()?;
        if max == 0 {
            return None;
        }
        let taken = if front.len() > max { front.split_to(max) } else { self.slices.pop_front()? };
        self.len -= taken.len();
        Some(taken)
    }

    /// Drops the first `n` bytes, or all if there are fewer.
    pub fn advance(&mut self, n: usize) {
        let mut left = n.min(self.len);
        self.len -= left;
        while left > 0 {
            let Some(front) = self.slices.front_mut() else { break };
            if front.len() > left {
                front.advance(left);
                break;
            }
            left -= front.len();
            self.slices.pop_front();
        }
    }

    /// Drops all bytes.
    pub fn clear(&mut self) {
        self.slices.clear();
        self.len = 0;
    }

    /// Stores the first slices for one vectored write into `into`. Returns their number and total length.
    pub fn vector<'a>(&'a self, into: &mut [IoSlice<'a>; VECTOR]) -> (usize, usize) {
        let mut len = 0;
        let mut n = 0;
        for (slot, slice) in into.iter_mut().zip(&self.slices) {
            *slot = IoSlice::new(slice);
            len += slice.len();
            n += 1;
        }
        (n, len)
    }

    /// Returns whether the slices keep too much memory because they are many and short.
    pub fn is_scattered(&self) -> bool {
        self.slices.len() > SLICES + self.len / WORTHWHILE
    }

    /// Copies all bytes into one slice of its own memory. Returns their number.
    pub fn gather(&mut self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut all = Vec::with_capacity(self.len);
        self.slices.drain(..).for_each(|slice| all.extend_from_slice(&slice));
        self.slices.push_back(Bytes::from(all));
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(parts: &[&'static str]) -> BytesQueue {
        let mut queue = BytesQueue::default();
        parts.iter().for_each(|part| queue.push(Bytes::from_static(part.as_bytes())));
        queue
    }

    #[test]
    fn bytes_leave_in_order_in_whole_slices_or_parts() {
        let mut queue = queue(&["abc", "", "defg", "h"]);
        assert_eq!((queue.len(), queue.slices()), (8, 3));
        assert_eq!(&queue.take(2).unwrap()[..], b"ab");
        queue.push_front(Bytes::from_static(b"b"));
        assert_eq!((queue.front(), queue.len(), queue.slices()), (&b"b"[..], 7, 4));
        queue.advance(1);
        assert_eq!(queue.front(), b"c");
        queue.advance(2);
        assert_eq!(queue.front(), b"efg");
        assert_eq!(queue.take(0), None);
        assert_eq!(&queue.take(100).unwrap()[..], b"efg");
        queue.advance(100);
        assert!(queue.is_empty() && queue.take(1).is_none() && queue.front().is_empty());
    }

    #[test]
    fn vector_covers_one_vectored_write() {
        let mut queue = queue(&["xy"; VECTOR + 1]);
        let mut vector = [IoSlice::new(&[]); VECTOR];
        assert_eq!(queue.vector(&mut vector), (VECTOR, 2 * VECTOR));
        queue.advance(2 * VECTOR - 1);
        let mut vector = [IoSlice::new(&[]); VECTOR];
        assert_eq!(queue.vector(&mut vector), (2, 3));
        assert_eq!(&vector[0][..], b"y");
    }

    #[test]
    fn many_short_slices_are_scattered_until_gathered() {
        let mut queue = queue(&["x"; SLICES]);
        assert!(!queue.is_scattered());
        queue.push(Bytes::from_static(b"y"));
        assert!(queue.is_scattered());
        assert_eq!(queue.gather(), SLICES + 1);
        assert_eq!((queue.len(), queue.slices()), (SLICES + 1, 1));
        assert!(queue.front().ends_with(b"xy"));
    }
}
