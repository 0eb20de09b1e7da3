//! Fairness between connections whose data exceeds the port's transmit queue.

use crate::common::services::Echo;
use crate::common::{Native, Net};
use linerate_bypass::memory_nic::LinkConfig;
use linerate_service::time::{Duration, Instant};
use linerate_service::{ConnId, Origin, Service, Transport};
use linerate_stack::SmoltcpEngine;
use std::convert::Infallible;

/// Connections: more than the transmit queues, the rings and the receive bursts of both ends hold together.
const CONNECTIONS: usize = 1500;
/// Connections that are opened at a time.
const AT_ONCE: usize = 16;
const RING: usize = 64;
const REQUEST: [u8; 64] = [7; 64];
/// Time of a turn, so that there are samples of the round trip.
const TURN: Duration = Duration::from_micros(10);
/// Time limit of the test, in time of the link.
const LIMIT: Instant = Instant::from_nanos(1_000_000_000);

/// Client with one request in flight on each connection. Connections are opened while others exchange requests, so that
/// the first ones are in request-response mode when the transmit queue fills.
#[derive(Default)]
struct Requests {
    /// True if an answer is sent back as the next request, in place of a copy.
    forwards: bool,
    /// Connections opened so far, or being opened.
    connects: usize,
    /// Answers received on each connection.
    answers: Vec<usize>,
}

impl Requests {
    fn connect(&mut self, net: &mut impl Transport) {
        if self.connects < CONNECTIONS {
            net.connect("10.0.0.2:7".parse().unwrap(), 0);
            self.connects += 1;
        }
    }

    fn send(net: &mut impl Transport, conn: ConnId) {
        let space = net.reserve(conn, REQUEST.len()).expect("a packet");
        assert_eq!(space.len(), REQUEST.len());
        space.copy_from_slice(&REQUEST);
        net.commit(conn, REQUEST.len());
    }
}

impl Service for Requests {
    type Conn = usize;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        (0..AT_ONCE).for_each(|_| self.connect(net));
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> usize {
        self.answers.push(0);
        Self::send(net, conn);
        self.answers.len() - 1
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, n: &mut usize) {
        assert_eq!(net.peek(conn), REQUEST);
        if self.answers[*n] == 0 {
            self.connect(net);
        }
        self.answers[*n] += 1;
        if self.forwards {
            assert_eq!(net.forward(conn, conn), REQUEST.len());
        } else {
            net.consume(conn, REQUEST.len());
            Self::send(net, conn);
        }
    }
}

#[test]
fn connections_that_wait_to_write_send_before_others_send_again() {
    expect_turns(false);
}

#[test]
fn connections_that_wait_to_forward_send_before_others_send_again() {
    expect_turns(true);
}

/// Checks that connections send in turns.
fn expect_turns(forwards: bool) {
    let link = LinkConfig { checksum_offload: true, ring: RING, pool: 4 * CONNECTIONS, ..LinkConfig::default() };
    let client = || Requests { forwards, ..Requests::default() };
    // smoltcp sends copies. A packet that both ends share would prevent request-response mode.
    let mut net = Net::<Requests, Echo, Native, SmoltcpEngine>::start(link, client, Echo::default);
    let turn = |net: &mut Net<Requests, Echo, Native, SmoltcpEngine>| {
        net.link.clock().advance_to(net.now() + TURN);
        net.turn();
        assert!(net.now() < LIMIT, "no progress");
    };
    while net.a.service().answers.len() < CONNECTIONS || net.a.service().answers.contains(&0) {
        turn(&mut net);
    }
    let before = net.a.service().answers.clone();
    let mut greatest = 0;
    while greatest < 20 {
        turn(&mut net);
        let answers = net.a.service().answers.iter().zip(&before).map(|(now, before)| now - before);
        let (least, most) = (answers.clone().min().unwrap(), answers.max().unwrap());
        assert!(most - least <= 2, "between {least} and {most} answers");
        greatest = most;
    }
    net.a.workers[0].engine().assert_consistent();
}
