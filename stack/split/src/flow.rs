//! Connection state at the worker.

use linerate_bypass::{Bytes, BytesQueue, ConnId, Transport};

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
    unsent: BytesQueue,
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

    /// Returns the slices that wait for room in the transport.
    pub fn unsent_slices(&self) -> usize {
        self.unsent.slices()
    }

    /// Sends `bytes` after all earlier data. If they must wait, they are copied unless `may_wait`, since they may hold
    /// a packet of the port. Returns the number of copied bytes.
    pub fn send(&mut self, net: &mut impl Transport, conn: ConnId, bytes: Bytes, may_wait: bool) -> usize {
        if !self.unsent.is_empty() {
            return self.queue(bytes, may_wait);
        }
        let len = bytes.len();
        match net.send(conn, bytes) {
            Ok(()) => {
                self.taken += len;
                0
            }
            Err(bytes) => {
                self.unsent.push(bytes);
                self.send_more(net, conn);
                match self.unsent.take(usize::MAX) {
                    Some(rest) => self.queue(rest, may_wait),
                    None => 0,
                }
            }
        }
    }

    /// Queues `bytes` behind all earlier data.
    fn queue(&mut self, bytes: Bytes, may_wait: bool) -> usize {
        let len = bytes.len();
        if may_wait {
            self.unsent.push(bytes);
        } else {
            self.unsent.push(Bytes::from(bytes.to_vec()));
        }
        let gathered = if self.unsent.is_scattered() { self.unsent.gather() } else { 0 };
        gathered + if may_wait { 0 } else { len }
    }

    /// Sends queued data as far as there is room.
    pub fn send_more(&mut self, net: &mut impl Transport, conn: ConnId) {
        while !self.unsent.is_empty() {
            let Some(piece) = self.unsent.take(net.send_space(conn)) else { return };
            let len = piece.len();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slices_that_wait_are_gathered() {
        let mut flow = Flow::default();
        let copied: usize = (0..1000_u32).map(|n| flow.queue(Bytes::from(vec![n as u8]), true)).sum();
        assert!(copied > 0 && flow.unsent_slices() < 100, "{} slices", flow.unsent_slices());
        let sent = std::iter::from_fn(|| flow.unsent.take(usize::MAX)).flat_map(|slice| slice.to_vec());
        assert!(sent.eq((0..1000_u32).map(|n| n as u8)));
    }

    #[test]
    fn slices_that_may_not_wait_are_copied() {
        let (mut flow, packet) = (Flow::default(), Bytes::from(vec![7; 1448]));
        assert_eq!(flow.queue(packet.clone(), true), 0);
        assert_eq!(flow.queue(packet.clone(), false), 1448);
        let at = |bytes: Option<Bytes>| bytes.unwrap().as_ptr();
        assert_eq!(at(flow.unsent.take(usize::MAX)), packet.as_ptr());
        assert_ne!(at(flow.unsent.take(usize::MAX)), packet.as_ptr());
    }
}
