//! Replies on their way out.

use crate::sink::Sink;
use crate::store::LONG_THRESHOLD;
use linerate_bypass::{Bytes, ConnId, Transport};
use std::collections::VecDeque;

/// What is attached and shorter than this is copied: a piece of a packet for itself costs more.
const SHORT: usize = 1024;

/// Bytes of replies that are sent before there are more.
const MANY: usize = 64 << 10;

/// Replies, in order: bytes, and values between them that are sent from where they lie.
#[derive(Default)]
pub(in crate::service) struct Replies {
    /// The first `end` bytes are replies; those behind are there to be written.
    text: Vec<u8>,
    end: usize,
    /// Values, and how many bytes of the text come before each.
    values: Vec<(usize, Bytes)>,
    /// Bytes of the values.
    attached: usize,
    /// Bytes of text at most, if not 0: what is more is not kept, for nobody will have it.
    most: usize,
    is_cut: bool,
}

impl Sink for Replies {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.place(bytes.len()) {
            place.copy_from_slice(bytes);
            self.end += bytes.len();
        }
    }

    fn attach(&mut self, bytes: Bytes) {
        if bytes.len() < SHORT {
            return self.put(&bytes);
        }
        self.attached += bytes.len();
        self.values.push((self.end, bytes));
    }
}

impl Replies {
    /// A value, shorter than [`LONG_THRESHOLD`], with the line in front of it.
    #[inline(always)]
    pub fn bulk(&mut self, value: &[u8]) {
        let len = bulk_len(value.len());
        if let Some(place) = self.place(len) {
            write_bulk(value, place);
            self.end += len;
        }
    }

    /// The next `len` bytes, if they are kept.
    #[inline(always)]
    fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.end + len;
        if self.text.len() < end && !self.grow(end) {
            return None;
        }
        self.text.get_mut(self.end..end)
    }

    #[cold]
    fn grow(&mut self, len: usize) -> bool {
        self.is_cut |= self.most > 0 && len > self.most.max(MANY);
        if !self.is_cut {
            self.text.resize(len.next_power_of_two().max(LONG_THRESHOLD), 0);
        }
        !self.is_cut
    }

    /// Of their text no more than `most` bytes are kept, any number if that is 0.
    pub fn set_most(&mut self, most: u64) {
        self.most = usize::try_from(most).unwrap_or(usize::MAX);
    }

    /// Drops all of them with the next [`clear`](Self::clear), and with them the connection.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Whether some were too many to be kept, or are not to be sent.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// All of them, a piece after the other.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        let values = self.values.iter().flat_map(move |(at, value)| {
            let text = &self.text[std::mem::replace(&mut from, *at)..*at];
            [text, &value[..]]
        });
        let last = self.values.last().map_or(0, |(at, _)| *at);
        values.chain([&self.text[last..self.end]])
    }

    /// Whether they had better be sent before there are more.
    #[inline]
    pub fn are_many(&self) -> bool {
        self.len() >= MANY
    }

    /// The bytes between the values, all of them if there are none.
    fn text(&self) -> &[u8] {
        &self.text[..self.end]
    }

    pub fn is_empty(&self) -> bool {
        self.end == 0 && self.values.is_empty()
    }

    /// Bytes of all of them.
    pub fn len(&self) -> usize {
        self.end + self.attached
    }

    /// Where the next ones begin.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark { text: self.end, values: self.values.len() }
    }

    /// As [`set_most`](Self::set_most), for those behind `mark`: those in front of it are somebody else's.
    #[inline]
    pub fn set_most_behind(&mut self, mark: Mark, most: u64) {
        self.set_most(if most == 0 { 0 } else { most.max(MANY as u64).saturating_add(mark.text as u64) });
    }

    /// Where the next ones begin, unless of those behind `before` some were too many to be kept: then none of them is.
    #[inline]
    pub fn mark_unless_cut(&mut self, before: Mark) -> Option<Mark> {
        if self.is_cut {
            self.is_cut = false;
            self.end = before.text;
            self.values.drain(before.values..).for_each(|(_, bytes)| self.attached -= bytes.len());
            return None;
        }
        Some(self.mark())
    }

    /// Puts those of `others` behind them that are between `from` and `to`; without `to`, they were too many to be kept.
    #[inline]
    pub fn append(&mut self, others: &mut Replies, from: Mark, to: Option<Mark>) {
        let Some(to) = to else {
            self.is_cut = true;
            return;
        };
        let before = self.end;
        self.put(&others.text[from.text..to.text]);
        for (at, bytes) in &mut others.values[from.values..to.values] {
            self.attached += bytes.len();
            self.values.push((before + *at - from.text, std::mem::take(bytes)));
        }
    }

    #[inline]
    pub fn clear(&mut self) {
        self.end = 0;
        self.values.clear();
        self.attached = 0;
        self.is_cut = false;
        if self.text.len() > KEPT {
            self.text.truncate(KEPT);
            self.text.shrink_to_fit();
        }
    }
}

/// A place between replies.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::service) struct Mark {
    text: usize,
    /// Values in front of it.
    values: usize,
}

const _: () = assert!(LONG_THRESHOLD <= 10_000);

/// The two digits of each number below a hundred.
const DIGITS: [[u8; 2]; 100] = {
    let mut digits = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        digits[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
        number += 1;
    }
    digits
};

/// Bytes of a value of `len`, fewer than [`LONG_THRESHOLD`], with the line in front of it and the end of its own.
#[inline(always)]
pub(in crate::service) fn bulk_len(len: usize) -> usize {
    // Most have two digits.
    let digits = if (10..100).contains(&len) {
        2
    } else {
        1 + usize::from(len > 9) + usize::from(len > 99) + usize::from(len > 999)
    };
    1 + digits + 2 + len + 2
}

/// Writes `value`, with the line in front of it, into `place`, which is as long as [`bulk_len`] says.
#[inline(always)]
pub(in crate::service) fn write_bulk(value: &[u8], place: &mut [u8]) {
    const LINE: u64 = u64::from_le_bytes(*b"$\0\0\r\n\0\0\0");
    // Most have two digits. What is written beyond the line is the value's.
    if let (10..100, Some(line)) = (value.len(), place.first_chunk_mut()) {
        *line = (LINE | u64::from(u16::from_le_bytes(DIGITS[value.len()])) << 8).to_le_bytes();
        let (place, end) = place[5..].split_at_mut(value.len());
        place.copy_from_slice(value);
        end.copy_from_slice(b"\r\n");
    } else {
        write_any_bulk(value, place);
    }
}

/// [`write_bulk`] of a value whose length has not two digits.
#[inline(never)]
fn write_any_bulk(value: &[u8], place: &mut [u8]) {
    let (line, rest) = place.split_at_mut(place.len() - value.len() - 2);
    if let [dollar, digits @ .., cr, lf] = line {
        [*dollar, *cr, *lf] = *b"$\r\n";
        let len = value.len();
        match digits {
            [a] => *a = b'0' + len as u8,
            [a, b, c] => [*a, *b, *c] = [b'0' + (len / 100) as u8, DIGITS[len % 100][0], DIGITS[len % 100][1]],
            [a, b, c, d] => ([*a, *b], [*c, *d]) = (DIGITS[len / 100], DIGITS[len % 100]),
            _ => {}
        }
    }
    let (place, end) = rest.split_at_mut(value.len());
    place.copy_from_slice(value);
    end.copy_from_slice(b"\r\n");
}

/// Room that is kept for the next replies.
const KEPT: usize = 64 << 10;

/// What waits until there is room for it.
#[derive(Default)]
pub(in crate::service) struct Output {
    waiting: VecDeque<Bytes>,
    bytes: usize,
}

impl Output {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sends `replies` on `conn`, as far as there is room; the rest waits. Nothing is left of them.
    #[inline]
    pub fn send(&mut self, net: &mut impl Transport, conn: ConnId, replies: &mut Replies) {
        if self.waiting.is_empty() && replies.values.is_empty() {
            let sent = net.write(conn, replies.text());
            if sent < replies.end {
                self.wait(Bytes::from(replies.text()[sent..].to_vec()));
            }
            return replies.clear();
        }
        self.send_all(net, conn, replies);
    }

    #[inline(never)]
    fn send_all(&mut self, net: &mut impl Transport, conn: ConnId, replies: &mut Replies) {
        let mut from = 0;
        for (at, bytes) in replies.values.drain(..) {
            self.text(net, conn, &replies.text[from..at]);
            from = at;
            self.wait(bytes);
            self.go_on(net, conn);
        }
        self.text(net, conn, &replies.text[from..replies.end]);
        replies.clear();
    }

    fn text(&mut self, net: &mut impl Transport, conn: ConnId, text: &[u8]) {
        let sent = if self.waiting.is_empty() { net.write(conn, text) } else { 0 };
        if sent < text.len() {
            self.wait(Bytes::from(text[sent..].to_vec()));
        }
    }

    fn wait(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        self.waiting.push_back(bytes);
    }

    /// Sends what waits, as far as there is room.
    pub fn go_on(&mut self, net: &mut impl Transport, conn: ConnId) {
        while let Some(first) = self.waiting.front_mut() {
            let room = net.send_space(conn).min(first.len());
            if room == 0 {
                return;
            }
            let part = first.slice(..room);
            if first.len() < SHORT {
                let sent = net.write(conn, &part);
                first.advance(sent);
                self.bytes -= sent;
                if sent == 0 {
                    return;
                }
            } else {
                if net.send(conn, part).is_err() {
                    return;
                }
                first.advance(room);
                self.bytes -= room;
            }
            if first.is_empty() {
                self.waiting.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_numbers() {
        for len in [0, 7, 10, 99, 100, 999, 1000, LONG_THRESHOLD - 1] {
            let mut replies = Replies::default();
            replies.bulk(&vec![b'x'; len]);
            assert_eq!(replies.text(), format!("${len}\r\n{}\r\n", "x".repeat(len)).as_bytes());
        }
    }
}
