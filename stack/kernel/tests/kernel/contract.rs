//! Order of events, at both ends.

#[path = "../services/contract.rs"]
mod service;

use crate::common::{DEADLINE, listening};
use linerate_kernel::{Config, Worker, bind};
use service::Contract;
use std::time::{Duration, Instant};

/// Connections of the client: several of each action, each with and without an early close.
const CONNECTIONS: usize = 50;

fn order_of_events(spin: bool) {
    let worker = |config: &Config, service| Worker::new(bind(config, 1).unwrap().1.remove(0), service);
    let mut server = worker(&Config { spin, ..listening() }, Contract::server());
    let client = Contract::client(server.tcp_addrs()[0], CONNECTIONS);
    let mut client = worker(&Config { spin, ..Config::default() }, client);
    let deadline = Instant::now() + DEADLINE;
    while !client.service().is_done(CONNECTIONS) || !server.service().is_done(CONNECTIONS) {
        assert!(Instant::now() < deadline, "{:?} and {:?}", client.service(), server.service());
        client.turn(Duration::ZERO);
        server.turn(Duration::ZERO);
    }
    server.service().assert_covered();
}

#[test]
fn events_keep_their_order_on_a_sleeping_worker() {
    order_of_events(false);
}

#[test]
fn events_keep_their_order_on_a_spinning_worker() {
    order_of_events(true);
}
