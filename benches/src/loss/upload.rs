//! Bulk transfer as a service, which is the same over TCP and over queue pairs.

use super::Progress;
use linerate_load::services::Discard;
use linerate_service::{Bytes, CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Address of the receiver, with the port of discard (RFC 863).
pub(super) const RECEIVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 9);
/// Bytes passed to the connection at once.
const CHUNK: usize = 16 << 10;

/// Service that sends a number of bytes and closes.
pub(super) struct Upload {
    bytes: u64,
    left: u64,
    chunk: Bytes,
    end: Option<Ending>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Finished,
    Lost,
}

impl Upload {
    pub fn new(bytes: u64) -> Self {
        Upload { bytes, left: bytes, chunk: Bytes::from(vec![0; CHUNK]), end: None }
    }

    /// Returns the state of a transfer to `receiver`.
    pub fn progress(&self, receiver: &Discard) -> Progress {
        let delivered = receiver.bytes();
        match self.end {
            None => Progress::Delivered(delivered),
            Some(Ending::Finished) if delivered == self.bytes => Progress::Complete(delivered),
            Some(_) => Progress::Lost,
        }
    }

    fn send_more(&mut self, net: &mut impl Transport, conn: ConnId) {
        while self.left > 0 {
            let n = net.send_space(conn).min(CHUNK).min(usize::try_from(self.left).unwrap_or(CHUNK));
            if n == 0 || net.send(conn, self.chunk.slice(..n)).is_err() {
                return;
            }
            self.left -= n as u64;
        }
        net.close(conn);
    }
}

impl Service for Upload {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(RECEIVER, 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.send_more(net, conn);
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, _: ConnectError) {
        self.end = Some(Ending::Lost);
    }

    fn readable(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {}

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        if self.left > 0 {
            self.send_more(net, conn);
        }
    }

    fn peer_closed(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {}

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.end = Some(if reason == CloseReason::Finished { Ending::Finished } else { Ending::Lost });
    }
}
