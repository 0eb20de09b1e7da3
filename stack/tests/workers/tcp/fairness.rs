//! Fairness between connections whose data exceeds the port's transmit queue.

use crate::common::services::Echo;
use crate::common::{Native, Net};
use linerate_bypass::memory_nic::LinkConfig;
use linerate_bypass::time::Duration;
use linerate_bypass::{ConnId, Origin, Service, Transport};
use std::convert::Infallible;

/// Connections: more than the transmit queues, the rings and the receive bursts of both ends hold together.
const CONNECTIONS: usize = 2000;
const REQUEST: [u8; 64] = [7; 64];

/// Client with one request in flight on each connection.
#[derive(Default)]
struct Requests {
    open: Vec<ConnId>,
    /// Answers received on each connection.
    answers: Vec<usize>,
}

impl Requests {
    fn send(net: &mut impl Transport, conn: ConnId) {
        let space = net.reserve(conn, REQUEST.len()).expect("a packet");
        assert_eq!(space.len(), REQUEST.len());
        space.copy_from_slice(&REQUEST);
        net.commit(conn, REQUEST.len());
    }

    /// Returns the least and the greatest number of answers.
    fn range(&self) -> (usize, usize) {
        (*self.answers.iter().min().unwrap(), *self.answers.iter().max().unwrap())
    }
}

impl Service for Requests {
    /// Index of the connection.
    type Conn = usize;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        (0..CONNECTIONS).for_each(|n| net.connect("10.0.0.2:7".parse().unwrap(), n as u64));
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> usize {
        self.open.push(conn);
        self.answers.push(0);
        if self.open.len() == CONNECTIONS {
            self.open.iter().for_each(|conn| Self::send(net, *conn));
        }
        self.open.len() - 1
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, n: &mut usize) {
        assert_eq!(net.peek(conn), REQUEST);
        net.consume(conn, REQUEST.len());
        self.answers[*n] += 1;
        Self::send(net, conn);
    }
}

#[test]
fn waiting_connections_send_before_others_send_again() {
    for ring in [64, 1024] {
        let link = LinkConfig { checksum_offload: true, ring, pool: 4 * CONNECTIONS, ..LinkConfig::default() };
        let mut net = Net::<Requests, Echo, Native, Native>::start(link, Requests::default, Echo::default);
        let minute = Duration::from_secs(60);
        net.expect("all connections are open", minute, |net| net.a.service().open.len() == CONNECTIONS);
        let mut greatest = 0;
        while greatest < 20 {
            net.turn();
            let (least, most) = net.a.service().range();
            assert!(most - least <= 1, "ring of {ring}: between {least} and {most} answers");
            greatest = most;
        }
        net.a.workers[0].engine().assert_consistent();
        net.b.workers[0].engine().assert_consistent();
    }
}
