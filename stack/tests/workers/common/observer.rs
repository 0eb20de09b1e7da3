//! An echo service that sends back in one of several ways, and notes where the bytes lay that it was given.

use linerate_bypass::{Bytes, ConnId, Origin, Service, Transport};
use std::collections::VecDeque;
use std::convert::Infallible;

/// Bytes of a stream that are watched.
const MOST: usize = 4 << 20;

/// How received bytes are sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By [`Transport::forward`].
    Forward,
    /// By [`Transport::take`] and [`Transport::send`], at most so many bytes at a time.
    Take(usize),
    /// As `Take`, once so many bytes have come: they are kept until then.
    Keep(usize),
}

impl How {
    /// All of them, for messages of `size` bytes.
    pub fn all(size: usize) -> [How; 4] {
        let part = if size < 100_000 { 100 } else { 1_000 };
        [How::Forward, How::Take(usize::MAX), How::Take(part), How::Keep(size)]
    }
}

/// The service.
pub struct Observer {
    /// What connections do, by turns.
    pub hows: Vec<How>,
    /// For each connection that was accepted, the peer's port, and where each byte lay; 0 if it was not looked at.
    pub seen: Vec<(u16, Vec<usize>)>,
    pub closed: usize,
}

/// One connection.
pub struct Conn {
    how: How,
    index: usize,
    kept: VecDeque<Bytes>,
    /// Bytes taken in all.
    taken: usize,
    ended: bool,
}

impl Observer {
    /// Sends back in these ways, one connection after the other.
    pub fn new(hows: Vec<How>) -> Self {
        Observer { hows, seen: Vec::new(), closed: 0 }
    }

    /// Notes that what was received from byte `from` of connection `index` on lies where `bytes` do.
    fn note(&mut self, index: usize, from: usize, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(MOST.saturating_sub(from))];
        if bytes.is_empty() {
            return;
        }
        let places = &mut self.seen[index].1;
        let lay = bytes.as_ptr() as usize;
        if places.len() == from {
            return places.extend(lay..lay + bytes.len());
        }
        places.resize(places.len().max(from + bytes.len()), 0);
        places[from..from + bytes.len()].iter_mut().zip(lay..).for_each(|(place, address)| *place = address);
    }

    fn answer(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        let (most, least) = match state.how {
            How::Forward => {
                let first = net.peek(conn);
                self.note(state.index, state.taken, first);
                state.taken += net.forward(conn, conn);
                (0, 0)
            }
            How::Take(most) => (most, 0),
            How::Keep(least) => (usize::MAX, least),
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

    /// Whether all of it went.
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
            if let Err(bytes) = net.send(conn, bytes.slice(..room)) {
                panic!("{} bytes do not go where there is room for {room}", bytes.len());
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
        Conn { how: self.hows[index % self.hows.len()], index, kept: VecDeque::new(), taken: 0, ended: false }
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

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, _: Conn, _: linerate_bypass::CloseReason) {
        self.closed += 1;
    }
}
