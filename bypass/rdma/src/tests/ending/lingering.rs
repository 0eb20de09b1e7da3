//! Lingering close: the last reply arrives, and input and time are bounded.

#[path = "../../../../../stack/kernel/tests/services/lingering.rs"]
mod service;

use crate::tests::contract::Hosted;
use crate::tests::rig::{Rig, Setup};
use crate::{Config, Mode};
use linerate_service::{CloseReason, ConnId, LINGER_BYTES, LINGER_TIME, Origin, Service, Transport};
use service::{Manner, REFUSAL, Refused, Refuser};

/// Either end.
#[derive(Debug)]
enum Side {
    Client(Refused),
    Server(Refuser),
}

impl Hosted for Side {}

impl Service for Side {
    type Conn = bool;
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> bool {
        match self {
            Side::Client(client) => client.opened(net, conn, origin),
            Side::Server(server) => return server.opened(net, conn, origin),
        }
        false
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut bool) {
        match self {
            Side::Client(client) => client.readable(net, conn, &mut ()),
            Side::Server(server) => server.readable(net, conn, state),
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut bool) {
        match self {
            Side::Client(client) => client.writable(net, conn, &mut ()),
            Side::Server(server) => server.writable(net, conn, state),
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut bool) {
        match self {
            Side::Client(client) => client.peer_closed(net, conn, &mut ()),
            Side::Server(server) => server.peer_closed(net, conn, state),
        }
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut bool) {
        match self {
            Side::Client(client) => client.timer(net, conn, &mut ()),
            Side::Server(server) => server.timer(net, conn, state),
        }
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, state: bool, reason: CloseReason) {
        match self {
            Side::Client(client) => client.closed(net, conn, (), reason),
            Side::Server(server) => server.closed(net, conn, state, reason),
        }
    }
}

/// Runs a client of `manner` until the server's end is closed. Returns its reason, the client, and the elapsed time.
fn run(seed: u64, mode: Mode, offer_from: usize, manner: Manner) -> (CloseReason, Refused, u64) {
    let defaults = Setup::default();
    let config = Config { mode, offer_from, max_connections: 16, ..defaults.config.clone() };
    let setup = Setup { seed, config, ..defaults };
    let client = Refused::new(None, manner);
    let mut rig = Rig::new(&setup, [Side::Client(client), Side::Server(Refuser::default())]);
    rig.connect(&setup);
    let ended = |side: &Side| match side {
        Side::Client(client) => client.closed,
        Side::Server(server) => server.closed.first().copied(),
    };
    // Only the clock advances meanwhile.
    rig.tick = if manner == Manner::Waits { 1_000_000 } else { rig.tick };
    rig.run_until(|ends| ended(ends[1].worker.service()).is_some());
    let time = rig.now;
    let reason = ended(rig.ends[1].worker.service()).unwrap();
    if manner == Manner::Closes {
        rig.run_until(|ends| ended(ends[0].worker.service()).is_some());
    }
    let Side::Client(client) = rig.ends[0].worker.service() else { panic!("a client") };
    assert_eq!(client.received, REFUSAL);
    let Refused { remote, manner, sent, closed, .. } = *client;
    (reason, Refused { remote, manner, sent, received: Vec::new(), closed }, time)
}

fn in_each_mode(manner: Manner, check: impl Fn(CloseReason, Refused, u64)) {
    for seed in 0..10 {
        for (mode, offer_from) in [(Mode::Send, usize::MAX), (Mode::Ud, usize::MAX), (Mode::Send, 1000)] {
            let (reason, client, time) = run(seed, mode, offer_from, manner);
            check(reason, client, time);
        }
    }
}

#[test]
fn lingering_close_finishes_without_a_reset_when_the_peer_closes() {
    in_each_mode(Manner::Closes, |reason, client, _| {
        assert_eq!((reason, client.closed), (CloseReason::Finished, Some(CloseReason::Finished)));
    });
}

#[test]
fn lingering_close_resets_a_peer_that_sends_without_end() {
    in_each_mode(Manner::SendsOn, |reason, client, time| {
        assert_eq!(reason, CloseReason::Aborted);
        assert!((LINGER_BYTES..2 * LINGER_BYTES).contains(&client.sent), "{} sent", client.sent);
        assert!(u128::from(time) < LINGER_TIME.as_nanos());
    });
}

#[test]
fn lingering_close_resets_a_peer_that_never_closes() {
    in_each_mode(Manner::Waits, |reason, _, time| {
        assert_eq!(reason, CloseReason::Aborted);
        assert!(u128::from(time) >= LINGER_TIME.as_nanos());
    });
}
