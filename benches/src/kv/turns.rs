//! The key-value service alone: its turns on a transport that is nothing but memory.

use crate::client::Wrong;
use crate::engine::Bench;
use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_bypass::{Bytes, ConnId, Datagram, Origin, Postbox, Seat, Service, Transport};
use linerate_kv::commands::Settings;
use linerate_kv::service::{Config, Hub, Kv};
use std::net::SocketAddr;
use std::time::Duration;

/// Connections, all of which have requests in each turn: as many as a burst has frames.
const CONNECTIONS: usize = 32;
/// Bytes that the service may write at a time.
const PLACE: usize = 4096;
/// Beside the values, for each key.
const BESIDE: usize = 256;

/// What is asked of the service.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Requests that a connection's turn begins with.
    pub depth: usize,
    /// How many keys there are, each as likely as the others.
    pub keys: u64,
    /// Bytes of a value.
    pub value: usize,
    /// GETs of a hundred requests; the others are SETs.
    pub gets: u32,
}

/// The service, filled, with clients that ask for whatever is next.
pub struct Turns {
    kv: Kv,
    net: Memory,
    conns: Vec<ConnId>,
    plan: Plan,
    value: String,
    random: fastrand::Rng,
    /// Bytes of all answers that there should have been.
    expected: u64,
}

/// What the service answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answered {
    /// Bytes that it wrote, which it copied from wherever they were.
    pub written: u64,
    /// Bytes that it sent from where they lay.
    pub sent: u64,
}

impl Turns {
    /// A service on one worker, all keys set.
    ///
    /// # Panics
    /// If the system does not give the memory.
    pub fn new(plan: Plan) -> Self {
        let memory = (plan.keys as usize * (plan.value + BESIDE)).max(64 << 20) as u64;
        let settings = Settings { memory, ..Settings::default() };
        let arena = Arena::new(ArenaConfig { bytes: memory as usize, hugepages: false }).expect("memory");
        let hub = Hub::new(Config { settings, workers: 1, memcached: None, arena });
        let mut kv = Kv::new(hub, Seat { worker: 0, workers: 1, postbox: Postbox::new(Vec::new()) });
        let mut net = Memory { input: vec![Input::default(); CONNECTIONS], place: vec![0; PLACE], written: 0, sent: 0 };
        let conns: Vec<ConnId> = (0..CONNECTIONS).map(|slot| ConnId::new(0, slot, 0)).collect();
        for conn in &conns {
            kv.opened(&mut net, *conn, Origin::Accepted);
        }
        let random = fastrand::Rng::with_seed(1);
        let mut turns = Turns { kv, net, conns, plan, value: "x".repeat(plan.value), random, expected: 0 };
        for key in 0..plan.keys {
            turns.net.input[0].clear();
            turns.expected += set(&mut turns.net.input[0].requests, key, &turns.value);
            server_turn(&mut turns.kv, &mut turns.net, &turns.conns[..1]);
        }
        turns
    }

    /// What it has answered in all.
    pub fn answered(&self) -> Answered {
        Answered { written: self.net.written, sent: self.net.sent }
    }

    fn ask(&mut self) {
        for input in &mut self.net.input {
            input.clear();
            for _ in 0..self.plan.depth {
                let key = self.random.u64(..self.plan.keys);
                self.expected += if self.random.u32(..100) < self.plan.gets {
                    get(&mut input.requests, key, self.plan.value)
                } else {
                    set(&mut input.requests, key, &self.value)
                };
            }
        }
    }
}

impl Bench for Turns {
    /// As many requests as there must be for whole turns.
    fn run(&mut self, operations: usize) -> Result<Duration, Wrong> {
        let each = CONNECTIONS * self.plan.depth;
        let mut spent = Duration::ZERO;
        for _ in 0..operations.div_ceil(each) {
            self.ask();
            let start = std::time::Instant::now();
            server_turn(&mut self.kv, &mut self.net, &self.conns);
            spent += start.elapsed();
        }
        let Answered { written, sent } = self.answered();
        let missing = self.expected.abs_diff(written + sent);
        if missing == 0 { Ok(spent) } else { Err(Wrong::Answers(missing)) }
    }
}

/// What is timed, and of which instructions are counted, by its name.
#[inline(never)]
fn server_turn(kv: &mut Kv, net: &mut Memory, conns: &[ConnId]) {
    kv.burst(net, conns);
    for conn in conns {
        kv.readable(net, *conn, &mut ());
    }
}

/// Bytes of the answer to a GET of a value of so many.
pub fn answer_to_get(value: usize) -> u64 {
    (format!("${value}\r\n").len() + value + "\r\n".len()) as u64
}

/// Appends a request, and returns how many bytes its answer has.
fn get(requests: &mut Vec<u8>, key: u64, value: usize) -> u64 {
    requests.extend(format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n").bytes());
    answer_to_get(value)
}

fn set(requests: &mut Vec<u8>, key: u64, value: &str) -> u64 {
    let len = value.len();
    requests.extend(format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${len}\r\n{value}\r\n").bytes());
    "+OK\r\n".len() as u64
}

/// What a client has sent, and how much of it has been read.
#[derive(Debug, Default, Clone)]
struct Input {
    requests: Vec<u8>,
    at: usize,
}

impl Input {
    fn clear(&mut self) {
        self.requests.clear();
        self.at = 0;
    }
}

/// The transport: requests come from memory, answers are counted.
struct Memory {
    input: Vec<Input>,
    place: Vec<u8>,
    written: u64,
    sent: u64,
}

impl Transport for Memory {
    fn now(&self) -> linerate_bypass::time::Instant {
        linerate_bypass::time::Instant::ZERO
    }

    fn worker(&self) -> usize {
        0
    }

    fn local_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(([10, 0, 0, 2], 6379).into())
    }

    fn peer_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(([10, 0, 0, 1], 49_152).into())
    }

    fn received(&self, conn: ConnId) -> usize {
        let input = &self.input[conn.slot()];
        input.requests.len() - input.at
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        let input = &self.input[conn.slot()];
        &input.requests[input.at..]
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        let input = &mut self.input[conn.slot()];
        input.at = (input.at + n).min(input.requests.len());
    }

    fn take(&mut self, _: ConnId, _: usize) -> Option<Bytes> {
        None
    }

    fn room(&mut self, _: ConnId) -> usize {
        1 << 20
    }

    fn send(&mut self, _: ConnId, bytes: Bytes) -> Result<(), Bytes> {
        self.sent += bytes.len() as u64;
        Ok(())
    }

    fn reserve(&mut self, _: ConnId, max: usize) -> Option<&mut [u8]> {
        Some(&mut self.place[..max.min(PLACE)])
    }

    fn commit(&mut self, _: ConnId, n: usize) {
        self.written += n as u64;
    }

    fn close(&mut self, _: ConnId) {}

    fn abort(&mut self, _: ConnId) {}

    fn set_timer(&mut self, _: ConnId, _: Option<linerate_bypass::time::Duration>) {}

    fn connect(&mut self, _: SocketAddr, _: u64) {}

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        Err(datagram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_and_long_values_are_sent_from_where_they_lie() {
        for (value, gets, in_place) in [(64, 100, 0), (64, 50, 0), (1 << 16, 100, 1 << 16)] {
            let plan = Plan { depth: 2, keys: 20, value, gets };
            let mut turns = Turns::new(plan);
            let before = turns.answered();
            // Whole turns: 64 requests each.
            turns.run(65).unwrap();
            let sent = turns.answered().sent - before.sent;
            assert_eq!(sent, 128 * in_place, "{plan:?}");
        }
    }

    #[test]
    fn an_answer_that_is_missing_is_told() {
        let mut turns = Turns::new(Plan { depth: 1, keys: 1, value: 64, gets: 100 });
        turns.expected += 1;
        assert!(matches!(turns.run(1), Err(Wrong::Answers(1))));
    }
}
