//! Connection state at the worker.

use linerate_bypass::{Bytes, ConnId, Transport};
use std::collections::VecDeque;

/// Maximum slices of one connection that the service has not consumed, since each may hold a packet of the port. It
/// exceeds the number that the service's thread keeps before it copies them.
const SLICES: usize = 256;

/// Kind of close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// Input is still delivered.
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

/// Relay's state of a connection.
#[derive(Default)]
pub(crate) struct Flow {
    /// Bytes and slices passed on and not reported as consumed.
    held: usize,
    held_slices: usize,
    /// Data that the transport had no room for.
    unsent: VecDeque<Bytes>,
    /// Bytes that the transport took and that are not reported to the service.
    taken: usize,
    /// True if the service waits for room.
    waits_for_room: bool,
    /// Close that follows when all data are sent.
    closing: Option<Close>,
    /// True if it is in the relay's list of connections with data to pass on.
    pub waits: bool,
    /// True if more data may follow when the service has consumed some.
    pub blocked: bool,
}

impl Flow {
    /// Returns the bytes that may be passed on now.
    pub fn allowance(&self, window: usize) -> usize {
        if self.held_slices < SLICES { window.saturating_sub(self.held) } else { 0 }
    }

    /// Records that a slice of `bytes` bytes was passed on.
    pub fn passed(&mut self, bytes: usize) {
        self.held += bytes;
        self.held_slices += 1;
    }

    /// Records consumption by the service.
    pub fn consumed(&mut self, bytes: usize, slices: usize) {
        self.held = self.held.saturating_sub(bytes);
        self.held_slices = self.held_slices.saturating_sub(slices);
    }

    /// Sends `bytes` after all earlier data.
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

    /// Sends queued data as far as there is room.
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
                    // No memory, or a connection that cannot send. In the second case `closed` follows.
                    self.unsent.push_front(piece);
                    return;
                }
            }
        }
        if let Some(close) = self.closing.take() {
            close.run(net, conn);
        }
    }

    /// Closes the connection after all earlier data.
    pub fn close(&mut self, net: &mut impl Transport, conn: ConnId, close: Close) {
        if self.unsent.is_empty() {
            close.run(net, conn);
        } else {
            self.closing = Some(close);
        }
    }

    /// Records that the service waits for room.
    pub fn wait_for_room(&mut self) {
        self.waits_for_room = true;
    }

    /// Returns the room to report to the service, if it is enough.
    pub fn room(&mut self, window: usize) -> Option<usize> {
        if self.taken == 0 || !(self.waits_for_room || self.taken >= window / 4) {
            return None;
        }
        self.waits_for_room = false;
        Some(std::mem::take(&mut self.taken))
    }
}
