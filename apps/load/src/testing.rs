//! Transport for unit tests: connections are pairs of byte queues, and the test acts as the network.

use crate::Plan;
use linerate_service::time::{Duration, Instant};
use linerate_service::{
    Bytes, CloseReason, ConnId, ConnectError, Datagram, OneSidedError, OneSidedOp, OneSidedResult, Origin, Service,
    Transport, Unsent, WriteError,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Returns a plan of `connections` connections to one port, which measures for a second without warming up.
pub fn a_second(connections: usize) -> Plan {
    Plan { remote: ([10, 0, 0, 2], 7).into(), connections, duration: Duration::from_secs(1), ..Plan::default() }
}

struct Conn<S> {
    state: Option<S>,
    rx: Vec<u8>,
    tx: Vec<u8>,
    closed: bool,
    ended: bool,
    end_delivered: bool,
    wants_room: bool,
    aborted: bool,
}

/// Fake transport. `room` is the send capacity of each connection.
pub struct FakeTransport<S> {
    room: usize,
    /// Largest slice returned by `reserve`.
    pub longest_reserve: usize,
    /// Largest slice returned by `peek`.
    pub longest_peek: usize,
    scratch: Vec<u8>,
    conns: Vec<Conn<S>>,
    /// Current time.
    pub now: Instant,
    /// Tokens of pending connection attempts.
    pub connects: Vec<u64>,
    /// Sent datagrams.
    pub datagrams: Vec<Datagram>,
    /// Armed timers.
    pub timers: Vec<(ConnId, Instant)>,
    /// Number of `consume` calls, and of `reserve` calls.
    pub consumed: usize,
    pub reserved: usize,
    /// Outstanding one-sided operations, oldest first, and their limit; 0 if the transport has none.
    pub remotes: VecDeque<(ConnId, OneSidedOp, u64)>,
    pub remote_room: usize,
}

impl<S> FakeTransport<S> {
    pub fn new(room: usize) -> Self {
        FakeTransport {
            room,
            longest_reserve: usize::MAX,
            longest_peek: usize::MAX,
            scratch: Vec::new(),
            conns: Vec::new(),
            now: Instant::from_nanos(1),
            connects: Vec::new(),
            datagrams: Vec::new(),
            timers: Vec::new(),
            consumed: 0,
            reserved: 0,
            remotes: VecDeque::new(),
            remote_room: 0,
        }
    }

    /// Returns the bytes sent and not drained.
    pub fn sent(&self, conn: ConnId) -> Vec<u8> {
        self.conns[conn.slot()].tx.clone()
    }

    /// Returns whether the service closed the connection.
    pub fn is_closed(&self, conn: ConnId) -> bool {
        self.conns[conn.slot()].closed
    }

    /// Returns whether the service aborted the connection.
    pub fn is_aborted(&self, conn: ConnId) -> bool {
        self.conns[conn.slot()].aborted
    }

    /// Returns the connections that still exist.
    pub fn alive(&self) -> Vec<ConnId> {
        let slots = self.conns.iter().enumerate().filter(|(_, conn)| conn.state.is_some());
        slots.map(|(slot, _)| ConnId::new(0, slot, 0)).collect()
    }

    fn open(&mut self, service: &mut impl Service<Conn = S>, origin: Origin) -> ConnId {
        let id = ConnId::new(0, self.conns.len(), 0);
        self.conns.push(Conn {
            state: None,
            rx: Vec::new(),
            tx: Vec::new(),
            closed: false,
            ended: false,
            end_delivered: false,
            wants_room: false,
            aborted: false,
        });
        let state = service.opened(self, id, origin);
        self.conns[id.slot()].state = Some(state);
        id
    }

    fn event(&mut self, conn: ConnId, event: impl FnOnce(&mut Self, &mut S)) {
        if let Some(mut state) = self.conns[conn.slot()].state.take() {
            event(self, &mut state);
            self.conns[conn.slot()].state = Some(state);
        }
    }

    /// Accepts a connection from a peer.
    pub fn accept(&mut self, service: &mut impl Service<Conn = S>) -> ConnId {
        self.open(service, Origin::Accepted)
    }

    /// Establishes the oldest pending connection.
    pub fn establish(&mut self, service: &mut impl Service<Conn = S>) -> ConnId {
        let token = self.connects.remove(0);
        self.open(service, Origin::Connected(token))
    }

    /// Fails the oldest pending connection.
    pub fn refuse(&mut self, service: &mut impl Service<Conn = S>, error: ConnectError) {
        let token = self.connects.remove(0);
        service.failed(self, token, error);
    }

    /// Delivers bytes from the peer.
    pub fn arrive(&mut self, service: &mut impl Service<Conn = S>, conn: ConnId, bytes: &[u8]) {
        self.conns[conn.slot()].rx.extend(bytes);
        self.event(conn, |net, state| service.readable(net, conn, state));
    }

    /// Ends the peer's stream.
    pub fn end(&mut self, service: &mut impl Service<Conn = S>, conn: ConnId) {
        self.conns[conn.slot()].ended = true;
        self.deliver_end(service, conn);
    }

    fn deliver_end(&mut self, service: &mut impl Service<Conn = S>, conn: ConnId) {
        let c = &mut self.conns[conn.slot()];
        if c.ended && !c.end_delivered && c.rx.is_empty() {
            c.end_delivered = true;
            self.event(conn, |net, state| service.peer_closed(net, conn, state));
        }
    }

    /// Acknowledges and returns everything sent, which makes room again.
    pub fn drain(&mut self, service: &mut impl Service<Conn = S>, conn: ConnId) -> Vec<u8> {
        let c = &mut self.conns[conn.slot()];
        let sent = std::mem::take(&mut c.tx);
        if std::mem::take(&mut c.wants_room) {
            self.event(conn, |net, state| service.writable(net, conn, state));
        }
        self.deliver_end(service, conn);
        sent
    }

    /// Removes the connection.
    pub fn gone(&mut self, service: &mut impl Service<Conn = S>, conn: ConnId, reason: CloseReason) {
        if let Some(state) = self.conns[conn.slot()].state.take() {
            self.timers.retain(|(of, _)| *of != conn);
            service.closed(self, conn, state, reason);
        }
    }

    /// Completes the oldest one-sided operation with the result of `act`; returns whether there was one.
    pub fn do_remote(
        &mut self,
        service: &mut impl Service<Conn = S>,
        act: impl FnOnce(OneSidedOp) -> OneSidedResult,
    ) -> bool {
        let Some((conn, operation, token)) = self.remotes.pop_front() else { return false };
        let done = act(operation);
        self.event(conn, |net, state| service.one_sided_done(net, conn, state, token, done));
        true
    }

    /// Advances time and fires timers.
    pub fn pass(&mut self, service: &mut impl Service<Conn = S>, time: Duration) {
        self.now += time;
        let now = self.now;
        let due: Vec<_> = self.timers.extract_if(.., |(_, when)| *when <= now).collect();
        for (conn, _) in due {
            self.event(conn, |net, state| service.timer(net, conn, state));
        }
    }
}

impl<S> Transport for FakeTransport<S> {
    fn now(&self) -> Instant {
        self.now
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

    fn received(&self, conn: ConnId) -> usize {
        self.conns[conn.slot()].rx.len()
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        let rx = &self.conns[conn.slot()].rx;
        &rx[..rx.len().min(self.longest_peek)]
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.consumed += 1;
        let rx = &mut self.conns[conn.slot()].rx;
        rx.drain(..n.min(rx.len()));
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        let rx = &mut self.conns[conn.slot()].rx;
        let n = max.min(rx.len());
        (n > 0).then(|| Bytes::from(rx.drain(..n).collect::<Vec<u8>>()))
    }

    fn send_space(&mut self, conn: ConnId) -> usize {
        let c = &mut self.conns[conn.slot()];
        let room = if c.closed { 0 } else { self.room - c.tx.len() };
        c.wants_room |= room == 0;
        room
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        if self.send_space(conn) < bytes.len() {
            self.conns[conn.slot()].wants_room = true;
            return Err(Unsent { bytes, error: WriteError::Full });
        }
        self.conns[conn.slot()].tx.extend(&bytes[..]);
        Ok(())
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        self.reserved += 1;
        let n = self.send_space(conn).min(max).min(self.longest_reserve);
        self.scratch.resize(n, 0);
        if n == 0 { Err(WriteError::Full) } else { Ok(&mut self.scratch) }
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        let bytes = &self.scratch[..n];
        self.conns[conn.slot()].tx.extend(bytes);
    }

    fn close(&mut self, conn: ConnId) {
        self.conns[conn.slot()].closed = true;
    }

    fn abort(&mut self, conn: ConnId) {
        self.conns[conn.slot()].aborted = true;
    }

    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>) {
        self.timers.retain(|(of, _)| *of != conn);
        self.timers.extend(delay.map(|delay| (conn, self.now + delay)));
    }

    fn connect(&mut self, _: SocketAddr, token: u64) {
        self.connects.push(token);
    }

    fn post_one_sided(&mut self, conn: ConnId, operation: OneSidedOp, token: u64) -> Result<(), OneSidedError> {
        if self.remote_room == 0 {
            return Err(OneSidedError::Unsupported);
        }
        if self.remotes.len() >= self.remote_room {
            return Err(OneSidedError::NoRoom);
        }
        self.remotes.push_back((conn, operation, token));
        Ok(())
    }

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        self.datagrams.push(datagram);
        Ok(())
    }
}
