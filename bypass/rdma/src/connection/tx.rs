//! What a connection has to send: slices, and blocks that the service writes to, with room in front for a message's header.

use crate::connection::wire::HEADER;
use crate::verbs::Message;
use linerate_bypass::arena::ArenaMut;
use linerate_bypass::{Arena, Bytes};
use std::collections::VecDeque;

/// A slice that is shorter is copied: a piece of a message for itself costs more.
const SHORT: usize = 256;
/// The least of a block that is worth writing to.
const LEAST_PLACE: usize = 64;

/// The bytes that one connection has to send, in order.
#[derive(Default)]
pub(crate) struct Tx {
    parts: VecDeque<Part>,
    len: usize,
}

/// A message that can be sent.
pub(crate) struct Made {
    pub message: Message,
    /// Bytes of slices that were copied.
    pub copied: usize,
}

enum Part {
    /// So many bytes of it have been written, behind the room for a header.
    Block(ArenaMut, usize),
    Slice(Bytes),
}

impl Tx {
    /// Bytes to be sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a slice.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.parts.push_back(Part::Slice(bytes));
        }
    }

    /// A place of up to `max` bytes behind all others, in a block of which a message may have `most` bytes.
    #[inline]
    pub fn place(&mut self, arena: &Arena, max: usize, most: usize) -> Option<&mut [u8]> {
        let has_room = match self.parts.back() {
            Some(Part::Block(block, written)) => block.len() - HEADER - written >= max.min(LEAST_PLACE),
            _ => false,
        };
        if !has_room {
            self.parts.push_back(Part::Block(arena.alloc(HEADER + most)?, 0));
        }
        let Some(Part::Block(block, written)) = self.parts.back_mut() else { return None };
        let place = &mut block[HEADER + *written..];
        let len = place.len().min(max);
        Some(&mut place[..len])
    }

    /// The first `n` bytes of the last place have been written.
    ///
    /// # Panics
    /// If the place was shorter.
    #[inline]
    pub fn commit(&mut self, n: usize) {
        if let Some(Part::Block(block, written)) = self.parts.back_mut() {
            assert!(n <= block.len() - HEADER - *written, "cannot send {n} bytes of fewer reserved");
            *written += n;
            self.len += n;
        }
    }

    /// The first slice, if it is at least `least` bytes long and lies where the device reaches it.
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

    /// A slice that was [taken](Self::take_large) goes first again.
    pub fn put_back(&mut self, slice: Bytes) {
        self.len += slice.len();
        self.parts.push_front(Part::Slice(slice));
    }

    /// A message of up to `most` bytes behind its header, for which `header` is asked, in up to `pieces` pieces; of slices from
    /// `large` bytes on that the device reaches, none. `None` without bytes, or memory.
    pub fn message(
        &mut self,
        arena: &Arena,
        header: impl FnOnce() -> [u8; HEADER],
        (most, pieces): (usize, usize),
        large: usize,
        reaches: impl Fn(&[u8]) -> bool,
    ) -> Option<Made> {
        self.drop_empty();
        let mut made = Made { message: Message::new(), copied: 0 };
        let mut first = match self.parts.front()? {
            // It has the header in front, and is no longer than a message.
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
        while made.message.pieces().len() < pieces
            && let Some(part) = self.parts.pop_front()
        {
            let left = most + HEADER - made.message.len();
            let piece = match part {
                Part::Block(mut block, written) if written <= left => {
                    block.truncate(HEADER + written);
                    let mut piece = block.freeze();
                    piece.advance(HEADER);
                    piece
                }
                Part::Slice(mut slice) if slice.len() < large && left > 0 && reaches(&slice) => {
                    let piece = slice.split_to(left.min(slice.len()));
                    if !slice.is_empty() {
                        self.parts.push_front(Part::Slice(slice));
                    }
                    piece
                }
                other => {
                    self.parts.push_front(other);
                    break;
                }
            };
            self.len -= piece.len();
            if !piece.is_empty() {
                let _ = made.message.push(piece);
            }
        }
        Some(made)
    }

    /// Bytes of slices at the front, up to `most`, that are to be copied: those that are short, and those that the device does not
    /// reach.
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

    /// Copies the slices at the front to `place`.
    fn copy(&mut self, mut place: &mut [u8]) {
        self.len -= place.len();
        while !place.is_empty()
            && let Some(Part::Slice(slice)) = self.parts.front_mut()
        {
            let (now, later) = place.split_at_mut(slice.len().min(place.len()));
            now.copy_from_slice(&slice[..now.len()]);
            slice.advance(now.len());
            if slice.is_empty() {
                self.parts.pop_front();
            }
            place = later;
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Tx::default();
    }

    /// Blocks that nothing was written to are not sent.
    fn drop_empty(&mut self) {
        while let Some(Part::Block(_, 0)) = self.parts.front() {
            self.parts.pop_front();
        }
    }
}
