//! Lingering close: the last reply arrives, and input and time are bounded.

#[path = "../services/lingering.rs"]
mod service;

use crate::common::{DEADLINE, listening, worker};
use linerate_kernel::{Config, Worker};
use linerate_service::{CloseReason, LINGER_BYTES, LINGER_TIME};
use service::{Manner, REFUSAL, Refused, Refuser};
use std::time::{Duration, Instant};

/// Runs a client of `manner` until both ends have closed, and checks that the client has the reply.
fn run(spin: bool, manner: Manner) -> (Worker<Refused>, Worker<Refuser>) {
    let mut server = worker(&Config { spin, ..listening() }, Refuser::default());
    let client = Refused::new(Some(server.tcp_addrs()[0]), manner);
    let mut client = worker(&Config { spin, ..Config::default() }, client);
    let deadline = Instant::now() + DEADLINE;
    while client.service().closed.is_none() || server.service().closed.is_empty() {
        assert!(Instant::now() < deadline, "{:?} and {:?}", client.service(), server.service());
        client.turn(Duration::ZERO);
        server.turn(Duration::from_millis(1));
    }
    assert_eq!(client.service().received, REFUSAL);
    (client, server)
}

#[test]
fn lingering_close_finishes_without_a_reset_when_the_peer_closes() {
    for spin in [false, true] {
        let (client, server) = run(spin, Manner::Closes);
        assert_eq!(server.service().closed, [CloseReason::Finished]);
        assert_eq!(client.service().closed, Some(CloseReason::Finished));
    }
}

#[test]
fn lingering_close_resets_a_peer_that_sends_without_end() {
    for spin in [false, true] {
        let begun = Instant::now();
        let (client, server) = run(spin, Manner::SendsOn);
        assert_eq!(server.service().closed, [CloseReason::Aborted]);
        assert_eq!(client.service().closed, Some(CloseReason::Reset));
        let (sent, taken) = (client.service().sent, server.summary().rx_bytes as usize);
        // At most one read had arrived before the close, and at most one exceeded the bound.
        let bound = LINGER_BYTES..LINGER_BYTES + (512 << 10);
        assert!(sent > LINGER_BYTES && bound.contains(&taken), "{sent} sent, {taken} taken in {:?}", begun.elapsed());
    }
}

#[test]
fn lingering_close_resets_a_peer_that_never_closes() {
    let begun = Instant::now();
    let (client, server) = run(false, Manner::Waits);
    assert!(begun.elapsed() >= LINGER_TIME);
    assert_eq!(server.service().closed, [CloseReason::Aborted]);
    assert_eq!(client.service().closed, Some(CloseReason::Reset));
}
