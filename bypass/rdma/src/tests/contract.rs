//! Order of events at both ends.

#[path = "../../../../stack/kernel/tests/services/contract.rs"]
mod service;

use super::rig::{Peer, Rig, Setup};
use crate::{Config, Mode};
use linerate_bypass::Arena;
use linerate_service::Service;
use service::Contract;
use std::fmt::Debug;

/// Service that an end of a [`Rig`] runs.
pub trait Hosted: Service<Message = ()> + Debug {
    /// Receives the arena of its end.
    fn with_arena(self, _: &Arena) -> Self
    where
        Self: Sized,
    {
        self
    }
}

impl Hosted for Peer {
    fn with_arena(self, arena: &Arena) -> Self {
        Peer { arena: arena.clone(), ..self }
    }
}

impl Hosted for Contract {}

/// Connections of the client: two of each action, with and without an early close.
const CONNECTIONS: usize = 20;

fn order_of_events(seed: u64, mode: Mode) {
    let defaults = Setup::default();
    let setup = Setup { seed, config: Config { mode, max_connections: 32, ..defaults.config.clone() }, ..defaults };
    // The rig connects the session.
    let client = Contract::client(([10, 0, 0, 2], 7).into(), 0);
    let mut rig = Rig::new(&setup, [client, Contract::server()]);
    // A rig has one session, with a fixed number.
    let connections = if mode == Mode::Ud { 1 } else { CONNECTIONS };
    // Sessions wait for timers, which are long for the default tick.
    rig.tick = if mode == Mode::Ud { 20_000 } else { rig.tick };
    (0..connections).for_each(|_| rig.connect(&setup));
    // Without a connector, an abort is not signalled to the peer.
    rig.run_until(|ends| ends[1].worker.service().is_done(connections));
    if connections > 1 {
        rig.ends[1].worker.service().assert_covered();
    }
}

#[test]
fn events_keep_their_order() {
    for seed in 0..20 {
        for mode in [Mode::Send, Mode::Ud] {
            order_of_events(seed, mode);
        }
    }
}
