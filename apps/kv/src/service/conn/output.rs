//! Output of connections.

use crate::resp::bulk::{self, bulk_len, write_bulk};
use crate::store::LONG_THRESHOLD;
use crate::value::Sink;
use linerate_service::{Bytes, ConnId, Transport};
use std::collections::VecDeque;

/// Attached bytes shorter than this are copied: a separate packet segment costs more.
const SHORT: usize = 1024;

/// Number of reply bytes that are sent before more requests run.
pub(in crate::service) const MANY: usize = 64 << 10;

/// Replies in order: text, and attached values that are sent without a copy.
#[derive(Default)]
pub(in crate::service) struct Replies {
    /// Text of the first `end` bytes. The rest is spare room.
    text: Vec<u8>,
    end: usize,
    /// Attached values, with the length of the text before each.
    values: Vec<(usize, Bytes)>,
    /// Bytes of the attached values.
    attached: usize,
    /// Limit of text bytes, or 0 for none. Text beyond the limit is dropped, because the client will be disconnected.
    most: usize,
    is_discarded: bool,
}

impl Sink for Replies {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(out) = self.reserve(bytes.len()) {
            out.copy_from_slice(bytes);
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
    /// Writes a bulk string shorter than [`LONG_THRESHOLD`].
    #[inline(always)]
    pub fn bulk(&mut self, value: &[u8]) {
        let len = bulk_len(value.len());
        if let Some(out) = self.reserve(len) {
            write_bulk(value, out);
            self.end += len;
        }
    }

    /// Returns room for `len` bytes of text, unless the limit is exceeded.
    #[inline(always)]
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.end + len;
        if self.text.len() < end && !self.grow(end) {
            return None;
        }
        self.text.get_mut(self.end..end)
    }

    #[cold]
    fn grow(&mut self, len: usize) -> bool {
        self.is_discarded |= self.most > 0 && len > self.most.max(MANY);
        if !self.is_discarded {
            self.text.resize(len.next_power_of_two().max(LONG_THRESHOLD), 0);
        }
        !self.is_discarded
    }

    /// Sets the limit of text bytes. 0 removes it.
    pub fn set_limit(&mut self, most: u64) {
        self.most = usize::try_from(most).unwrap_or(usize::MAX);
    }

    /// Discards all replies at the next [`clear`](Self::clear), together with the connection.
    pub fn discard(&mut self) {
        self.is_discarded = true;
    }

    /// Returns true if the limit was exceeded or the replies are discarded.
    pub fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// Returns all replies in parts.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        let values = self.values.iter().flat_map(move |(at, value)| {
            let text = &self.text[std::mem::replace(&mut from, *at)..*at];
            [text, &value[..]]
        });
        let last = self.values.last().map_or(0, |(at, _)| *at);
        values.chain([&self.text[last..self.end]])
    }

    /// Returns true if the replies should be sent before more requests run.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.len() >= MANY
    }

    fn text(&self) -> &[u8] {
        &self.text[..self.end]
    }

    pub fn is_empty(&self) -> bool {
        self.end == 0 && self.values.is_empty()
    }

    /// Returns the memory of the replies without attached values.
    pub fn memory(&self) -> usize {
        self.text.capacity() + self.values.capacity() * size_of::<(usize, Bytes)>()
    }

    pub fn len(&self) -> usize {
        self.end + self.attached
    }

    /// Returns the position of the next reply.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark { text: self.end, values: self.values.len() }
    }

    /// [`set_limit`](Self::set_limit) for the replies after `mark`. Those before it belong to other clients.
    #[inline]
    pub fn set_limit_after(&mut self, mark: Mark, most: u64) {
        self.set_limit(if most == 0 { 0 } else { most.max(MANY as u64).saturating_add(mark.text as u64) });
    }

    /// Returns the position of the next reply. If the replies since `before` exceeded the limit, removes them and
    /// returns `None`.
    #[inline]
    pub fn mark_or_rollback(&mut self, before: Mark) -> Option<Mark> {
        if self.is_discarded {
            self.rollback(before);
            return None;
        }
        Some(self.mark())
    }

    pub fn rollback(&mut self, before: Mark) {
        self.is_discarded = false;
        self.end = before.text;
        self.values.drain(before.values..).for_each(|(_, bytes)| self.attached -= bytes.len());
    }

    /// Returns the text from `from` to `to`, or `None` if there are attached values.
    #[inline]
    pub fn text_between(&self, from: Mark, to: Mark) -> Option<&[u8]> {
        if from.values == to.values { self.text.get(from.text..to.text) } else { None }
    }

    /// Removes the digits after `from`, and returns their sum.
    pub fn take_digits(&mut self, from: Mark) -> i64 {
        let sum = self.sum_of_digits(from, self.mark());
        self.end = from.text;
        sum
    }

    /// Returns the sum of the digits 0 and 1 from `from` to `to`.
    pub fn sum_of_digits(&self, from: Mark, to: Mark) -> i64 {
        self.text[from.text..to.text].iter().map(|digit| i64::from(digit & 1)).sum()
    }

    /// Appends the replies of `others` from `from` to `to`. `to` is `None` if they exceeded the limit.
    #[inline]
    pub fn append(&mut self, others: &mut Replies, from: Mark, to: Option<Mark>) {
        let Some(to) = to else {
            self.is_discarded = true;
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
        self.is_discarded = false;
        if self.text.len() > KEPT {
            self.text.truncate(KEPT);
            self.text.shrink_to_fit();
        }
    }
}

/// Position between replies.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) struct Mark {
    text: usize,
    /// Number of attached values before it.
    values: usize,
}

impl Mark {
    /// End of replies that exceeded the limit and were removed.
    pub const EXCEEDED: Mark = Mark { text: usize::MAX, values: usize::MAX };

    pub fn since(self, from: Mark) -> Mark {
        Mark { text: self.text - from.text, values: self.values - from.values }
    }
}

const _: () = assert!(LONG_THRESHOLD <= bulk::LONGEST + 1);

/// Capacity kept for the next replies.
const KEPT: usize = 64 << 10;

/// Memory of an entry of the output queue, which may be half full, and of the owner of its bytes.
const ENTRY: usize = 2 * size_of::<(Bytes, usize)>() + 80;
/// Capacity that an empty output queue keeps.
const KEPT_ENTRIES: usize = 16;

/// Output queue of a connection.
#[derive(Default)]
pub(in crate::service) struct Output {
    /// Queued bytes, each with its memory: sent bytes of a vector are not freed before the rest.
    waiting: VecDeque<(Bytes, usize)>,
    bytes: usize,
    memory: usize,
}

impl Output {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the memory of the queue, without long values.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Sends `replies` on `conn` as far as the transport has room, queues the rest, and clears `replies`.
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
            self.flush(net, conn);
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
        let memory = ENTRY + if bytes.is_vec() { bytes.len() } else { 0 };
        self.memory += memory;
        self.waiting.push_back((bytes, memory));
    }

    /// Sends queued output as far as the transport has room.
    pub fn flush(&mut self, net: &mut impl Transport, conn: ConnId) {
        while let Some((first, memory)) = self.waiting.front_mut() {
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
                self.memory -= *memory;
                self.waiting.pop_front();
            }
        }
        self.waiting.shrink_to(KEPT_ENTRIES);
    }
}
