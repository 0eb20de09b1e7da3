//! Service of the endpoint under test: executes operations and records its events.

use super::frames::Tuple;
use super::setup::Setup;
use arbitrary::Arbitrary;
use linerate_service::time::Duration;
use linerate_service::{Bytes, CloseReason, ConnId, ConnectError, Datagram, Origin, Service, Transport};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Operation on a connection of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Arbitrary)]
pub enum Op {
    /// Write this many bytes into reserved space.
    Write(u16),
    /// Reserve space and do not commit it.
    Reserve(u16),
    /// Send this many bytes of memory unknown to the port.
    Send(u16),
    /// Consume up to this many bytes, slice by slice.
    Read(u16),
    /// Take up to this many bytes and keep them until the end.
    Keep(u16),
    /// Forward received data to another connection.
    Forward,
    Close,
    Abort,
    /// Set a timer in milliseconds, on which all data is read.
    Timer(u16),
    /// Connect to the peer.
    Dial(bool),
    /// Stop or resume reading on `readable`.
    Hold(bool),
}

impl Op {
    pub fn of(byte: u8) -> Op {
        let size = [1, 100, 1460, 9000][usize::from(byte >> 4 & 3)];
        let set = byte >= 0x80;
        match byte & 15 {
            0..2 => Op::Write(size),
            2 => Op::Reserve(size),
            3 => Op::Send(size),
            4..6 => Op::Read(size),
            6 => Op::Keep(size),
            7 => Op::Forward,
            8..10 => Op::Close,
            10 => Op::Abort,
            11 => Op::Timer(size),
            12 => Op::Dial(set),
            _ => Op::Hold(set),
        }
    }
}

#[derive(Debug)]
pub enum ServiceEvent {
    Opened {
        conn: ConnId,
        tuple: Tuple,
    },
    Read {
        conn: ConnId,
        bytes: Vec<u8>,
    },
    /// This many bytes of the connection's own pattern were queued for sending.
    Wrote {
        conn: ConnId,
        len: usize,
    },
    /// This many bytes of another connection were forwarded without reading them.
    Forwarded {
        from: ConnId,
        to: ConnId,
        len: usize,
    },
    /// The peer has closed; this many bytes were unread.
    Ended {
        conn: ConnId,
        left: usize,
    },
    Closed {
        conn: ConnId,
        reason: CloseReason,
    },
    Failed {
        token: u64,
        error: ConnectError,
    },
    Readable {
        conn: ConnId,
    },
    Writable {
        conn: ConnId,
    },
}

/// Returns byte number `at` of the service's stream to the peer's port `port`.
pub fn written(at: u32, port: u16) -> u8 {
    ((at ^ u32::from(port) << 20).wrapping_mul(0x9e37_79b1) >> 23) as u8
}

pub struct Conn {
    port: u16,
    holds: bool,
}

pub struct Probe {
    setup: Setup,
    pub events: RefCell<Vec<ServiceEvent>>,
    /// Open connections, and the number of bytes queued on each.
    sent: BTreeMap<ConnId, u32>,
    kept: Vec<Bytes>,
    dialled: u16,
}

impl Probe {
    pub fn new(setup: Setup) -> Self {
        Probe { setup, events: RefCell::default(), sent: BTreeMap::new(), kept: Vec::new(), dialled: 0 }
    }

    fn record(&self, event: ServiceEvent) {
        self.events.borrow_mut().push(event);
    }

    fn dial(&mut self, net: &mut impl Transport, six: bool) {
        let (_, peer) = super::frames::addresses(six);
        self.dialled += 1;
        net.connect(SocketAddr::new(peer, 9000 + self.dialled), self.dialled.into());
    }

    /// Reads up to `max` bytes.
    fn read(&self, net: &mut impl Transport, conn: ConnId, max: usize) {
        let mut bytes = Vec::new();
        while bytes.len() < max {
            let slice = net.peek(conn);
            if slice.is_empty() {
                break;
            }
            let n = slice.len().min(max - bytes.len());
            bytes.extend_from_slice(&slice[..n]);
            net.consume(conn, n);
        }
        if !bytes.is_empty() {
            self.record(ServiceEvent::Read { conn, bytes });
        }
    }

    fn forward(&mut self, net: &mut impl Transport, from: ConnId, to: ConnId) {
        let len = net.forward(from, to);
        *self.sent.entry(to).or_default() += len as u32;
        self.record(ServiceEvent::Forwarded { from, to, len });
    }

    fn write(&mut self, net: &mut impl Transport, conn: ConnId, port: u16, len: usize) {
        let sent = self.sent.entry(conn).or_default();
        let mut done = 0;
        while done < len {
            let Ok(out) = net.reserve(conn, len - done) else { break };
            let n = out.len().min(len - done);
            for (i, byte) in out[..n].iter_mut().enumerate() {
                *byte = written(*sent + i as u32, port);
            }
            net.commit(conn, n);
            *sent += n as u32;
            done += n;
        }
        self.record(ServiceEvent::Wrote { conn, len: done });
    }

    /// Consumes the first slice and writes as many bytes, in one call.
    fn answer_in_one_call(&mut self, net: &mut impl Transport, conn: ConnId, port: u16) {
        let bytes = net.peek(conn).to_vec();
        let len = bytes.len();
        self.record(ServiceEvent::Read { conn, bytes });
        let sent = self.sent.entry(conn).or_default();
        let is_written = net.respond(conn, len, len, |out| {
            (*sent..).zip(out).for_each(|(at, byte)| *byte = written(at, port));
        });
        let len = if is_written { len } else { 0 };
        *sent += len as u32;
        self.record(ServiceEvent::Wrote { conn, len });
    }

    /// Reads everything and writes as many bytes, in two parts each or in one call.
    fn answer(&mut self, net: &mut impl Transport, conn: ConnId, port: u16) {
        if !self.setup.answers_first() && !self.setup.reserves() {
            return self.answer_in_one_call(net, conn, port);
        }
        let len = net.received(conn);
        for part in [len / 2, len - len / 2] {
            if self.setup.answers_first() {
                self.write(net, conn, port, part);
                self.read(net, conn, part);
            } else {
                self.read(net, conn, part);
                self.write(net, conn, port, part);
            }
        }
        if self.setup.reserves() {
            let _ = net.reserve(conn, len);
        }
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId, port: u16, len: usize) {
        let sent = self.sent.entry(conn).or_default();
        let bytes: Vec<u8> = (0..len as u32).map(|i| written(*sent + i, port)).collect();
        if net.send(conn, bytes.into()).is_ok() {
            *sent += len as u32;
            self.record(ServiceEvent::Wrote { conn, len });
        }
    }
}

impl Service for Probe {
    type Conn = Conn;
    type Message = Op;

    fn start(&mut self, net: &mut impl Transport) {
        for n in 0..self.setup.dials() {
            self.dial(net, self.setup.six() ^ (n & 1 != 0));
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> Conn {
        let local = net.local_addr(conn).expect("an open connection has an address");
        let remote = net.peer_addr(conn).expect("an open connection has a peer");
        self.record(ServiceEvent::Opened { conn, tuple: Tuple { local, remote } });
        self.sent.insert(conn, 0);
        Conn { port: remote.port(), holds: self.setup.holds() }
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        self.record(ServiceEvent::Failed { token, error });
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        self.record(ServiceEvent::Readable { conn });
        if self.setup.echoes() {
            self.forward(net, conn, conn);
        } else if self.setup.answers() {
            self.answer(net, conn, state.port);
        } else if !state.holds {
            self.read(net, conn, usize::MAX);
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut Conn) {
        self.record(ServiceEvent::Writable { conn });
        if self.setup.echoes() {
            self.forward(net, conn, conn);
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        self.record(ServiceEvent::Ended { conn, left: net.received(conn) });
        if !state.holds {
            net.close(conn);
        }
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut Conn) {
        self.read(net, conn, usize::MAX);
    }

    fn conn_message(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn, op: Op) {
        match op {
            Op::Write(len) => self.write(net, conn, state.port, len.into()),
            Op::Reserve(len) => {
                let _ = net.reserve(conn, len.into());
            }
            Op::Send(len) => self.send(net, conn, state.port, len.into()),
            Op::Read(len) => self.read(net, conn, len.into()),
            Op::Keep(len) => {
                if let Some(bytes) = net.take(conn, len.into()) {
                    self.record(ServiceEvent::Read { conn, bytes: bytes.to_vec() });
                    self.kept.push(bytes);
                }
            }
            Op::Forward => {
                let other = self.sent.keys().copied().find(|other| *other > conn);
                self.forward(net, conn, other.or(self.sent.keys().copied().next()).unwrap_or(conn));
            }
            Op::Close => net.close(conn),
            Op::Abort => net.abort(conn),
            Op::Timer(delay) => net.set_timer(conn, Some(Duration::from_millis(delay.into()))),
            Op::Dial(six) => self.dial(net, six),
            Op::Hold(holds) => {
                state.holds = holds;
                if !holds {
                    self.read(net, conn, usize::MAX);
                }
            }
        }
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        let _ = net.send_datagram(datagram);
    }

    fn closed(&mut self, _: &mut impl Transport, conn: ConnId, _: Conn, reason: CloseReason) {
        self.sent.remove(&conn);
        self.record(ServiceEvent::Closed { conn, reason });
    }
}
