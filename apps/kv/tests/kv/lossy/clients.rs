//! Clients: a service that opens connections.

use super::model::Model;
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;

/// Clients of the service, half of them with RESP, half with the memcached protocol.
#[derive(Debug)]
pub struct Clients {
    seed: u64,
    six: bool,
    connections: usize,
    /// Per connection.
    requests: usize,
    finished: usize,
    /// Number of transactions that increment the common counters, and the highest value seen.
    pub counted: u64,
    pub highest: u64,
}

/// State of a connection.
pub struct Conn {
    model: Model,
    /// Bytes to be sent, and the number of those sent.
    out: Vec<u8>,
    sent: usize,
    /// Expected replies.
    expected: VecDeque<Reply>,
    received: Vec<u8>,
    /// Requests still to be made, and the limit of outstanding ones.
    left: usize,
    depth: usize,
}

/// Expected reply.
#[derive(Debug)]
pub enum Reply {
    /// Exact bytes.
    Exactly(Vec<u8>),
    /// Reply to the transaction that increments both common counters, which must be equal.
    Counted,
}

/// Reply before the counters.
const COUNTED: &[u8] = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n";

impl Reply {
    /// Returns the length of the reply at the start of `received` and its counter, if it is complete.
    ///
    /// # Panics
    /// Panics if the reply is another one.
    fn read(&self, received: &[u8]) -> Option<(usize, Option<u64>)> {
        let expect = |bytes: &[u8]| {
            let n = received.len().min(bytes.len());
            let at = (0..n).find(|at| received[*at] != bytes[*at]);
            let around = |bytes: &[u8], at: usize| bytes[at.saturating_sub(20)..(at + 60).min(bytes.len())].to_vec();
            if let Some(at) = at {
                let [came, expected] = [received, bytes].map(|bytes| around(bytes, at).escape_ascii().to_string());
                panic!("at byte {at} {came} instead of {expected}");
            }
            (n == bytes.len()).then_some(n)
        };
        match self {
            Reply::Exactly(bytes) => expect(bytes).map(|len| (len, None)),
            Reply::Counted => {
                let start = expect(COUNTED)?;
                let mut lines = received[start..].split_inclusive(|byte| *byte == b'\n');
                let (one, other) = (lines.next()?, lines.next()?);
                if !other.ends_with(b"\n") {
                    return None;
                }
                assert_eq!(one, other);
                let number = std::str::from_utf8(one).unwrap().strip_prefix(':').unwrap().trim_end().parse().unwrap();
                Some((start + 2 * one.len(), Some(number)))
            }
        }
    }
}

impl Clients {
    pub fn new(seed: u64, six: bool, connections: usize, requests: usize) -> Self {
        Clients { seed, six, connections, requests, finished: 0, counted: 0, highest: 0 }
    }

    pub fn are_done(&self) -> bool {
        self.finished == self.connections
    }

    /// Makes requests and sends as much as there is room for.
    fn pump(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        if state.expected.len() <= state.depth / 2 {
            while state.left > 0 && state.expected.len() < state.depth {
                state.left -= 1;
                let reply = state.model.request(&mut state.out);
                self.counted += u64::from(matches!(reply, Reply::Counted));
                state.expected.push_back(reply);
            }
        }
        state.sent += net.write(conn, &state.out[state.sent..]);
        if state.sent == state.out.len() {
            state.out.clear();
            state.sent = 0;
        }
        if state.left == 0 && state.expected.is_empty() {
            net.close(conn);
        }
    }
}

impl Service for Clients {
    type Conn = Conn;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        let ip = if self.six { "fd00::2" } else { "10.0.0.2" };
        for n in 0..self.connections {
            let port = if n % 2 == 0 { 6379 } else { 11211 };
            net.connect(SocketAddr::new(ip.parse().unwrap(), port), n as u64);
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> Conn {
        let Origin::Connected(n) = origin else { panic!("a client accepts no connections") };
        let name = format!("{}-{n}", net.worker());
        let mut random = fastrand::Rng::with_seed(self.seed << 16 | (net.worker() as u64) << 8 | n);
        let depth = *random.choice(&[1, 4, 16, 64]).unwrap();
        let model = Model::new(name, n % 2 == 0, random);
        let mut state = Conn {
            model,
            out: Vec::new(),
            sent: 0,
            expected: VecDeque::new(),
            received: Vec::new(),
            left: self.requests,
            depth,
        };
        self.pump(net, conn, &mut state);
        state
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        panic!("connection {token}: {error:?}");
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        loop {
            let slice = net.peek(conn);
            if slice.is_empty() {
                break;
            }
            state.received.extend_from_slice(slice);
            let len = slice.len();
            net.consume(conn, len);
        }
        let mut used = 0;
        while let Some(reply) = state.expected.front()
            && let Some((len, number)) = reply.read(&state.received[used..])
        {
            used += len;
            self.highest = self.highest.max(number.unwrap_or(0));
            state.expected.pop_front();
        }
        state.received.drain(..used);
        let rest = &state.received;
        assert!(!state.expected.is_empty() || rest.is_empty(), "unexpected reply: {}", rest.escape_ascii());
        self.pump(net, conn, state);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        self.pump(net, conn, state);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, state: Conn, reason: CloseReason) {
        assert!(
            state.left == 0 && state.expected.is_empty(),
            "{reason:?} before {:?} was replied",
            state.expected.front()
        );
        assert_eq!(reason, CloseReason::Finished);
        self.finished += 1;
    }
}
