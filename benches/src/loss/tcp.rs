//! TCP of the stack's engines.

use super::{Counts, Endpoint, IP_END, LossyLink, Transfer, TransferError, Transport};
use crate::engine::worker;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_load::services::Discard;
use linerate_service::time::Instant;
use linerate_service::{Bytes, CloseReason, ConnId, ConnectError, Origin, Service, Transport as Net};
use linerate_stack::{Config, Engine, Worker};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

/// Port of the receiver: that of discard (RFC 863).
const PORT: u16 = 9;
/// Bytes passed to the connection at once.
const CHUNK: usize = 16 << 10;

/// Service that sends a number of bytes and closes.
struct Upload {
    to: SocketAddr,
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
    fn send_more(&mut self, net: &mut impl Net, conn: ConnId) {
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

    fn start(&mut self, net: &mut impl Net) {
        net.connect(self.to, 0);
    }

    fn opened(&mut self, net: &mut impl Net, conn: ConnId, _: Origin) {
        self.send_more(net, conn);
    }

    fn failed(&mut self, _: &mut impl Net, _: u64, _: ConnectError) {
        self.end = Some(Ending::Lost);
    }

    fn readable(&mut self, _: &mut impl Net, _: ConnId, (): &mut ()) {}

    fn writable(&mut self, net: &mut impl Net, conn: ConnId, (): &mut ()) {
        if self.left > 0 {
            self.send_more(net, conn);
        }
    }

    fn peer_closed(&mut self, _: &mut impl Net, _: ConnId, (): &mut ()) {}

    fn closed(&mut self, _: &mut impl Net, _: ConnId, (): (), reason: CloseReason) {
        self.end = Some(if reason == CloseReason::Finished { Ending::Finished } else { Ending::Lost });
    }
}

impl<S: Service, E: Engine<MemoryNic>> Endpoint for Worker<MemoryNic, S, E> {
    fn turn(&mut self, now: Instant) -> bool {
        Worker::turn(self, now) > 0
    }

    fn due(&mut self) -> Option<Instant> {
        self.next_deadline()
    }

    fn nic(&mut self) -> &mut MemoryNic {
        Worker::nic(self)
    }
}

/// Returns the TCP payload of a frame.
fn payload(frame: &[u8]) -> usize {
    let is_tcp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&6);
    let (true, Some(length), Some(offset)) = (is_tcp, frame.get(16..18), frame.get(IP_END + 12)) else { return 0 };
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    length.saturating_sub(20 + usize::from(offset >> 4) * 4)
}

fn host(last: u8) -> Config {
    Config {
        addresses: vec![format!("10.0.0.{last}/24").parse().expect("an address with its prefix")],
        mac: Some(format!("02:00:00:00:00:{last:02x}").parse().expect("an Ethernet address")),
        seed: last.into(),
        ..Config::default()
    }
}

pub(super) fn run<E: Engine<MemoryNic>>(transfer: &Transfer, which: Transport) -> Result<Counts, TransferError> {
    let transport = which.name();
    let (lossy, [a, b]) = LossyLink::new(transfer, payload);
    let listen = vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))];
    let to = SocketAddr::from(([10, 0, 0, 2], PORT));
    let upload = Upload { to, left: transfer.bytes, chunk: Bytes::from(vec![0; CHUNK]), end: None };
    let mut sender = worker::<E, _>(&host(1), a, |_| upload);
    let mut receiver = worker::<E, _>(&Config { listen, ..host(2) }, b, |_| Discard::default());
    let done = |sender: &Worker<_, Upload, E>, receiver: &Worker<_, Discard, E>| {
        let delivered = receiver.service().bytes();
        match sender.service().end {
            None => Ok(None),
            Some(Ending::Finished) if delivered == transfer.bytes => Ok(Some(delivered)),
            Some(_) => Err(TransferError::Lost { transport }),
        }
    };
    let counts = lossy.run((&mut *sender, &mut *receiver), done)?;
    let delivered = receiver.service().bytes();
    counts.ok_or(TransferError::Stalled { transport, delivered, bytes: transfer.bytes })
}
