//! When the port's packets run low: RFC 9293 says nothing of it, but that what is acceptable is taken in the end.

use super::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

/// Packets of the port.
const POOL: usize = 72;

/// A link whose ports have so many packets.
fn link(pool: usize) -> LinkConfig {
    LinkConfig { pool, ..LinkConfig::default() }
}

#[test]
fn what_is_sent_from_other_memory_leaves_room_to_receive() {
    native_only!();
    let mut s = Script::accepted_over(peer().window(0), link(POOL));
    for _ in 0..2 * POOL {
        s.send(10);
    }
    s.inject(data(1, 100));
    s.expect_within(DELAYED_ACK, ack(1, 101));
    s.expect_delivered(100);
}

#[test]
fn a_segment_of_more_pieces_than_there_are_packets_goes_in_parts() {
    native_only!();
    sends_pieces_of(10, link(40));
}

#[test]
fn what_waits_for_a_port_that_takes_no_chains_needs_no_more_packets() {
    // For copies, which it would make, there may be none.
    native_only!();
    for pool in 40..45 {
        sends_pieces_of(100, LinkConfig { multi_segment: false, ..link(pool) });
    }
}

#[test]
fn port_that_takes_no_chains_has_nothing_to_copy() {
    native_only!();
    let mut s = Script::accepted_over(peer(), LinkConfig { multi_segment: false, ..LinkConfig::default() });
    s.write(2 * SEG);
    s.expect_flight(1, 2);
    s.send(2 * SEG);
    s.expect_flight(1 + 2 * SEG, 2);
    s.inject(ack(1, 1 + 4 * SEG));
    assert_eq!(s.copied_by_port(), 0);
    s.expect_all_packets_back();
}

/// Sends sixty pieces of so many bytes when they are all there.
fn sends_pieces_of(len: Rel, link: LinkConfig) {
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
        assert!(next > before, "nothing has come behind {next}");
        s.inject(ack(1, next));
    }
    s.expect_all_packets_back();
}

#[test]
fn what_is_not_read_leaves_room_to_answer() {
    // A service that reads what it could answer, and no more, would never read again.
    native_only!();
    let mut s = Script::accepted_over(peer(), link(POOL));
    s.stop_reading();
    for i in 0..POOL as Rel {
        s.inject(data(1 + 10 * i, 10));
    }
    s.drain();
    s.write(1000);
    s.expect(data(1, 1000).any_ack());
}

#[test]
fn a_duplicate_that_there_was_no_packet_to_report_with_is_not_reported_of_others() {
    // RFC 2883 §4: a block is of data that were received.
    native_only!();
    let mut s = Script::accepted(peer().sack());
    s.on_port(5001).shake_hands();
    s.inject(data(1, 100));
    s.expect_within(DELAYED_ACK, ack(1, 101));
    let packets = s.take_packets();
    s.inject(data(1, 100));
    s.expect_nothing();
    drop(packets);
    s.inject_burst([data(1, 100).port(5000), data(101, 100), data(201, 100)]);
    s.expect(ack(1, 301));
}

#[test]
fn syn_that_there_was_no_packet_to_answer_with_is_answered_once_there_is_one() {
    // No retransmission of the peer's has to make up for it.
    native_only!();
    let mut s = Script::listen(peer(), |_| {});
    // The worker knows the peer's Ethernet address.
    s.on_port(5001).shake_hands();
    let packets = s.take_packets();
    // The answer cannot be written into the packet of the SYN.
    let shares = s.on_port(5000).inject_shared_hello(syn(0));
    s.expect_nothing();
    drop(packets);
    s.expect_within(ms(1), syn_ack(0, 1));
    drop(shares);
    s.expect_nothing_for(ms(100));
    s.inject(ack(1, 1));
    s.expect_opened();
}

#[test]
fn what_there_was_no_packet_to_send_with_is_sent_again_as_often_as_anything() {
    // RFC 9293 §3.8.3: it is given up after a time, whatever it waited for before.
    native_only!();
    let mut s = Script::accepted(peer());
    s.pass(secs(1000));
    let packets = s.take_packets();
    s.send(100);
    s.expect_nothing();
    drop(packets);
    s.expect_within(ms(1), data(1, 100));
    for sent in 1..6 {
        s.inject(data(sent, 1));
        s.drain();
        s.pass(secs(1 << sent));
        assert!(s.drain().iter().any(|got| got.end() == 101), "it was not sent again {sent} times");
    }
    s.expect_alive(6, 101);
}

#[test]
fn peer_may_send_while_data_to_be_sent_hold_the_packets() {
    // Both ends might else wait for each other: the peer for window, and the worker for acknowledgements.
    native_only!();
    let mut s =
        Script::accepted_over_with(peer().window(0), link(POOL), |config| settings::receive_buffer(config, 4096));
    // Enough for packets to run low, and no more than there is room for.
    s.write(24 * SEG);
    let mut next = 1;
    for _ in 0..8 {
        let len = SEG.min(s.flow().right_edge - next);
        assert!(len > 0, "the window is closed at {next}");
        s.inject(data(next, len));
        next += len;
        s.pass(DELAYED_ACK + ms(5));
        s.drain();
    }
    s.expect_delivered(next - 1);
}

#[test]
fn peer_of_a_service_that_reads_may_send_while_unread_data_hold_the_packets() {
    // RFC 9293 §3.8.6: what was promised, and then a segment at a time, until there are packets again.
    native_only!();
    let mut s = Script::accepted_over_with(peer(), link(POOL), |config| settings::receive_buffer(config, 4096));
    s.on_port(5001).shake_hands();
    s.stop_reading();
    for n in 0..21 {
        s.inject(data(1 + 10 * n, 10));
    }
    s.drain();
    s.on_port(5000);
    let edge = s.flow().right_edge;
    let mut next = 1;
    while next < edge + 10 * SEG {
        let len = SEG.min(s.flow().right_edge - next);
        assert!(len > 0, "the window is closed at {next}");
        s.inject(data(next, len));
        next += len;
        s.pass(DELAYED_ACK + ms(5));
        s.drain();
    }
    s.expect_delivered(next - 1);
}
