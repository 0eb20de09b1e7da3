//! Receive queue of a connection: received messages in their buffers, and slices read from the peer's memory.

use crate::wire::Offer;
use linerate_service::Bytes;
use std::collections::VecDeque;

/// Received bytes of one connection, in order.
#[derive(Default)]
pub(crate) struct Rx {
    /// Consumable slices, each with a flag that it holds a receive buffer.
    slices: VecDeque<(Bytes, bool)>,
    len: usize,
    /// Offer being read, whose data comes next.
    reading: Option<Reading>,
    /// Data received after the offer.
    queued: VecDeque<Queued>,
    held: u32,
}

/// Offer being read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Part not yet requested.
    rest: Offer,
    /// Bytes requested and not yet received.
    posted: usize,
}

enum Queued {
    Slice(Bytes),
    Offer(Offer),
}

impl Rx {
    /// Returns the number of consumable bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if an offer is being read.
    #[inline]
    pub fn has_offer(&self) -> bool {
        self.reading.is_some()
    }

    /// Returns true if there is no data and no offer being read.
    pub fn is_done(&self) -> bool {
        self.len == 0 && self.reading.is_none()
    }

    /// Returns the number of buffers held by unconsumed data.
    #[inline]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Adds received bytes. Returns true if they are consumable now.
    #[inline]
    pub fn push(&mut self, bytes: Bytes) -> bool {
        self.held += 1;
        if self.reading.is_some() {
            self.queued.push_back(Queued::Slice(bytes));
            return false;
        }
        self.len += bytes.len();
        self.slices.push_back((bytes, true));
        true
    }

    /// Adds an offer of the peer.
    pub fn offer(&mut self, offer: Offer) {
        match self.reading {
            None => self.reading = Some(Reading { rest: offer, posted: 0 }),
            Some(_) => self.queued.push_back(Queued::Offer(offer)),
        }
    }

    /// Returns the next part of the offer to read: at most `most` bytes, and no more than fit into `room` together
    /// with unconsumed data.
    pub fn wanted(&self, most: usize, room: usize) -> Option<Offer> {
        let Reading { rest, posted } = self.reading?;
        let room = room.saturating_sub(self.len + posted).min(most);
        let len = u32::try_from(room).unwrap_or(u32::MAX).min(rest.len);
        (len > 0).then_some(Offer { len, ..rest })
    }

    /// Records that `len` bytes of the [wanted](Self::wanted) part were requested.
    pub fn posted(&mut self, len: usize) {
        if let Some(Reading { rest, posted }) = &mut self.reading {
            rest.address += len as u64;
            rest.len -= len as u32;
            *posted += len;
        }
    }

    /// Adds the data of the oldest READ. Returns true if it completes the offer.
    pub fn read(&mut self, bytes: Bytes) -> bool {
        let Some(Reading { rest, posted }) = &mut self.reading else { return false };
        *posted -= bytes.len();
        let is_all = rest.len == 0 && *posted == 0;
        self.len += bytes.len();
        self.slices.push_back((bytes, false));
        if is_all {
            self.reading = None;
            while self.reading.is_none()
                && let Some(next) = self.queued.pop_front()
            {
                match next {
                    Queued::Offer(offer) => self.offer(offer),
                    Queued::Slice(bytes) => {
                        self.len += bytes.len();
                        self.slices.push_back((bytes, true));
                    }
                }
            }
        }
        is_all
    }

    /// Returns the first slice, or an empty one.
    #[inline]
    pub fn front(&self) -> &[u8] {
        self.slices.front().map_or(&[], |(slice, _)| slice)
    }

    /// Takes the first slice, or its first `max` bytes.
    pub fn take(&mut self, max: usize) -> Option<Bytes> {
        let (front, _) = self.slices.front_mut()?;
        if max == 0 {
            return None;
        }
        let taken = if front.len() > max { front.split_to(max) } else { self.pop()? };
        self.len -= taken.len();
        Some(taken)
    }

    /// Drops the first `n` bytes, or all if there are fewer.
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

    /// Drops everything.
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
    fn data_after_an_offer_waits_for_it() {
        let mut rx = Rx::default();
        assert!(rx.push(bytes("one ")));
        rx.offer(Offer { address: 1000, rkey: 7, len: 8 });
        assert!(!rx.push(bytes("four ")));
        rx.offer(Offer { address: 2000, rkey: 8, len: 4 });
        assert!(!rx.push(bytes("six")));
        assert_eq!((rx.len(), rx.held()), (4, 3));
        assert_eq!(rx.wanted(5, 100), Some(Offer { address: 1000, rkey: 7, len: 5 }));
        rx.posted(4);
        assert_eq!(rx.wanted(5, 100), Some(Offer { address: 1004, rkey: 7, len: 4 }));
        rx.posted(4);
        assert_eq!(rx.wanted(5, 100), None);
        assert!(!rx.read(bytes("two ")));
        assert!(rx.read(bytes("thre")));
        assert_eq!(all(&mut rx), "one two threfour ");
        assert!(!rx.is_done());
        assert_eq!((rx.held(), rx.wanted(9, 100)), (1, Some(Offer { address: 2000, rkey: 8, len: 4 })));
        rx.posted(4);
        assert!(rx.read(bytes("five")));
        rx.advance(100);
        assert!(rx.is_done());
        assert_eq!(rx.held(), 0);
    }

    #[test]
    fn reads_are_limited_by_room() {
        let mut rx = Rx::default();
        rx.push(bytes("0123456789"));
        rx.offer(Offer { address: 0, rkey: 0, len: 1000 });
        assert_eq!(rx.wanted(100, 10), None);
        assert_eq!(rx.wanted(100, 30).unwrap().len, 20);
        rx.posted(20);
        assert_eq!(rx.wanted(100, 30), None);
        rx.advance(4);
        assert_eq!(rx.wanted(100, 30).unwrap().len, 4);
    }
}
