//! Transport of one connection in memory, and a service that records its events.

use linerate_service::time::{Duration, Instant};
use linerate_service::{
    Bytes, CloseReason, ConnId, Datagram, Origin, Service, Transport, Unsent, WriteError, respond_in_steps,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

pub fn conn() -> ConnId {
    ConnId::new(0, 3, 7)
}

/// Transport of one connection.
pub struct Wire {
    pub received: VecDeque<Bytes>,
    pub sent: Vec<u8>,
    /// Remaining send space.
    pub space: usize,
    /// Maximum length of a reserved buffer.
    pub buffer: usize,
    pub reserved: Vec<u8>,
    pub is_closed: bool,
    pub is_lingering: bool,
    pub is_aborted: bool,
    pub timer: Option<Duration>,
    pub now: Instant,
    /// Lengths of requests and their responses.
    pub responses: Vec<(usize, usize)>,
}

impl Default for Wire {
    fn default() -> Self {
        Wire {
            received: VecDeque::new(),
            sent: Vec::new(),
            space: 1 << 20,
            buffer: 1400,
            reserved: Vec::new(),
            is_closed: false,
            is_lingering: false,
            is_aborted: false,
            timer: None,
            now: Instant::ZERO,
            responses: Vec::new(),
        }
    }
}

impl Wire {
    fn may_send(&self) -> bool {
        !self.is_closed && !self.is_aborted && !self.is_lingering
    }
}

impl Transport for Wire {
    fn now(&self) -> Instant {
        self.now
    }

    fn worker(&self) -> usize {
        0
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        Some(([10, 0, 0, 2], conn.slot() as u16).into())
    }

    fn peer_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(([10, 0, 0, 1], 1000).into())
    }

    fn received(&self, _: ConnId) -> usize {
        self.received.iter().map(|slice| slice.len()).sum()
    }

    fn peek(&mut self, _: ConnId) -> &[u8] {
        self.received.front().map_or(&[], |slice| slice)
    }

    fn consume(&mut self, _: ConnId, mut n: usize) {
        while let Some(front) = self.received.front_mut() {
            let part = n.min(front.len());
            front.advance(part);
            n -= part;
            if !front.is_empty() {
                return;
            }
            self.received.pop_front();
        }
    }

    fn take(&mut self, _: ConnId, _: usize) -> Option<Bytes> {
        unimplemented!("records are read in place")
    }

    fn send_space(&mut self, _: ConnId) -> usize {
        if self.may_send() { self.space } else { 0 }
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        assert!(self.send_space(conn) < bytes.len(), "records are sent from buffers");
        Err(Unsent { bytes, error: WriteError::Full })
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        let n = max.min(self.send_space(conn)).min(self.buffer);
        self.reserved.resize(n.max(self.reserved.len()), 0);
        if n == 0 { Err(WriteError::Full) } else { Ok(&mut self.reserved[..n]) }
    }

    fn commit(&mut self, _: ConnId, n: usize) {
        self.sent.extend_from_slice(&self.reserved[..n]);
        self.space -= n;
    }

    fn respond(&mut self, conn: ConnId, request: usize, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        self.responses.push((request, len));
        respond_in_steps(self, conn, request, len, write)
    }

    fn close(&mut self, _: ConnId) {
        self.is_closed = true;
    }

    fn lingering_close(&mut self, conn: ConnId) {
        self.is_lingering = true;
        self.consume(conn, usize::MAX);
    }

    fn abort(&mut self, _: ConnId) {
        self.is_aborted = true;
    }

    fn set_timer(&mut self, _: ConnId, delay: Option<Duration>) {
        self.timer = delay;
    }

    fn connect(&mut self, _: SocketAddr, _: u64) {}

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        Err(datagram)
    }
}

/// Event of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Opened,
    Readable(usize),
    Writable,
    PeerClosed,
    Closed(CloseReason),
}

/// Service that sends received bytes back, and records its events.
#[derive(Default)]
pub struct Recorder {
    pub seen: Vec<Seen>,
    pub received: Vec<u8>,
    /// True to leave received bytes unread.
    pub is_lazy: bool,
    /// True to count nothing.
    pub is_silent: bool,
    /// True to send nothing back.
    pub is_sink: bool,
    /// Data to send at the next message.
    pub outgoing: Vec<u8>,
    /// Data that the transport has taken.
    pub accepted: Vec<u8>,
    /// True to close at the next message.
    pub is_closing: bool,
}

impl Service for Recorder {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {
        self.seen.push(Seen::Opened);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        if self.is_silent {
            net.forward(conn, conn);
            return;
        }
        self.seen.push(Seen::Readable(net.received(conn)));
        while !self.is_lazy && net.received(conn) > 0 {
            let slice = net.peek(conn).to_vec();
            self.received.extend_from_slice(&slice);
            let n = if self.is_sink { 0 } else { net.write(conn, &slice) };
            net.consume(conn, slice.len());
            // Without space, `writable` follows.
            assert!(net.send_space(conn) > 0 || n <= slice.len());
        }
    }

    fn writable(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {
        self.seen.push(Seen::Writable);
    }

    fn message(&mut self, net: &mut impl Transport, (): ()) {
        let outgoing = std::mem::take(&mut self.outgoing);
        let sent = net.write(conn(), &outgoing);
        self.accepted.extend_from_slice(&outgoing[..sent]);
        if self.is_closing {
            net.close(conn());
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        assert_eq!(net.received(conn), 0);
        self.seen.push(Seen::PeerClosed);
        net.close(conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.seen.push(Seen::Closed(reason));
    }
}
