//! Host that a test controls.

use linerate_service::{CloseReason, ConnId, ConnectError, Datagram, Origin, Service, Transport};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;

/// Connection of a [`Peer`], valid in the simulation that has returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerConn(usize);

/// Service of the host that a test controls. Its operations are the methods of
/// [`Simulation`](super::Simulation); they take effect in the next turn.
#[derive(Debug, Default)]
pub struct Peer {
    conns: Vec<Stream>,
    /// Connections with pending operations.
    pending: VecDeque<PeerConn>,
    /// Accepted connections that the test has not seen.
    waiting: VecDeque<PeerConn>,
    sending: VecDeque<Datagram>,
    datagrams: VecDeque<Datagram>,
}

/// State of a connection.
#[derive(Debug)]
struct Stream {
    stage: Stage,
    /// Bytes to send.
    output: Vec<u8>,
    /// Number of bytes of `output` that the transport has taken.
    sent: usize,
    ending: Ending,
    received: VecDeque<u8>,
    /// Set while received bytes stay in the receive queue of the transport.
    paused: bool,
    /// The other side has finished sending.
    peer_closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// To be opened to an address.
    New(SocketAddr),
    Opening,
    Open(ConnId),
    Failed(ConnectError),
    Closed(CloseReason),
}

/// End of a connection that the test has requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    None,
    Close,
    Closed,
    Abort,
}

impl Stream {
    /// Receives everything, unless reading is paused.
    fn read(&mut self, net: &mut impl Transport, id: ConnId) {
        while !self.paused
            && let Some(bytes) = net.take(id, usize::MAX)
        {
            self.received.extend(&bytes[..]);
        }
        self.received.make_contiguous();
    }
}

impl Peer {
    fn add(&mut self, stage: Stage) -> PeerConn {
        let (output, received) = (Vec::new(), VecDeque::new());
        let (ending, paused, peer_closed) = (Ending::None, false, false);
        self.conns.push(Stream { stage, output, sent: 0, ending, received, paused, peer_closed });
        PeerConn(self.conns.len() - 1)
    }

    pub(super) fn connect(&mut self, remote: SocketAddr) -> PeerConn {
        let conn = self.add(Stage::New(remote));
        self.pending.push_back(conn);
        conn
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn accept(&mut self) -> Option<PeerConn> {
        self.waiting.pop_front()
    }

    pub(super) fn send(&mut self, conn: PeerConn, bytes: &[u8]) {
        self.conns[conn.0].output.extend_from_slice(bytes);
        self.pending.push_back(conn);
    }

    pub(super) fn received(&self, conn: PeerConn) -> &[u8] {
        // `read` and `take` leave the bytes contiguous.
        self.conns[conn.0].received.as_slices().0
    }

    pub(super) fn take(&mut self, conn: PeerConn, n: usize) -> Vec<u8> {
        let received = &mut self.conns[conn.0].received;
        let taken = received.drain(..n).collect();
        received.make_contiguous();
        taken
    }

    pub(super) fn set_reading(&mut self, conn: PeerConn, reading: bool) {
        self.conns[conn.0].paused = !reading;
        self.pending.push_back(conn);
    }

    pub(super) fn has_end(&self, conn: PeerConn) -> bool {
        let Stream { peer_closed, stage, .. } = self.conns[conn.0];
        peer_closed || matches!(stage, Stage::Closed(_))
    }

    pub(super) fn close(&mut self, conn: PeerConn) {
        if self.conns[conn.0].ending == Ending::None {
            self.conns[conn.0].ending = Ending::Close;
            self.pending.push_back(conn);
        }
    }

    pub(super) fn abort(&mut self, conn: PeerConn) {
        self.conns[conn.0].ending = Ending::Abort;
        self.pending.push_back(conn);
    }

    pub(super) fn close_reason(&self, conn: PeerConn) -> Option<CloseReason> {
        match self.conns[conn.0].stage {
            Stage::Closed(reason) => Some(reason),
            _ => None,
        }
    }

    pub(super) fn connect_error(&self, conn: PeerConn) -> Option<ConnectError> {
        match self.conns[conn.0].stage {
            Stage::Failed(error) => Some(error),
            _ => None,
        }
    }

    pub(super) fn send_datagram(&mut self, datagram: Datagram) {
        self.sending.push_back(datagram);
    }

    pub(super) fn has_datagram(&self) -> bool {
        !self.datagrams.is_empty()
    }

    pub(super) fn take_datagram(&mut self) -> Option<Datagram> {
        self.datagrams.pop_front()
    }

    /// Performs the pending operations of `conn` as far as possible.
    fn progress(&mut self, net: &mut impl Transport, conn: PeerConn) {
        let stream = &mut self.conns[conn.0];
        match stream.stage {
            Stage::New(remote) => {
                stream.stage = Stage::Opening;
                net.connect(remote, conn.0 as u64);
            }
            Stage::Open(id) if stream.ending == Ending::Abort => net.abort(id),
            Stage::Open(id) => {
                stream.read(net, id);
                stream.sent += net.write(id, &stream.output[stream.sent..]);
                if stream.sent == stream.output.len() {
                    stream.output.clear();
                    stream.sent = 0;
                    if stream.ending == Ending::Close {
                        stream.ending = Ending::Closed;
                        net.close(id);
                    }
                }
            }
            Stage::Opening | Stage::Failed(_) | Stage::Closed(_) => {}
        }
    }
}

impl Service for Peer {
    type Conn = PeerConn;
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, id: ConnId, origin: Origin) -> PeerConn {
        let conn = match origin {
            Origin::Connected(token) => {
                let conn = PeerConn(token as usize);
                self.conns[conn.0].stage = Stage::Open(id);
                conn
            }
            Origin::Accepted => {
                let conn = self.add(Stage::Open(id));
                self.waiting.push_back(conn);
                conn
            }
        };
        self.progress(net, conn);
        conn
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        self.conns[token as usize].stage = Stage::Failed(error);
    }

    fn readable(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut PeerConn) {
        self.conns[conn.0].read(net, id);
    }

    fn writable(&mut self, net: &mut impl Transport, _: ConnId, conn: &mut PeerConn) {
        self.progress(net, *conn);
    }

    fn peer_closed(&mut self, _: &mut impl Transport, _: ConnId, conn: &mut PeerConn) {
        self.conns[conn.0].peer_closed = true;
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<std::time::Duration> {
        while let Some(conn) = self.pending.pop_front() {
            self.progress(net, conn);
        }
        while let Some(datagram) = self.sending.pop_front() {
            if let Err(datagram) = net.send_datagram(datagram) {
                self.sending.push_front(datagram);
                break;
            }
        }
        None
    }

    fn datagram(&mut self, _: &mut impl Transport, datagram: Datagram) {
        self.datagrams.push_back(datagram);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, conn: PeerConn, reason: CloseReason) {
        self.conns[conn.0].stage = Stage::Closed(reason);
    }
}
