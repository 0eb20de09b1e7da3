//! Echo service with several echo modes that records the addresses of received bytes.

use linerate_service::{Bytes, ConnId, Origin, Service, Transport};
use std::collections::VecDeque;
use std::convert::Infallible;

/// Number of recorded bytes per stream.
const MOST: usize = 4 << 20;

/// Transport calls that send received bytes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EchoMode {
    /// [`Transport::forward`].
    Forward,
    /// [`Transport::take`] and [`Transport::send`], at most this many bytes at a time.
    Take(usize),
    /// As `Take`, after this many bytes have been received and kept.
    Keep(usize),
}

impl EchoMode {
    /// Returns all modes for messages of `size` bytes.
    pub fn all(size: usize) -> [EchoMode; 4] {
        let part = if size < 100_000 { 100 } else { 1_000 };
        [EchoMode::Forward, EchoMode::Take(usize::MAX), EchoMode::Take(part), EchoMode::Keep(size)]
    }
}

/// Recording echo service.
pub struct Observer {
    /// Modes of successive connections, in rotation.
    pub modes: Vec<EchoMode>,
    /// For each accepted connection: the peer's port, and the address of each byte (0 if it was not seen).
    pub seen: Vec<(u16, Vec<usize>)>,
    pub closed: usize,
}

pub struct Conn {
    mode: EchoMode,
    index: usize,
    kept: VecDeque<Bytes>,
    /// Total bytes taken.
    taken: usize,
    ended: bool,
}

impl Observer {
    /// Creates a service whose connections use `modes` in rotation.
    pub fn new(modes: Vec<EchoMode>) -> Self {
        Observer { modes, seen: Vec::new(), closed: 0 }
    }

    /// Records the addresses of `bytes`, which connection `index` received at stream offset `from`.
    fn note(&mut self, index: usize, from: usize, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(MOST.saturating_sub(from))];
        if bytes.is_empty() {
            return;
        }
        let addresses = &mut self.seen[index].1;
        let start = bytes.as_ptr() as usize;
        if addresses.len() == from {
            return addresses.extend(start..start + bytes.len());
        }
        addresses.resize(addresses.len().max(from + bytes.len()), 0);
        addresses[from..from + bytes.len()].iter_mut().zip(start..).for_each(|(slot, address)| *slot = address);
    }

    fn answer(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        let (most, least) = match state.mode {
            EchoMode::Forward => {
                let first = net.peek(conn);
                self.note(state.index, state.taken, first);
                state.taken += net.forward(conn, conn);
                (0, 0)
            }
            EchoMode::Take(most) => (most, 0),
            EchoMode::Keep(least) => (usize::MAX, least),
        };
        if most > 0 {
            while state.kept.is_empty() || state.taken < least {
                let first = net.peek(conn);
                self.note(state.index, state.taken, first);
                let Some(bytes) = net.take(conn, most) else { break };
                self.note(state.index, state.taken, &bytes);
                state.taken += bytes.len();
                state.kept.push_back(bytes);
                if state.taken >= least && !Self::send_kept(net, conn, state) {
                    break;
                }
            }
            if state.taken >= least {
                Self::send_kept(net, conn, state);
            }
        }
        if state.ended && state.kept.is_empty() && net.received(conn) == 0 {
            net.close(conn);
        }
    }

    /// Sends the kept bytes. Returns false if some remain.
    fn send_kept(net: &mut impl Transport, conn: ConnId, state: &mut Conn) -> bool {
        while let Some(bytes) = state.kept.pop_front() {
            let room = net.send_space(conn).min(bytes.len());
            if room == 0 {
                state.kept.push_front(bytes);
                return false;
            }
            if room < bytes.len() {
                state.kept.push_front(bytes.slice(room..));
            }
            if let Err(unsent) = net.send(conn, bytes.slice(..room)) {
                panic!("{unsent}, with space for {room}");
            }
        }
        true
    }
}

impl Service for Observer {
    type Conn = Conn;
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> Conn {
        self.seen.push((net.peer_addr(conn).unwrap().port(), Vec::new()));
        let index = self.seen.len() - 1;
        Conn { mode: self.modes[index % self.modes.len()], index, kept: VecDeque::new(), taken: 0, ended: false }
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        self.answer(net, conn, state);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        self.answer(net, conn, state);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        state.ended = true;
        self.answer(net, conn, state);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, _: Conn, _: linerate_service::CloseReason) {
        self.closed += 1;
    }
}
