//! TCP of a device: streams over a transport, for the exchange of queue pair attributes.

use crate::provider::{Device, Driver};
use crate::waker::Waker;
use linerate_rdma_provider::{Keepalive, StreamEvent, Streams};
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Transport};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Unread bytes beyond which a stream is reset. No handshake has as many.
const MAX_UNREAD: usize = 256;

/// Streams of a device. The connector reads and writes them between the turns of the transport.
pub struct StreamTable {
    /// Addresses on which the transport listens.
    bound: Vec<SocketAddr>,
    /// Addresses on which clients are accepted.
    listening: Vec<SocketAddr>,
    streams: HashMap<u64, Stream>,
    /// Streams of clients, until the connector accepts them.
    waiting: VecDeque<u64>,
    next: u64,
    events: Waker<StreamEvent>,
    requests: VecDeque<Request>,
    /// The transport has an address.
    started: bool,
}

#[derive(Default)]
struct Stream {
    /// Connection and its addresses, from when it is established until it has ended.
    conn: Option<ConnId>,
    addresses: Option<[SocketAddr; 2]>,
    unread: Vec<u8>,
    /// `UnexpectedEof` after the peer's FIN.
    end: Option<ErrorKind>,
}

/// Operation for the next turn of the transport.
enum Request {
    Connect(u64, SocketAddr),
    Write(ConnId, Vec<u8>),
    Close(ConnId),
}

impl StreamTable {
    /// Creates the streams of a transport that listens on `bound`.
    ///
    /// # Errors
    /// An error of `eventfd(2)`.
    pub fn new(bound: Vec<SocketAddr>) -> io::Result<Self> {
        Ok(StreamTable {
            bound,
            listening: Vec::new(),
            streams: HashMap::new(),
            waiting: VecDeque::new(),
            next: 0,
            events: Waker::new()?,
            requests: VecDeque::new(),
            started: false,
        })
    }

    fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        if !self.bound.contains(&address) {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        self.listening.push(address);
        Ok(address)
    }

    fn stop_listening(&mut self) {
        self.listening.clear();
    }

    fn accept(&mut self) -> io::Result<u64> {
        self.waiting.pop_front().ok_or_else(|| ErrorKind::WouldBlock.into())
    }

    fn connect(&mut self, remote: SocketAddr) -> u64 {
        let stream = self.add(Stream::default());
        self.requests.push_back(Request::Connect(stream, remote));
        stream
    }

    fn add(&mut self, stream: Stream) -> u64 {
        self.next += 1;
        self.streams.insert(self.next, stream);
        self.next
    }

    fn next_event(&mut self) -> Option<StreamEvent> {
        self.events.pop()
    }

    fn stream(&mut self, stream: u64) -> io::Result<&mut Stream> {
        self.streams.get_mut(&stream).ok_or_else(|| ErrorKind::NotConnected.into())
    }

    fn addresses(&mut self, stream: u64) -> io::Result<[SocketAddr; 2]> {
        let Stream { addresses, end, .. } = self.stream(stream)?;
        addresses.ok_or_else(|| end.unwrap_or(ErrorKind::NotConnected).into())
    }

    fn read(&mut self, stream: u64, into: &mut [u8]) -> io::Result<usize> {
        let Stream { unread, end, .. } = self.stream(stream)?;
        let n = into.len().min(unread.len());
        match *end {
            _ if n > 0 => into[..n].copy_from_slice(&unread[..n]),
            None => return Err(ErrorKind::WouldBlock.into()),
            Some(ErrorKind::UnexpectedEof) => {}
            Some(error) => return Err(error.into()),
        }
        unread.drain(..n);
        Ok(n)
    }

    fn write(&mut self, stream: u64, bytes: &[u8]) -> io::Result<()> {
        let conn = self.stream(stream)?.conn.ok_or(ErrorKind::NotConnected)?;
        self.requests.push_back(Request::Write(conn, bytes.to_vec()));
        Ok(())
    }

    fn close(&mut self, stream: u64) {
        if let Some(conn) = self.streams.remove(&stream).and_then(|stream| stream.conn) {
            self.requests.push_back(Request::Close(conn));
        }
    }

    /// Ends all streams of a connector.
    fn close_all(&mut self) {
        self.stop_listening();
        self.waiting.clear();
        self.events.retain(|_| false);
        self.requests.extend(self.streams.drain().filter_map(|(_, stream)| stream.conn).map(Request::Close));
    }

    pub(crate) fn start(&mut self) {
        self.started = true;
    }

    /// Performs the operations of the connector.
    #[inline]
    pub(crate) fn turn(&mut self, net: &mut impl Transport) {
        if !self.requests.is_empty() && self.started {
            self.perform(net);
        }
    }

    #[cold]
    fn perform(&mut self, net: &mut impl Transport) {
        for request in self.requests.drain(..) {
            match request {
                Request::Connect(stream, remote) if self.streams.contains_key(&stream) => net.connect(remote, stream),
                // The connector has given it up.
                Request::Connect(..) => {}
                Request::Write(conn, bytes) if net.write(conn, &bytes) < bytes.len() => net.abort(conn),
                Request::Write(..) => {}
                Request::Close(conn) => net.lingering_close(conn),
            }
        }
    }

    /// Adds an established connection. Returns the number of its stream.
    pub(crate) fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> u64 {
        let addresses = net.local_addr(conn).zip(net.peer_addr(conn)).map(|(local, peer)| [local, peer]);
        match origin {
            Origin::Connected(number) => match self.streams.get_mut(&number) {
                Some(stream) => {
                    (stream.conn, stream.addresses) = (Some(conn), addresses);
                    self.events.push(StreamEvent::Ready(number));
                    number
                }
                None => {
                    net.abort(conn);
                    number
                }
            },
            Origin::Accepted if self.listening.is_empty() => {
                net.abort(conn);
                0
            }
            Origin::Accepted => {
                let number = self.add(Stream { conn: Some(conn), addresses, ..Stream::default() });
                self.waiting.push_back(number);
                self.events.push(StreamEvent::Incoming);
                number
            }
        }
    }

    pub(crate) fn failed(&mut self, number: u64, error: ConnectError) {
        self.end(
            number,
            match error {
                ConnectError::Refused => ErrorKind::ConnectionRefused,
                ConnectError::TimedOut => ErrorKind::TimedOut,
                ConnectError::NoLocalAddress => ErrorKind::AddrNotAvailable,
                _ => ErrorKind::HostUnreachable,
            },
        );
    }

    /// Takes received bytes.
    pub(crate) fn readable(&mut self, net: &mut impl Transport, conn: ConnId, number: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        while let n @ 1.. = net.peek(conn).len() {
            if stream.unread.len() + n > MAX_UNREAD {
                return net.abort(conn);
            }
            stream.unread.extend_from_slice(net.peek(conn));
            net.consume(conn, n);
        }
        self.events.push(StreamEvent::Ready(number));
    }

    pub(crate) fn peer_closed(&mut self, number: u64) {
        self.end(number, ErrorKind::UnexpectedEof);
    }

    /// Ends the stream of an ended connection.
    pub(crate) fn closed(&mut self, number: u64, reason: CloseReason) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.conn = None;
            // A client that has left before it was accepted leaves nothing behind.
            if let Some(at) = self.waiting.iter().position(|waiting| *waiting == number) {
                self.waiting.remove(at);
                self.streams.remove(&number);
                return;
            }
        }
        self.end(
            number,
            match reason {
                CloseReason::Finished => ErrorKind::UnexpectedEof,
                CloseReason::TimedOut | CloseReason::IdleTimeout => ErrorKind::TimedOut,
                _ => ErrorKind::ConnectionReset,
            },
        );
    }

    fn end(&mut self, number: u64, reason: ErrorKind) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.end.get_or_insert(reason);
            self.events.push(StreamEvent::Ready(number));
        }
    }
}

/// Streams of a device.
pub(crate) struct DeviceStreams<D: Driver> {
    device: Arc<Device<D>>,
    /// Descriptor of the events.
    events: OwnedFd,
}

impl<D: Driver> DeviceStreams<D> {
    /// Returns `None` if the port of the device carries no streams.
    pub fn open(device: &Arc<Device<D>>) -> io::Result<Option<Self>> {
        let events = device.driver().streams().map(|table| table.events.try_clone_fd()).transpose()?;
        Ok(events.map(|events| DeviceStreams { device: device.clone(), events }))
    }

    fn with<T>(&self, call: impl FnOnce(&mut StreamTable) -> T) -> io::Result<T> {
        self.device.driver().streams().map(call).ok_or_else(|| ErrorKind::Unsupported.into())
    }

    /// Performs a call that requests an operation, and performs the operation.
    fn with_turn<T>(&self, call: impl FnOnce(&mut StreamTable) -> T) -> io::Result<T> {
        let mut driver = self.device.driver();
        let result = driver.streams().map(call).ok_or(ErrorKind::Unsupported)?;
        driver.turn();
        Ok(result)
    }
}

impl<D: Driver> AsFd for DeviceStreams<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl<D: Driver> Streams for DeviceStreams<D> {
    fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.with(|table| table.listen(address))?
    }

    fn stop_listening(&mut self) {
        _ = self.with(StreamTable::stop_listening);
    }

    fn accept(&mut self) -> io::Result<u64> {
        self.with(StreamTable::accept)?
    }

    fn connect(&mut self, remote: SocketAddr) -> io::Result<u64> {
        self.with_turn(|table| table.connect(remote))
    }

    fn next_event(&mut self) -> io::Result<Option<StreamEvent>> {
        self.with(StreamTable::next_event)
    }

    fn addresses(&mut self, stream: u64) -> io::Result<[SocketAddr; 2]> {
        self.with(|table| table.addresses(stream))?
    }

    fn read(&mut self, stream: u64, into: &mut [u8]) -> io::Result<usize> {
        self.with(|table| table.read(stream, into))?
    }

    fn write(&mut self, stream: u64, bytes: &[u8]) -> io::Result<()> {
        self.with_turn(|table| table.write(stream, bytes))?
    }

    /// Does nothing: the transport probes the peers of all its connections.
    fn keep_alive(&mut self, _: u64, _: &Keepalive) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self, stream: u64) {
        _ = self.with_turn(|table| table.close(stream));
    }
}

impl<D: Driver> Drop for DeviceStreams<D> {
    fn drop(&mut self) {
        _ = self.with_turn(StreamTable::close_all);
    }
}
