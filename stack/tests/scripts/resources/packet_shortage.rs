//! Packet shortage: a small pool delays segments but loses no acceptable data.

use crate::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

/// Packets of the port.
const POOL: usize = 72;

/// Returns a link whose ports have `pool` packets.
fn link(pool: usize) -> LinkConfig {
    LinkConfig { pool, ..LinkConfig::default() }
}

#[test]
fn sending_external_memory_leaves_packets_for_reception() {
    let mut s = Script::accepted_over(peer().window(0), link(POOL));
    for _ in 0..2 * POOL {
        s.send(10);
    }
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.expect_delivered(100);
}

#[test]
fn segment_of_more_chunks_than_packets_is_sent_in_parts() {
    sends_chunks_of(10, link(40));
}

#[test]
fn data_queued_for_port_without_chains_needs_no_packets() {
    // The pool may have no packets for copies.
    for pool in 40..45 {
        sends_chunks_of(100, LinkConfig { multi_segment: false, ..link(pool) });
    }
}

#[test]
fn port_without_chains_copies_nothing() {
    let mut s = Script::accepted_over(peer(), LinkConfig { multi_segment: false, ..LinkConfig::default() });
    s.write(2 * SEG).expect_flight(1, 2);
    s.send(2 * SEG);
    s.expect_flight(1 + 2 * SEG, 2);
    s.inject(ack(1, 1 + 4 * SEG));
    assert_eq!(s.copied_by_port(), 0);
    s.expect_no_packets_held();
}

/// Sends sixty chunks of `len` bytes after all have been queued.
fn sends_chunks_of(len: Rel, link: LinkConfig) {
    let mut s = Script::accepted_over(peer(), link);
    s.inject(ack(1, 1).window(0));
    for _ in 0..60 {
        s.send(len);
    }
    s.inject(ack(1, 1));
    let mut next = 1;
    while next < 1 + 60 * len {
        let before = next;
        for got in s.drain() {
            next = next.max(got.end());
        }
        assert!(next > before, "no data after {next}");
        s.inject(ack(1, next));
    }
    s.expect_no_packets_held();
}

#[test]
fn unread_data_leaves_packets_for_answers() {
    // Otherwise a service that reads only as much as it can answer would stall.
    let mut s = Script::accepted_over(peer(), link(POOL));
    s.stop_reading();
    for i in 0..POOL as Rel {
        s.inject(data(1 + 10 * i, 10));
    }
    s.drain();
    s.write(1000).expect(data(1, 1000).any_ack());
}

#[test]
fn unreported_duplicate_is_not_reported_later() {
    // RFC 2883 §4: a block is of received data. No packet was available for the report.
    let mut s = Script::accepted(peer().sack());
    s.on_port(5001).handshake();
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    let packets = s.take_packets();
    s.inject(data(1, 100)).expect_nothing();
    drop(packets);
    s.inject_burst([data(1, 100).port(5000), data(101, 100), data(201, 100)]).expect(ack(1, 301));
}

#[test]
fn syn_without_free_packet_is_answered_later() {
    // Without a retransmission by the peer.
    let mut s = Script::listen(peer(), |_| {});
    // The worker knows the peer's Ethernet address.
    s.on_port(5001).handshake();
    let packets = s.take_packets();
    // The SYN-ACK cannot reuse the packet of the SYN.
    let shares = s.on_port(5000).inject_shared_syn(syn(0));
    s.expect_nothing();
    drop(packets);
    s.expect_within(ms(1), syn_ack(0, 1));
    drop(shares);
    s.expect_nothing_for(ms(100));
    s.inject(ack(1, 1)).expect_opened();
}

#[test]
fn segment_without_free_packet_gets_all_retransmissions() {
    // RFC 9293 §3.8.3: the connection closes after a time, independent of the earlier wait.
    let mut s = Script::accepted(peer());
    s.pass(secs(1000));
    let packets = s.take_packets();
    s.send(100);
    s.expect_nothing();
    drop(packets);
    s.expect_within(ms(1), data(1, 100));
    for sent in 1..6 {
        s.inject(data(sent, 1)).drain();
        s.pass(secs(1 << sent));
        assert!(s.drain().iter().any(|got| got.end() == 101), "missing retransmission {sent}");
    }
    s.expect_alive(6, 101);
}

#[test]
fn peer_may_send_while_unsent_data_holds_packets() {
    // Otherwise both ends might wait: the peer for window, and the worker for ACKs.
    let mut s =
        Script::accepted_over_with(peer().window(0), link(POOL), |config| settings::receive_buffer(config, 4096));
    // Enough to cause a shortage, within the send buffer.
    s.write(24 * SEG);
    let mut next = 1;
    for _ in 0..8 {
        let len = SEG.min(s.flow().right_edge - next);
        assert!(len > 0, "the window is closed at {next}");
        s.inject(data(next, len));
        next += len;
        s.drain_for(DELAYED_ACK + ms(5));
    }
    s.expect_delivered(next - 1);
}

#[test]
fn peer_of_reading_service_may_send_while_unread_data_holds_packets() {
    // RFC 9293 §3.8.6: the granted window, then one segment at a time until packets are free.
    let mut s = Script::accepted_over_with(peer(), link(POOL), |config| settings::receive_buffer(config, 4096));
    s.on_port(5001).handshake();
    s.stop_reading();
    s.inject_run(0..21, 10).drain();
    s.on_port(5000);
    let edge = s.flow().right_edge;
    let mut next = 1;
    while next < edge + 10 * SEG {
        let len = SEG.min(s.flow().right_edge - next);
        assert!(len > 0, "the window is closed at {next}");
        s.inject(data(next, len));
        next += len;
        s.drain_for(DELAYED_ACK + ms(5));
    }
    s.expect_delivered(next - 1);
}
