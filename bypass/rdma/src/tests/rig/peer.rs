//! Service of an end of the rig.

use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaConfig;
use linerate_service::{
    Bytes, CloseReason, ConnId, ConnectError, OneSidedError, OneSidedOp, OneSidedResult, Origin, Service, Transport,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Behaviour of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends its data and closes after receiving the echo.
    Sends,
    Echoes,
    /// Executes its one-sided operations, one at a time per connection, and closes a connection when none is left.
    Requests,
}

/// Service that sends data or echoes, and records events.
#[derive(Debug)]
pub struct Peer {
    pub role: Role,
    pub arena: Arena,
    /// Length of the data of each send call, with a flag for a slice.
    pub parts: VecDeque<(usize, bool)>,
    pub sent: usize,
    pub received: usize,
    pub total: usize,
    /// Address to connect to.
    pub remote: Option<SocketAddr>,
    /// Retries after an unexpected end.
    pub again: usize,
    /// Remaining repetitions.
    pub rounds: usize,
    pub all: Vec<(usize, bool)>,
    /// Local and remote address.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    pub ended: Vec<CloseReason>,
    pub failed: Vec<(u64, ConnectError)>,
    /// Remaining one-sided operations, and results.
    pub ops: VecDeque<OneSidedOp>,
    pub done: Vec<(u64, OneSidedResult)>,
    pub refused: Vec<OneSidedError>,
}

/// Returns the stream byte at `at`.
fn byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

impl Peer {
    pub fn sends(parts: &[(usize, bool)]) -> Self {
        let total = parts.iter().map(|(len, _)| len).sum();
        Peer { role: Role::Sends, parts: parts.iter().copied().collect(), all: parts.to_vec(), total, ..Peer::echoes() }
    }

    pub fn echoes() -> Self {
        let arena = Arena::new(ArenaConfig { bytes: 4096, hugepages: false }).unwrap();
        let (parts, ended, failed) = (VecDeque::new(), Vec::new(), Vec::new());
        let (again, rounds, all) = (0, 0, Vec::new());
        Peer {
            role: Role::Echoes,
            arena,
            parts,
            sent: 0,
            received: 0,
            total: 0,
            remote: None,
            again,
            rounds,
            all,
            addresses: None,
            ended,
            failed,
            ops: VecDeque::new(),
            done: Vec::new(),
            refused: Vec::new(),
        }
    }

    pub fn ops(ops: impl IntoIterator<Item = OneSidedOp>) -> Self {
        Peer { role: Role::Requests, ops: ops.into_iter().collect(), ..Peer::echoes() }
    }

    /// Starts the next operation on a connection. Its token is the number of remaining operations.
    fn start_next(&mut self, net: &mut impl Transport, conn: ConnId) {
        match self.ops.pop_front() {
            Some(op) => {
                if let Err(reason) = net.post_one_sided(conn, op, self.ops.len() as u64) {
                    self.refused.push(reason);
                    net.close(conn);
                }
            }
            None => net.close(conn),
        }
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId) {
        while let Some((len, is_slice)) = self.parts.front_mut() {
            if *is_slice {
                let room = net.send_space(conn).min(*len).min(Arena::MAX_LEN);
                if room == 0 {
                    return;
                }
                let Some(mut block) = self.arena.alloc(room) else { return };
                block.iter_mut().enumerate().for_each(|(at, to)| *to = byte(self.sent + at));
                let bytes: Bytes = block.freeze();
                if net.send(conn, bytes).is_err() {
                    return;
                }
                self.sent += room;
                *len -= room;
            } else {
                let Ok(space) = net.reserve(conn, *len) else { return };
                let n = space.len();
                space.iter_mut().enumerate().for_each(|(at, to)| *to = byte(self.sent + at));
                net.commit(conn, n);
                self.sent += n;
                *len -= n;
            }
            if *len == 0 {
                self.parts.pop_front();
            }
        }
    }

    fn begin_anew(&mut self, net: &mut impl Transport, is_through: bool) {
        let left = if is_through { &mut self.rounds } else { &mut self.again };
        if *left > 0
            && let Some(remote) = self.remote
        {
            *left -= 1;
            (self.sent, self.received) = (0, 0);
            self.parts = self.all.iter().copied().collect();
            net.connect(remote, 7);
        }
    }

    fn receive(&mut self, net: &mut impl Transport, conn: ConnId) {
        while net.received(conn) > 0 {
            let slice = net.peek(conn);
            let n = slice.len();
            assert!(n > 0);
            assert!(slice.iter().enumerate().all(|(at, it)| *it == byte(self.received + at)), "at {}", self.received);
            net.consume(conn, n);
            self.received += n;
        }
    }
}

impl Service for Peer {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        if let Some(remote) = self.remote {
            net.connect(remote, 7);
        }
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        self.failed.push((token, error));
        self.begin_anew(net, false);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.addresses = net.local_addr(conn).zip(net.peer_addr(conn));
        match self.role {
            Role::Sends => self.send(net, conn),
            Role::Echoes => self.received = 0,
            Role::Requests => self.start_next(net, conn),
        }
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        match self.role {
            Role::Echoes => self.received += net.forward(conn, conn),
            Role::Requests => {}
            Role::Sends => {
                self.receive(net, conn);
                if self.received == self.total {
                    net.close(conn);
                }
            }
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        match self.role {
            Role::Echoes => self.received += net.forward(conn, conn),
            Role::Sends => self.send(net, conn),
            Role::Requests => {}
        }
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        (): &mut (),
        token: u64,
        outcome: OneSidedResult,
    ) {
        self.done.push((token, outcome));
        self.start_next(net, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.close(conn);
    }

    fn closed(&mut self, net: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.ended.push(reason);
        self.begin_anew(net, reason == CloseReason::Finished);
    }
}
