//! Streams of a device over a transport whose network is the test.

use crate::{Carrier, Config, Device, Driver, Engine, StreamTable};
use linerate_rdma_provider::{Provider, StreamEvent, Streams};
use linerate_service::time::{Duration, Instant};
use linerate_service::{
    Bytes, CloseReason, ConnId, ConnectError, Datagram, Origin, Service, Transport, Unsent, WriteError,
};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

/// Connection of [`Net`].
#[derive(Default)]
struct Conn {
    received: Vec<u8>,
    sent: Vec<u8>,
    is_closed: bool,
    is_aborted: bool,
}

/// Transport with received and sent bytes of each connection.
#[derive(Default)]
struct Net {
    conns: Vec<Conn>,
    buffer: Vec<u8>,
    connects: Vec<(SocketAddr, u64)>,
}

fn local() -> SocketAddr {
    ([10, 0, 0, 1], 7).into()
}

fn remote() -> SocketAddr {
    ([10, 0, 0, 2], 1000).into()
}

impl Transport for Net {
    fn now(&self) -> Instant {
        Instant::ZERO
    }

    fn worker(&self) -> usize {
        0
    }

    fn local_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(local())
    }

    fn peer_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(remote())
    }

    fn received(&self, conn: ConnId) -> usize {
        self.conns[conn.slot()].received.len()
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        &self.conns[conn.slot()].received
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.conns[conn.slot()].received.drain(..n);
    }

    fn take(&mut self, _: ConnId, _: usize) -> Option<Bytes> {
        None
    }

    fn send_space(&mut self, _: ConnId) -> usize {
        0
    }

    fn send(&mut self, _: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        Err(Unsent { bytes, error: WriteError::Full })
    }

    fn reserve(&mut self, _: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        self.buffer.resize(max, 0);
        Ok(&mut self.buffer)
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        self.conns[conn.slot()].sent.extend(self.buffer.drain(..n));
    }

    fn close(&mut self, conn: ConnId) {
        self.conns[conn.slot()].is_closed = true;
    }

    fn lingering_close(&mut self, conn: ConnId) {
        self.close(conn);
    }

    fn abort(&mut self, conn: ConnId) {
        self.conns[conn.slot()].is_aborted = true;
    }

    fn set_timer(&mut self, _: ConnId, _: Option<Duration>) {}

    fn connect(&mut self, remote: SocketAddr, token: u64) {
        self.connects.push((remote, token));
    }

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        Err(datagram)
    }
}

/// Port of a device.
struct Node {
    carrier: Carrier,
    net: Net,
}

impl Driver for Node {
    fn engine(&mut self) -> &mut Engine {
        &mut self.carrier.engine
    }

    fn now(&self) -> Instant {
        Instant::ZERO
    }

    fn turn(&mut self) {
        self.carrier.turn(&mut self.net);
    }

    fn streams(&mut self) -> Option<&mut StreamTable> {
        self.carrier.streams.as_deref_mut()
    }
}

/// Device whose port listens on [`local`] and has started, and its streams.
struct Rig {
    device: Arc<Device<Node>>,
    streams: Box<dyn Streams>,
}

impl Rig {
    fn new() -> Self {
        let config = Config { seed: 1, mtu: 1500, addresses: vec![(local().ip(), 24)] };
        let streams = Some(Box::new(StreamTable::new(vec![local()]).unwrap()));
        let mut carrier = Carrier { engine: Engine::new(&config).unwrap(), now: Instant::ZERO, streams };
        let mut net = Net::default();
        carrier.start(&mut net);
        let device = Arc::new(Device::new("roce", Node { carrier, net }));
        let streams = device.streams().unwrap().unwrap();
        Rig { device, streams }
    }

    /// Establishes a connection. Returns it and the number of its stream.
    fn opened(&self, origin: Origin) -> (ConnId, u64) {
        let Node { carrier, net } = &mut *self.device.driver();
        let conn = ConnId::new(0, net.conns.len(), 0);
        net.conns.push(Conn::default());
        (conn, carrier.opened(net, conn, origin))
    }

    fn arrive(&self, (conn, mut stream): (ConnId, u64), bytes: &[u8]) {
        let Node { carrier, net } = &mut *self.device.driver();
        net.conns[conn.slot()].received.extend(bytes);
        carrier.readable(net, conn, &mut stream);
    }

    fn closed(&self, (conn, stream): (ConnId, u64), reason: CloseReason) {
        let Node { carrier, net } = &mut *self.device.driver();
        carrier.closed(net, conn, stream, reason);
    }

    fn conn<T>(&self, (conn, _): (ConnId, u64), of: impl FnOnce(&Conn) -> T) -> T {
        of(&self.device.driver().net.conns[conn.slot()])
    }

    fn events(&mut self) -> Vec<StreamEvent> {
        std::iter::from_fn(|| self.streams.next_event().unwrap()).collect()
    }

    /// Reads at most 100 bytes.
    fn read(&mut self, stream: u64) -> Result<Vec<u8>, ErrorKind> {
        let mut into = [0; 100];
        let n = self.streams.read(stream, &mut into).map_err(|error| error.kind())?;
        Ok(into[..n].to_vec())
    }

    fn addresses(&mut self, stream: u64) -> Result<[SocketAddr; 2], ErrorKind> {
        self.streams.addresses(stream).map_err(|error| error.kind())
    }
}

#[test]
fn client_is_accepted_and_its_bytes_are_read_until_the_end() {
    let mut rig = Rig::new();
    assert_eq!(rig.streams.listen(remote()).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    assert_eq!(rig.streams.listen(local()).unwrap(), local());
    let client = rig.opened(Origin::Accepted);
    assert_eq!(rig.events(), [StreamEvent::Incoming]);
    let stream = rig.streams.accept().unwrap();
    assert_eq!(stream, client.1);
    assert_eq!(rig.streams.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(rig.addresses(stream), Ok([local(), remote()]));
    assert_eq!(rig.read(stream), Err(ErrorKind::WouldBlock));
    rig.arrive(client, &[b'x'; 120]);
    assert_eq!(rig.events(), [StreamEvent::Ready(stream)]);
    assert_eq!(rig.read(stream).map(|bytes| bytes.len()), Ok(100));
    assert_eq!(rig.read(stream).map(|bytes| bytes.len()), Ok(20));
    rig.streams.write(stream, b"reply").unwrap();
    assert_eq!(rig.conn(client, |conn| conn.sent.clone()), b"reply");
    rig.closed(client, CloseReason::Finished);
    assert_eq!(rig.events(), [StreamEvent::Ready(stream)]);
    assert_eq!(rig.read(stream), Ok(vec![]));
    rig.streams.close(stream);
    assert_eq!(rig.read(stream), Err(ErrorKind::NotConnected));
}

#[test]
fn connect_succeeds_fails_or_is_given_up() {
    let mut rig = Rig::new();
    let streams = [(); 3].map(|()| rig.streams.connect(remote()).unwrap());
    assert_eq!(rig.device.driver().net.connects, streams.map(|stream| (remote(), stream)));
    assert_eq!(rig.addresses(streams[0]), Err(ErrorKind::NotConnected));
    rig.opened(Origin::Connected(streams[0]));
    assert_eq!(rig.addresses(streams[0]), Ok([local(), remote()]));
    {
        let Node { carrier, net } = &mut *rig.device.driver();
        carrier.failed(net, streams[1], ConnectError::Refused);
    }
    assert_eq!(rig.addresses(streams[1]), Err(ErrorKind::ConnectionRefused));
    assert_eq!(rig.events(), [StreamEvent::Ready(streams[0]), StreamEvent::Ready(streams[1])]);
    rig.streams.close(streams[2]);
    let late = rig.opened(Origin::Connected(streams[2]));
    assert!(rig.conn(late, |conn| conn.is_aborted) && rig.events().is_empty());
}

#[test]
fn unexpected_clients_are_reset_and_leave_nothing_behind() {
    let mut rig = Rig::new();
    let client = rig.opened(Origin::Accepted);
    assert!(rig.conn(client, |conn| conn.is_aborted), "no address is listened on");
    rig.streams.listen(local()).unwrap();
    // More bytes than any handshake has.
    let client = rig.opened(Origin::Accepted);
    rig.arrive(client, &[b'x'; 200]);
    assert!(!rig.conn(client, |conn| conn.is_aborted));
    rig.arrive(client, &[b'x'; 200]);
    assert!(rig.conn(client, |conn| conn.is_aborted));
    rig.closed(client, CloseReason::Aborted);
    assert_eq!(rig.streams.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "it left before it was accepted");
    rig.streams.stop_listening();
    let client = rig.opened(Origin::Accepted);
    assert!(rig.conn(client, |conn| conn.is_aborted));
}

#[test]
fn end_of_the_connector_closes_its_streams() {
    let mut rig = Rig::new();
    rig.streams.listen(local()).unwrap();
    let client = rig.opened(Origin::Accepted);
    let Rig { device, streams } = rig;
    drop(streams);
    let streams = device.streams().unwrap().unwrap();
    let mut rig = Rig { device, streams };
    assert!(rig.conn(client, |conn| conn.is_closed));
    assert_eq!(rig.streams.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(rig.events().is_empty());
}
