//! What a connection has received: messages in the buffers that they came in, and slices that are read from the peer's memory.

use crate::connection::wire::Offer;
use linerate_bypass::Bytes;
use std::collections::VecDeque;

/// The received bytes of one connection, in order.
#[derive(Default)]
pub(crate) struct Rx {
    /// What can be consumed, and whether it keeps a buffer that is to be posted again.
    slices: VecDeque<(Bytes, bool)>,
    len: usize,
    /// The offer that is being read: what comes next.
    reading: Option<Reading>,
    /// What has come behind it.
    behind: VecDeque<Behind>,
    /// Buffers that are kept.
    held: u32,
}

/// An offer, and how far it has been read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// What nobody has been asked for.
    rest: Offer,
    /// Bytes that have been asked for and not come.
    asked: usize,
}

enum Behind {
    Slice(Bytes),
    Offer(Offer),
}

impl Rx {
    /// Bytes that can be consumed.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing, and nothing that is being read.
    pub fn is_done(&self) -> bool {
        self.len == 0 && self.reading.is_none()
    }

    /// Buffers that are kept by what has not been consumed.
    #[inline]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// What a message brought. Returns whether there is more to be consumed.
    #[inline]
    pub fn push(&mut self, bytes: Bytes) -> bool {
        self.held += 1;
        if self.reading.is_some() {
            self.behind.push_back(Behind::Slice(bytes));
            return false;
        }
        self.len += bytes.len();
        self.slices.push_back((bytes, true));
        true
    }

    /// What the peer offers comes next.
    pub fn offer(&mut self, offer: Offer) {
        match self.reading {
            None => self.reading = Some(Reading { rest: offer, asked: 0 }),
            Some(_) => self.behind.push_back(Behind::Offer(offer)),
        }
    }

    /// The piece of the peer's memory that is to be read next, up to `most` bytes long, if it and what is here are no more than
    /// `room`.
    pub fn wanted(&self, most: usize, room: usize) -> Option<Offer> {
        let Reading { rest, asked } = self.reading?;
        let room = room.saturating_sub(self.len + asked).min(most);
        let len = u32::try_from(room).unwrap_or(u32::MAX).min(rest.len);
        (len > 0).then_some(Offer { len, ..rest })
    }

    /// So many bytes of what is [wanted](Self::wanted) have been asked for.
    pub fn asked(&mut self, len: usize) {
        if let Some(Reading { rest, asked }) = &mut self.reading {
            rest.address += len as u64;
            rest.len -= len as u32;
            *asked += len;
        }
    }

    /// What was asked for first has come. Returns whether that was all of the offer.
    pub fn read(&mut self, bytes: Bytes) -> bool {
        let Some(Reading { rest, asked }) = &mut self.reading else { return false };
        *asked -= bytes.len();
        let is_all = rest.len == 0 && *asked == 0;
        self.len += bytes.len();
        self.slices.push_back((bytes, false));
        if is_all {
            self.reading = None;
            while self.reading.is_none()
                && let Some(next) = self.behind.pop_front()
            {
                match next {
                    Behind::Offer(offer) => self.offer(offer),
                    Behind::Slice(bytes) => {
                        self.len += bytes.len();
                        self.slices.push_back((bytes, true));
                    }
                }
            }
        }
        is_all
    }

    /// The first slice; empty if there is none.
    #[inline]
    pub fn front(&self) -> &[u8] {
        self.slices.front().map_or(&[], |(slice, _)| slice)
    }

    /// Takes the first slice out, or its first `max` bytes.
    pub fn take(&mut self, max: usize) -> Option<Bytes> {
        let (front, _) = self.slices.front_mut()?;
        if max == 0 {
            return None;
        }
        let taken = if front.len() > max { front.split_to(max) } else { self.pop()? };
        self.len -= taken.len();
        Some(taken)
    }

    /// Drops the first `n` bytes; all, if there are fewer.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        let mut left = n.min(self.len);
        self.len -= left;
        while left > 0
            && let Some((front, _)) = self.slices.front_mut()
        {
            if front.len() > left {
                return front.advance(left);
            }
            left -= front.len();
            self.pop();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Rx::default();
    }

    #[inline]
    fn pop(&mut self) -> Option<Bytes> {
        let (bytes, is_buffer) = self.slices.pop_front()?;
        self.held -= u32::from(is_buffer);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn all(rx: &mut Rx) -> String {
        let mut text = String::new();
        while let Some(part) = rx.take(3) {
            text += std::str::from_utf8(&part).unwrap();
        }
        text
    }

    #[test]
    fn what_comes_behind_an_offer_waits_for_it() {
        let mut rx = Rx::default();
        assert!(rx.push(bytes("one ")));
        rx.offer(Offer { address: 1000, rkey: 7, len: 8 });
        assert!(!rx.push(bytes("four ")));
        rx.offer(Offer { address: 2000, rkey: 8, len: 4 });
        assert!(!rx.push(bytes("six")));
        assert_eq!((rx.len(), rx.held()), (4, 3));
        assert_eq!(rx.wanted(5, 100), Some(Offer { address: 1000, rkey: 7, len: 5 }));
        rx.asked(4);
        assert_eq!(rx.wanted(5, 100), Some(Offer { address: 1004, rkey: 7, len: 4 }));
        rx.asked(4);
        assert_eq!(rx.wanted(5, 100), None);
        assert!(!rx.read(bytes("two ")));
        assert!(rx.read(bytes("thre")));
        assert_eq!(all(&mut rx), "one two threfour ");
        assert!(!rx.is_done());
        assert_eq!((rx.held(), rx.wanted(9, 100)), (1, Some(Offer { address: 2000, rkey: 8, len: 4 })));
        rx.asked(4);
        assert!(rx.read(bytes("five")));
        rx.advance(100);
        assert!(rx.is_done());
        assert_eq!(rx.held(), 0);
    }

    #[test]
    fn no_more_is_asked_for_than_there_is_room_for() {
        let mut rx = Rx::default();
        rx.push(bytes("0123456789"));
        rx.offer(Offer { address: 0, rkey: 0, len: 1000 });
        assert_eq!(rx.wanted(100, 10), None);
        assert_eq!(rx.wanted(100, 30).unwrap().len, 20);
        rx.asked(20);
        assert_eq!(rx.wanted(100, 30), None);
        rx.advance(4);
        assert_eq!(rx.wanted(100, 30).unwrap().len, 4);
    }
}
