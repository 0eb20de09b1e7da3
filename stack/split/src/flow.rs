//! Connection state at the worker.

use linerate_service::{Bytes, BytesQueue, ConnId, Transport, Unsent};

/// Maximum slices of one connection that the service has not consumed, since each may hold a packet of the port. It
/// exceeds the number that the service's thread keeps before it copies them.
const SLICES: usize = 256;

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
            Err(Unsent { bytes, .. }) => {
                self.unsent.push(bytes);
                self.send_more(net, conn);
                if may_wait { 0 } else { self.unsent.gather() }
            }
        }
    }

    /// Queues `bytes` after all earlier data.
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
            let Some(chunk) = self.unsent.take(net.send_space(conn)) else { return };
            let len = chunk.len();
            match net.send(conn, chunk) {
                Ok(()) => self.taken += len,
                Err(Unsent { bytes: chunk, .. }) => {
                    // No memory, or a connection that cannot send. In the second case `closed` follows.
                    self.unsent.push_front(chunk);
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
    use linerate_service::time::{Duration, Instant};
    use linerate_service::{Datagram, WriteError};
    use std::net::SocketAddr;

    /// Transport with limited room, which may have no memory.
    #[derive(Default)]
    struct Limited {
        room: usize,
        has_memory: bool,
        sent: Vec<u8>,
    }

    impl Transport for Limited {
        fn send_space(&mut self, _: ConnId) -> usize {
            self.room
        }

        fn send(&mut self, _: ConnId, bytes: Bytes) -> Result<(), Unsent> {
            if bytes.len() > self.room || !self.has_memory {
                return Err(Unsent { bytes, error: WriteError::Full });
            }
            self.room -= bytes.len();
            self.sent.extend_from_slice(&bytes);
            Ok(())
        }

        fn now(&self) -> Instant {
            Instant::ZERO
        }

        fn worker(&self) -> usize {
            0
        }

        fn local_addr(&self, _: ConnId) -> Option<SocketAddr> {
            None
        }

        fn peer_addr(&self, _: ConnId) -> Option<SocketAddr> {
            None
        }

        fn received(&self, _: ConnId) -> usize {
            0
        }

        fn peek(&mut self, _: ConnId) -> &[u8] {
            &[]
        }

        fn consume(&mut self, _: ConnId, _: usize) {}

        fn take(&mut self, _: ConnId, _: usize) -> Option<Bytes> {
            None
        }

        fn reserve(&mut self, _: ConnId, _: usize) -> Result<&mut [u8], WriteError> {
            Err(WriteError::Full)
        }

        fn commit(&mut self, _: ConnId, _: usize) {}

        fn close(&mut self, _: ConnId) {}

        fn abort(&mut self, _: ConnId) {}

        fn set_timer(&mut self, _: ConnId, _: Option<Duration>) {}

        fn connect(&mut self, _: SocketAddr, _: u64) {}

        fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
            Err(datagram)
        }
    }

    const CONN: fn() -> ConnId = || ConnId::new(0, 0, 0);

    #[test]
    fn data_is_sent_in_order_however_room_and_memory_change() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut net, mut flow, mut given) = (Limited::default(), Flow::default(), Vec::new());
        for _ in 0..10_000 {
            net.room = random.usize(..300);
            net.has_memory = random.bool();
            if random.u32(..4) == 0 {
                let bytes: Vec<u8> = (0..random.usize(1..200)).map(|_| random.u8(..)).collect();
                given.extend_from_slice(&bytes);
                flow.send(&mut net, CONN(), Bytes::from(bytes), random.bool());
            } else {
                flow.send_more(&mut net, CONN());
            }
            assert!(given.starts_with(&net.sent) && net.sent.len() + flow.unsent.len() == given.len());
        }
        (net.room, net.has_memory) = (usize::MAX, true);
        flow.send_more(&mut net, CONN());
        assert!(net.sent == given && flow.taken == given.len());
    }

    #[test]
    fn short_slices_that_wait_are_gathered() {
        let (mut net, mut flow) = (Limited::default(), Flow::default());
        let copied: usize = (0..1000_u32).map(|n| flow.send(&mut net, CONN(), Bytes::from(vec![n as u8]), true)).sum();
        assert!(copied > 0 && flow.unsent_slices() < 100, "{} slices", flow.unsent_slices());
    }

    #[test]
    fn slices_that_may_not_wait_are_copied() {
        let (mut net, packet) = (Limited { has_memory: true, room: 100, ..Limited::default() }, [7; 1448]);
        for (waiting, rest) in [(0, 1348), (1, 1448)] {
            let mut flow = Flow::default();
            (0..waiting).for_each(|_| _ = flow.send(&mut net, CONN(), Bytes::from_static(&[7; 1448]), true));
            let bytes = Bytes::from(packet.to_vec());
            let at = bytes.as_ptr_range();
            assert_eq!(flow.send(&mut net, CONN(), bytes, false), rest);
            let last = std::iter::from_fn(|| flow.unsent.take(usize::MAX)).last().unwrap();
            assert!(last.len() == rest && !at.contains(&last.as_ptr()));
            net.room = 100;
        }
    }
}
