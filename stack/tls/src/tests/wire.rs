//! Transport of one connection in memory, a service that records its events, and the peer of both.

use crate::config::{ClientOptions, Identity, ServerOptions, TlsClient, TlsServer};
use crate::handshake::{Established, Handshake, KeySchedule, Progress};
use crate::record::{HEADER, OVERHEAD, Secret, length_of};
use crate::service::Tls;
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, CloseReason, ConnId, Datagram, Origin, Service, Transport, Unsent, WriteError};
use std::collections::VecDeque;
use std::net::SocketAddr;

pub fn conn() -> ConnId {
    ConnId::new(0, 3, 7)
}

/// Transport of one connection.
#[derive(Default)]
pub struct Wire {
    pub received: VecDeque<Bytes>,
    pub sent: Vec<u8>,
    /// Remaining send space.
    pub space: usize,
    /// Maximum length of a reserved buffer.
    pub buffer: usize,
    reserved: Vec<u8>,
    pub is_closed: bool,
    pub is_lingering: bool,
    pub is_aborted: bool,
    pub timer: Option<Duration>,
}

impl Wire {
    fn may_send(&self) -> bool {
        !self.is_closed && !self.is_aborted && !self.is_lingering
    }
}

impl Transport for Wire {
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
            let n = net.write(conn, &slice);
            net.consume(conn, slice.len());
            // Without space, `writable` follows.
            assert!(net.send_space(conn) > 0 || n <= slice.len());
        }
    }

    fn writable(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {
        self.seen.push(Seen::Writable);
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

/// Server under test with one connection, and its peer.
pub struct Pair {
    pub tls: Tls<Recorder>,
    pub wire: Wire,
    pub tx: Secret,
    pub rx: Secret,
    pub updates: KeySchedule,
}

/// Returns configurations of a server and of a client that accepts it.
pub fn configs() -> (TlsServer, TlsClient) {
    let directory = tempfile::tempdir().unwrap();
    let (chain, key) = (directory.path().join("a.pem"), directory.path().join("a.key"));
    let certified = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    std::fs::write(&chain, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let server = ServerOptions { identities: vec![Identity { chain, key }], ..ServerOptions::default() };
    let client = ClientOptions { insecure: true, name: Some("a.test".to_owned()), ..ClientOptions::default() };
    (TlsServer::new(server).unwrap(), TlsClient::new(&client).unwrap())
}

/// Returns a server that has accepted a connection.
pub fn accepted(server: TlsServer) -> (Tls<Recorder>, Wire) {
    let mut tls = Tls::new(server.into(), Recorder::default());
    let mut wire = Wire { space: 1 << 20, buffer: 1400, ..Wire::default() };
    tls.opened(&mut wire, conn(), Origin::Accepted);
    (tls, wire)
}

/// Delivers `bytes` in slices of `cut` bytes.
pub fn deliver(tls: &mut Tls<Recorder>, wire: &mut Wire, bytes: &[u8], cut: usize) {
    for slice in bytes.chunks(cut) {
        wire.received.push_back(Bytes::from(slice.to_vec()));
        tls.turn(wire);
        tls.burst(wire, &[conn()]);
    }
}

impl Pair {
    /// Completes a handshake whose bytes reach the server in slices of `cut` bytes.
    pub fn new(cut: usize) -> Self {
        let (server, client) = configs();
        let (mut tls, mut wire) = accepted(server);
        let mut handshake = Handshake::client(client.config(), client.name().unwrap()).unwrap();
        let mut input = Vec::new();
        loop {
            let mut output = Vec::new();
            input.append(&mut wire.sent);
            let progress = handshake.advance(&mut input, &mut output);
            deliver(&mut tls, &mut wire, &output, cut);
            match progress {
                Progress::NeedsInput => {}
                Progress::Complete => break,
                Progress::Failed(error) => panic!("{error}"),
            }
        }
        assert_eq!(tls.service().seen, [Seen::Opened]);
        let Established { tx, rx, updates, .. } = handshake.finish().unwrap();
        let mut pair = Pair { tls, wire, tx, rx, updates };
        // Tickets.
        assert!(pair.read().iter().all(|(content, _)| *content == 22));
        pair
    }

    /// Returns a record of the peer.
    pub fn record(&mut self, content: u8, data: &[u8]) -> Vec<u8> {
        let mut record = vec![0; data.len() + OVERHEAD];
        record[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.tx.seal(content, &mut record);
        record
    }

    pub fn deliver(&mut self, bytes: &[u8]) {
        deliver(&mut self.tls, &mut self.wire, bytes, usize::MAX);
    }

    /// Sends one record of the peer.
    pub fn send(&mut self, content: u8, data: &[u8]) {
        let record = self.record(content, data);
        self.deliver(&record);
    }

    /// Returns the records that the server has sent.
    pub fn read(&mut self) -> Vec<(u8, Vec<u8>)> {
        let sent = std::mem::take(&mut self.wire.sent);
        let (mut rest, mut records) = (&sent[..], Vec::new());
        while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
            let (record, after) = after.split_at(length_of(*header));
            let mut record = record.to_vec();
            let (content, len) = self.rx.open(&mut record).unwrap();
            record.truncate(len);
            if content == 22 && record[0] == 24 {
                self.rx = self.updates.update_rx().unwrap();
            }
            records.push((content, record));
            rest = after;
        }
        assert!(rest.is_empty());
        records
    }

    /// Returns the application data that the server has sent.
    pub fn data(&mut self) -> Vec<u8> {
        self.read().into_iter().filter(|(content, _)| *content == 23).flat_map(|(_, data)| data).collect()
    }

    /// Asserts that the server has sent the fatal `alert`, and ends the connection.
    #[track_caller]
    pub fn assert_alert(&mut self, alert: u8) {
        let last = self.read().pop().expect("an alert");
        assert_eq!(last, (21, vec![2, alert]));
        assert!(self.wire.is_lingering);
        assert_eq!(self.tls.counters().alerts_sent.get(&alert), Some(&1));
        self.tls.closed(&mut self.wire, conn(), (), CloseReason::Finished);
        assert_eq!(self.tls.service().seen.last(), Some(&Seen::Closed(CloseReason::Aborted)));
    }
}
