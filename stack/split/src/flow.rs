//! A connection at the worker.

use linerate_bypass::{Bytes, ConnId, Transport};
use std::collections::VecDeque;

/// Slices of one connection that the service has not consumed, at most: each may keep a packet of the port, however short it is. More
/// than are left lying at the service's thread before they are copied.
const SLICES: usize = 256;

/// How a service closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// Input is delivered as before.
    Half,
    /// Input is discarded.
    Lingering,
}

impl Close {
    fn run(self, net: &mut impl Transport, conn: ConnId) {
        match self {
            Close::Half => net.close(conn),
            Close::Lingering => net.lingering_close(conn),
        }
    }
}

/// What the relay keeps for a connection.
#[derive(Default)]
pub(crate) struct Flow {
    /// Bytes and slices passed on that the service has not consumed, as far as it has said.
    held: usize,
    held_slices: usize,
    /// What the transport had no room for.
    unsent: VecDeque<Bytes>,
    /// Bytes that the transport took, of which the service has not been told.
    taken: usize,
    /// The service waits for room.
    starved: bool,
    /// The close that is to follow when everything is sent.
    closing: Option<Close>,
    /// In the relay's list of those that wait to pass something on.
    pub waits: bool,
    /// There may be more to take when the service has consumed something.
    pub blocked: bool,
}

impl Flow {
    /// Bytes that may be passed on now.
    pub fn allowance(&self, window: usize) -> usize {
        if self.held_slices < SLICES { window.saturating_sub(self.held) } else { 0 }
    }

    /// A slice of so many bytes was passed on.
    pub fn passed(&mut self, bytes: usize) {
        self.held += bytes;
        self.held_slices += 1;
    }

    /// The service has consumed so much.
    pub fn consumed(&mut self, bytes: usize, slices: usize) {
        self.held = self.held.saturating_sub(bytes);
        self.held_slices = self.held_slices.saturating_sub(slices);
    }

    /// Sends `bytes` after everything before.
    pub fn send(&mut self, net: &mut impl Transport, conn: ConnId, bytes: Bytes) {
        let len = bytes.len();
        if !self.unsent.is_empty() {
            self.unsent.push_back(bytes);
            return;
        }
        match net.send(conn, bytes) {
            Ok(()) => self.taken += len,
            Err(bytes) => {
                self.unsent.push_back(bytes);
                self.send_more(net, conn);
            }
        }
    }

    /// Sends what waits, as far as there is room.
    pub fn send_more(&mut self, net: &mut impl Transport, conn: ConnId) {
        while let Some(first) = self.unsent.front_mut() {
            let room = net.send_space(conn);
            if room == 0 {
                return;
            }
            let len = first.len().min(room);
            let piece =
                if len < first.len() { first.split_to(len) } else { self.unsent.pop_front().unwrap_or_default() };
            match net.send(conn, piece) {
                Ok(()) => self.taken += len,
                Err(piece) => {
                    // No memory, or a connection that cannot send any more. The end of that will be told.
                    self.unsent.push_front(piece);
                    return;
                }
            }
        }
        if let Some(close) = self.closing.take() {
            close.run(net, conn);
        }
    }

    /// Closes it after everything before.
    pub fn close(&mut self, net: &mut impl Transport, conn: ConnId, close: Close) {
        if self.unsent.is_empty() {
            close.run(net, conn);
        } else {
            self.closing = Some(close);
        }
    }

    /// The service waits for room.
    pub fn starve(&mut self) {
        self.starved = true;
    }

    /// How much room the service is to be told of now, if it is enough to tell.
    pub fn room(&mut self, window: usize) -> Option<usize> {
        if self.taken == 0 || !(self.starved || self.taken >= window / 4) {
            return None;
        }
        self.starved = false;
        Some(std::mem::take(&mut self.taken))
    }
}
