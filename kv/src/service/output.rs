//! Replies on their way out.

use crate::sink::Sink;
use linerate_bypass::{Bytes, ConnId, Transport};
use std::collections::VecDeque;

/// What is attached and shorter than this is copied: a piece of a packet for itself costs more.
const SHORT: usize = 1024;

/// Replies, in order: bytes, and values between them that are sent from where they lie.
#[derive(Default)]
pub(super) struct Replies {
    text: Vec<u8>,
    /// Values, and how many bytes of the text come before each.
    values: Vec<(usize, Bytes)>,
    /// Bytes of the values.
    attached: usize,
}

impl Sink for Replies {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    fn attach(&mut self, bytes: Bytes) {
        if bytes.len() < SHORT {
            return self.put(&bytes);
        }
        self.attached += bytes.len();
        self.values.push((self.text.len(), bytes));
    }
}

impl Replies {
    /// A value, with the line in front of it.
    #[inline(always)]
    pub fn bulk(&mut self, head: &[u8], value: &[u8]) {
        self.text.reserve(head.len() + value.len() + 2);
        self.text.extend_from_slice(head);
        self.text.extend_from_slice(value);
        self.text.extend_from_slice(b"\r\n");
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.values.is_empty()
    }

    /// Bytes of all of them.
    pub fn len(&self) -> usize {
        self.text.len() + self.attached
    }

    /// Puts `others` behind them, of which nothing is left there.
    pub fn append(&mut self, others: &mut Replies) {
        let before = self.text.len();
        self.text.extend_from_slice(&others.text);
        self.values.extend(others.values.drain(..).map(|(at, bytes)| (before + at, bytes)));
        self.attached += others.attached;
        others.clear();
    }

    pub fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(KEPT);
        self.values.clear();
        self.attached = 0;
    }
}

/// Room that is kept for the next replies.
const KEPT: usize = 64 << 10;

/// What waits until there is room for it.
#[derive(Default)]
pub(super) struct Output {
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
            let sent = net.write(conn, &replies.text);
            if sent < replies.text.len() {
                self.wait(Bytes::from(replies.text[sent..].to_vec()));
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
        self.text(net, conn, &replies.text[from..]);
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
            let room = net.room(conn).min(first.len());
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
