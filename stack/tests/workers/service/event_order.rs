//! Order of events, at both ends.

#[path = "../../../kernel/tests/services/contract.rs"]
mod service;

use crate::common::{Host, Native, Net, SERVER, host, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_service::time::Duration;
use linerate_service::{ConnId, ConnectError, Origin, Service, Transport};
use linerate_stack::{Config, Engine, SmoltcpEngine};
use service::Contract;
use std::convert::Infallible;

/// Connections of the client: several per action, with and without an early close.
const CONNECTIONS: usize = 50;

fn events_keep_their_order<EA: Engine<MemoryNic>, EB: Engine<MemoryNic>>() {
    let remote = format!("{SERVER}:7").parse().unwrap();
    let client = || Contract::client(remote, CONNECTIONS);
    // The port has packets for every connection with a full send queue.
    let config = |config| Config { tx_buffer: Some(64 << 10), ..config };
    let (a, b) = (config(host(1)), config(server()));
    let mut net = Net::<_, _, EA, EB>::start_with(LinkConfig::default(), 1, &a, client, &b, Contract::server);
    net.expect("all connections closed", Duration::from_secs(120), |net| {
        net.a.service().is_done(CONNECTIONS) && net.b.service().is_done(CONNECTIONS)
    });
    net.b.service().assert_covered();
}

/// Service whose connection attempts fail at once. Two failures start another attempt.
#[derive(Default)]
struct Attempts {
    failed: Vec<u64>,
}

impl Attempts {
    fn connect(net: &mut impl Transport, token: u64) {
        net.connect("0.0.0.0:7".parse().unwrap(), token);
    }
}

impl Service for Attempts {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        Attempts::connect(net, 0);
    }

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn failed(&mut self, net: &mut impl Transport, token: u64, _: ConnectError) {
        self.failed.push(token);
        if token < 2 {
            Attempts::connect(net, token + 1);
        }
    }
}

/// Returns the tokens of the failures after the turn in which the service starts.
fn failures_of_first_turn<E: Engine<MemoryNic>>() -> Vec<u64> {
    let (a, _b) = Link::pair(LinkConfig::default());
    let clock = a.link().clock().clone();
    let mut host = Host::<_, E>::start(&host(1), vec![a], Attempts::default);
    while !host.workers[0].has_started() {
        clock.advance(Duration::from_millis(1));
        host.workers[0].turn(clock.now());
    }
    host.service().failed.clone()
}

#[test]
fn events_caused_by_an_event_are_delivered_in_the_same_turn() {
    assert_eq!(failures_of_first_turn::<Native>(), [0, 1, 2]);
    assert_eq!(failures_of_first_turn::<SmoltcpEngine>(), [0, 1, 2]);
}

with_each_engine!(events_keep_their_order);
with_unlike_engines!(events_keep_their_order);
