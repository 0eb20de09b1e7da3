//! Order of events, at both ends.

#[path = "../../../kernel/tests/services/contract.rs"]
mod service;

use crate::common::{Net, SERVER, host, server};
use linerate_bypass::memory_nic::{LinkConfig, MemoryNic};
use linerate_bypass::time::Duration;
use linerate_stack::{Config, Engine};
use service::Contract;

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

with_each_engine!(events_keep_their_order);
with_unlike_engines!(events_keep_their_order);
