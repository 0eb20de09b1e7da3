//! Order of events and lingering closes over TLS.

use crate::common::{Authority, Ends, SERVER, encrypted};
use crate::lingering::{Manner, REFUSAL, Refused, Refuser};
use crate::order::Contract;
use linerate_service::{CloseReason, LINGER_BYTES, LINGER_TIME};
use linerate_tls::Tls;

/// Connections of the client: several of each action, each with and without an early close.
const CONNECTIONS: usize = 50;

fn order_of_events(limit: Option<u64>) -> Ends<Tls<Contract>, Tls<Contract>> {
    let authority = Authority::new();
    let client = Contract::client(SERVER.parse().unwrap(), CONNECTIONS);
    let (mut client, mut server) =
        (Tls::new(authority.client(), client), Tls::new(authority.server(), Contract::server()));
    if let Some(limit) = limit {
        client.limit_records(limit);
        server.limit_records(limit);
    }
    let mut ends = Ends::new(client, server);
    ends.turn_until("all connections end", |ends| {
        ends.client.service().service().is_done(CONNECTIONS) && ends.server.service().service().is_done(CONNECTIONS)
    });
    ends.server.service().service().assert_covered();
    let counters = ends.server.service().counters();
    assert_eq!((counters.handshakes, counters.failed), (CONNECTIONS as u64, 0));
    ends
}

#[test]
fn events_keep_their_order() {
    let ends = order_of_events(None);
    let counters = ends.client.service().counters();
    assert_eq!((counters.handshakes, counters.key_updates_sent), (CONNECTIONS as u64, 0));
    assert!(counters.alerts_sent.is_empty(), "{counters:?}");
}

#[test]
fn keys_are_replaced_before_their_limit() {
    let ends = order_of_events(Some(3));
    let (client, server) = (ends.client.service().counters(), ends.server.service().counters());
    assert!(client.key_updates_sent > 10 && server.key_updates_received == client.key_updates_sent, "{client:?}");
    assert!(server.key_updates_sent > 10 && client.key_updates_received > 10, "{server:?}");
}

fn refused(manner: Manner) {
    let authority = Authority::new();
    let client = Refused::new(Some(SERVER.parse().unwrap()), manner);
    let mut ends = encrypted(&authority, client, Refuser::default());
    if manner == Manner::Waits {
        ends.tick = LINGER_TIME / 1000;
    }
    ends.turn_until("both ends close", |ends| {
        ends.client.service().service().closed.is_some() && !ends.server.service().service().closed.is_empty()
    });
    let (client, server) = (ends.client.service().service(), ends.server.service().service());
    assert_eq!(client.received, REFUSAL);
    let (own, peer) = match manner {
        Manner::Closes => (CloseReason::Finished, CloseReason::Finished),
        Manner::SendsOn | Manner::Waits => (CloseReason::Aborted, CloseReason::Reset),
    };
    assert_eq!((&server.closed[..], client.closed), (&[own][..], Some(peer)));
    assert!(manner != Manner::SendsOn || client.sent > LINGER_BYTES, "{} sent", client.sent);
}

#[test]
fn lingering_close_finishes_without_a_reset_when_the_peer_closes() {
    refused(Manner::Closes);
}

#[test]
fn lingering_close_resets_a_peer_that_sends_without_end() {
    refused(Manner::SendsOn);
}

#[test]
fn lingering_close_resets_a_peer_that_never_closes() {
    refused(Manner::Waits);
}
