//! Send queue of a connection: slices, and blocks that the service writes, with headroom for a message header.

use crate::verbs::Message;
use crate::wire::HEADER;
use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaMut;
use linerate_service::Bytes;
use std::collections::VecDeque;

/// Shorter slices are copied, because a separate chunk of a message is more expensive.
const SHORT: usize = 256;
/// Minimum free space of a block worth reserving.
const LEAST_RESERVED: usize = 64;

/// Unsent bytes of one connection, in order.
#[derive(Default)]
pub(crate) struct Tx {
    parts: VecDeque<Part>,
    len: usize,
}

/// Message to send.
pub(crate) struct Made {
    pub message: Message,
    /// Bytes of slices that were copied.
    pub copied: usize,
}

enum Part {
    /// Block with headroom, and the number of bytes written after it.
    Block(ArenaMut, usize),
    Slice(Bytes),
}

impl Tx {
    /// Returns the number of unsent bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a slice.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.parts.push_back(Part::Slice(bytes));
        }
    }

    /// Returns space for up to `max` bytes at the end, in a block of at most `most` message bytes.
    #[inline]
    pub fn reserve(&mut self, arena: &Arena, max: usize, most: usize) -> Option<&mut [u8]> {
        let has_room = match self.parts.back() {
            Some(Part::Block(block, written)) => block.len() - HEADER - written >= max.min(LEAST_RESERVED),
            _ => false,
        };
        if !has_room {
            self.parts.push_back(Part::Block(arena.alloc(HEADER + most)?, 0));
        }
        let Some(Part::Block(block, written)) = self.parts.back_mut() else { return None };
        let space = &mut block[HEADER + *written..];
        let len = space.len().min(max);
        Some(&mut space[..len])
    }

    /// Appends the first `n` bytes of the last reserved space.
    ///
    /// # Panics
    /// If less was reserved.
    #[inline]
    pub fn commit(&mut self, n: usize) {
        if let Some(Part::Block(block, written)) = self.parts.back_mut() {
            assert!(n <= block.len() - HEADER - *written, "cannot send {n} bytes of fewer reserved");
            *written += n;
            self.len += n;
        }
    }

    /// Takes the first slice, if it has at least `least` bytes and the device can access it.
    pub fn take_large(&mut self, least: usize, reaches: impl Fn(&[u8]) -> bool) -> Option<Bytes> {
        self.drop_empty();
        match self.parts.front() {
            Some(Part::Slice(slice)) if slice.len() >= least && reaches(slice) => {}
            _ => return None,
        }
        let Some(Part::Slice(slice)) = self.parts.pop_front() else { return None };
        self.len -= slice.len();
        Some(slice)
    }

    /// Puts a slice from [`take_large`](Self::take_large) back to the front.
    pub fn put_back(&mut self, slice: Bytes) {
        self.len += slice.len();
        self.parts.push_front(Part::Slice(slice));
    }

    /// Builds a message of up to `most` bytes in up to `chunks` chunks after the header from `header`. Excludes
    /// slices of `large` bytes or more that the device can access. Returns `None` without data or memory.
    pub fn message(
        &mut self,
        arena: &Arena,
        header: impl FnOnce() -> [u8; HEADER],
        (most, chunks): (usize, usize),
        large: usize,
        reaches: impl Fn(&[u8]) -> bool,
    ) -> Option<Made> {
        self.drop_empty();
        let mut made = Made { message: Message::new(), copied: 0 };
        let mut first = match self.parts.front()? {
            // The header fits into the headroom, and a block never exceeds a message.
            Part::Block(..) => {
                let Some(Part::Block(mut block, written)) = self.parts.pop_front() else { return None };
                self.len -= written;
                block.truncate(HEADER + written);
                block
            }
            Part::Slice(slice) if slice.len() >= large && reaches(slice) => return None,
            Part::Slice(_) => {
                let copied = self.copied(most, &reaches);
                let mut block = arena.alloc(HEADER + copied)?;
                self.copy(&mut block[HEADER..]);
                made.copied = copied;
                block
            }
        };
        first[..HEADER].copy_from_slice(&header());
        let _ = made.message.push(first.freeze());
        while made.message.chunks().len() < chunks
            && let Some(part) = self.parts.pop_front()
        {
            let left = most + HEADER - made.message.len();
            let chunk = match part {
                Part::Block(mut block, written) if written <= left => {
                    block.truncate(HEADER + written);
                    let mut chunk = block.freeze();
                    chunk.advance(HEADER);
                    chunk
                }
                Part::Slice(mut slice) if slice.len() < large && left > 0 && reaches(&slice) => {
                    let chunk = slice.split_to(left.min(slice.len()));
                    if !slice.is_empty() {
                        self.parts.push_front(Part::Slice(slice));
                    }
                    chunk
                }
                other => {
                    self.parts.push_front(other);
                    break;
                }
            };
            self.len -= chunk.len();
            if !chunk.is_empty() {
                let _ = made.message.push(chunk);
            }
        }
        Some(made)
    }

    /// Moves all bytes to the end of `out`. Returns the number of bytes of slices among them.
    #[inline]
    pub fn append_to(&mut self, out: &mut Vec<u8>) -> usize {
        let mut copied = 0;
        while let Some(part) = self.parts.pop_front() {
            match part {
                Part::Block(block, written) => out.extend_from_slice(&block[HEADER..HEADER + written]),
                Part::Slice(slice) => {
                    copied += slice.len();
                    out.extend_from_slice(&slice);
                }
            }
        }
        self.len = 0;
        copied
    }

    /// Returns the number of bytes, up to `most`, in leading slices that must be copied because they are short or
    /// inaccessible to the device.
    fn copied(&self, most: usize, reaches: impl Fn(&[u8]) -> bool) -> usize {
        let mut copied = 0;
        for part in &self.parts {
            match part {
                Part::Slice(slice) if copied < most && (slice.len() < SHORT || !reaches(slice)) => {
                    copied += slice.len()
                }
                _ => break,
            }
        }
        copied.min(most)
    }

    /// Moves leading slices into `out`.
    fn copy(&mut self, mut out: &mut [u8]) {
        self.len -= out.len();
        while !out.is_empty()
            && let Some(Part::Slice(slice)) = self.parts.front_mut()
        {
            let (now, later) = out.split_at_mut(slice.len().min(out.len()));
            now.copy_from_slice(&slice[..now.len()]);
            slice.advance(now.len());
            if slice.is_empty() {
                self.parts.pop_front();
            }
            out = later;
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Tx::default();
    }

    /// Drops leading blocks without data.
    fn drop_empty(&mut self) {
        while let Some(Part::Block(_, 0)) = self.parts.front() {
            self.parts.pop_front();
        }
    }
}
