//! A queue of bytes, in the slices in which they came.

use crate::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Slices that one vectored write takes.
pub const VECTOR: usize = 64;

/// A slice of a received block keeps the whole block. Up to this many slices that is worth it whatever their
/// size; beyond, they should average [`WORTHWHILE`] bytes.
const SLICES: usize = 64;
const WORTHWHILE: usize = 4096;

/// Slices of bytes in their order, none of them empty.
#[derive(Debug, Default)]
pub struct BytesQueue {
    slices: VecDeque<Bytes>,
    len: usize,
}

impl BytesQueue {
    /// Bytes in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slices in the queue.
    pub fn slices(&self) -> usize {
        self.slices.len()
    }

    /// Puts `bytes` at the end.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.slices.push_back(bytes);
        }
    }

    /// The first slice; empty if there is none.
    pub fn front(&self) -> &[u8] {
        self.slices.front().map_or(&[], |slice| slice)
    }

    /// Takes the first slice out, or its first `max` bytes.
    pub fn take(&mut self, max: usize) -> Option<Bytes> {
        let front = self.slices.front_mut()?;
        if max == 0 {
            return None;
        }
        let taken = if front.len() > max { front.split_to(max) } else { self.slices.pop_front()? };
        self.len -= taken.len();
        Some(taken)
    }

    /// Drops the first `n` bytes; all, if there are fewer.
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

    /// Drops everything.
    pub fn clear(&mut self) {
        self.slices.clear();
        self.len = 0;
    }

    /// Lays the first slices out for one vectored write: returns how many there are and their length.
    pub fn vector<'a>(&'a self, into: &mut [IoSlice<'a>; VECTOR]) -> (usize, usize) {
        let mut len = 0;
        let mut n = 0;
        for (place, slice) in into.iter_mut().zip(&self.slices) {
            *place = IoSlice::new(slice);
            len += slice.len();
            n += 1;
        }
        (n, len)
    }

    /// Whether the slices have become so many and so small that the memory they keep is out of proportion.
    pub fn is_scattered(&self) -> bool {
        self.slices.len() > SLICES + self.len / WORTHWHILE
    }

    /// Copies everything into one slice with memory of its own, and returns how many bytes that were.
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
        assert_eq!(queue.front(), b"c");
        queue.advance(2);
        assert_eq!(queue.front(), b"efg");
        assert_eq!(queue.take(0), None);
        assert_eq!(&queue.take(100).unwrap()[..], b"efg");
        queue.advance(100);
        assert!(queue.is_empty() && queue.take(1).is_none() && queue.front().is_empty());
    }

    #[test]
    fn a_vector_covers_no_more_than_one_write_takes() {
        let mut queue = queue(&["xy"; VECTOR + 1]);
        let mut vector = [IoSlice::new(&[]); VECTOR];
        assert_eq!(queue.vector(&mut vector), (VECTOR, 2 * VECTOR));
        queue.advance(2 * VECTOR - 1);
        let mut vector = [IoSlice::new(&[]); VECTOR];
        assert_eq!(queue.vector(&mut vector), (2, 3));
        assert_eq!(&vector[0][..], b"y");
    }

    #[test]
    fn many_small_slices_are_scattered_until_gathered() {
        let mut queue = queue(&["x"; SLICES]);
        assert!(!queue.is_scattered());
        queue.push(Bytes::from_static(b"y"));
        assert!(queue.is_scattered());
        assert_eq!(queue.gather(), SLICES + 1);
        assert_eq!((queue.len(), queue.slices()), (SLICES + 1, 1));
        assert!(queue.front().ends_with(b"xy"));
    }
}
