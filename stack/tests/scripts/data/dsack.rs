//! Reports of duplicates (D-SACK): every example of RFC 2883, from the receiver's side, and RFC 2018 §4.
//!
//! The sequence numbers are those of the RFC. A segment that the RFC writes as 1000-1499 is `segment(1000, 1500)` here. The RFC
//! acknowledges every segment; an acknowledgement of data in order is delayed here, and not looked at.

use super::harness::*;

/// The bytes from `from` up to, not including, `to`.
fn segment(from: Rel, to: Rel) -> Seg {
    data(from, to - from)
}

/// A connection to `peer`, which uses SACK, on which everything before `next` has been received and acknowledged.
fn expecting_with(peer: Peer, next: Rel) -> Script {
    // Some of the examples' segments have 1500 bytes of payload, and others here 2000.
    let mut s = Script::listen_on_mtu(peer.sack(), 3000, |_| {});
    s.shake_hands();
    let mut seq = 1;
    while seq < next {
        let len = SEG.min(next - seq);
        s.inject(data(seq, len));
        s.drain_for(DELAYED_ACK + ms(5));
        seq += len;
    }
    s
}

fn expecting(next: Rel) -> Script {
    expecting_with(peer(), next)
}

/// The peer's segments arrive in order and are acknowledged in silence.
fn receive(s: &mut Script, segments: &[(Rel, Rel)]) {
    for &(from, to) in segments {
        s.inject(segment(from, to));
        s.drain_for(DELAYED_ACK + ms(5));
    }
}

/// The peer's segment arrives, and is answered at once by an acknowledgement with these blocks.
#[track_caller]
fn check(s: &mut Script, from: Rel, to: Rel, acknowledged: Rel, blocks: &[(Rel, Rel)]) {
    s.inject(segment(from, to));
    s.expect(ack(1, acknowledged).sack(blocks));
    s.expect_nothing();
}

#[test]
fn dsack_reports_a_duplicate_segment() {
    // RFC 2883 §4.1.1, example 1.
    native_only!();
    let mut s = expecting(3000);
    receive(&mut s, &[(3000, 3500), (3500, 4000)]);
    check(&mut s, 3000, 3500, 4000, &[(3000, 3500)]);
    // §4 (2): it is reported once.
    check(&mut s, 4500, 5000, 4000, &[(4500, 5000)]);
}

#[test]
fn dsack_precedes_a_segment_out_of_order() {
    // RFC 2883 §4.1.2, example 2.
    native_only!();
    let mut s = expecting(3000);
    receive(&mut s, &[(3000, 3500), (3500, 4000)]);
    check(&mut s, 4500, 5000, 4000, &[(4500, 5000)]);
    check(&mut s, 3000, 3500, 4000, &[(3000, 3500), (4500, 5000)]);
}

#[test]
fn dsack_reports_a_duplicate_of_a_segment_out_of_order() {
    // RFC 2883 §4.1.3, example 3: the second block is the larger one that holds the duplicate.
    native_only!();
    let mut s = expecting(3500);
    receive(&mut s, &[(3500, 4000)]);
    check(&mut s, 4500, 5000, 4000, &[(4500, 5000)]);
    check(&mut s, 5000, 5500, 4000, &[(4500, 5500)]);
    check(&mut s, 5000, 5500, 4000, &[(5000, 5500), (4500, 5500)]);
}

#[test]
fn dsack_reports_a_single_duplicate_subsegment() {
    // RFC 2883 §4.2.1, example 4.
    native_only!();
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000)]);
    check(&mut s, 2000, 2500, 1000, &[(2000, 2500)]);
    check(&mut s, 1000, 1500, 1500, &[(2000, 2500)]);
    check(&mut s, 1000, 2000, 2500, &[(1000, 1500)]);
}

#[test]
fn dsack_reports_the_first_of_two_subsegments_below_the_acknowledgement() {
    // RFC 2883 §4.2.2, example 5.
    native_only!();
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000)]);
    check(&mut s, 3000, 3500, 1000, &[(3000, 3500)]);
    check(&mut s, 1000, 1500, 1500, &[(3000, 3500)]);
    check(&mut s, 2000, 2500, 1500, &[(2000, 2500), (3000, 3500)]);
    check(&mut s, 1000, 2500, 2500, &[(1000, 1500), (3000, 3500)]);
}

#[test]
fn dsack_reports_the_first_of_two_subsegments_above_the_acknowledgement() {
    // RFC 2883 §4.2.3, example 6: the second block is the larger one that the segment has made of both.
    native_only!();
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000)]);
    check(&mut s, 3500, 4000, 1000, &[(3500, 4000)]);
    check(&mut s, 1500, 2000, 1000, &[(1500, 2000), (3500, 4000)]);
    check(&mut s, 2500, 3000, 1000, &[(2500, 3000), (1500, 2000), (3500, 4000)]);
    check(&mut s, 1500, 3000, 1000, &[(1500, 2000), (1500, 3000), (3500, 4000)]);
}

#[test]
fn dsack_reports_what_was_held_when_the_acknowledgement_passes_it() {
    // RFC 2883 §4.2: the first subsegment that had arrived, though all is acknowledged now.
    native_only!();
    let mut s = expecting(100);
    check(&mut s, 200, 300, 100, &[(200, 300)]);
    check(&mut s, 400, 500, 100, &[(400, 500), (200, 300)]);
    check(&mut s, 600, 700, 100, &[(600, 700), (400, 500), (200, 300)]);
    check(&mut s, 100, 600, 700, &[(200, 300)]);
    s.expect_delivered(699);
}

#[test]
fn dsack_reports_the_part_of_a_segment_that_was_held() {
    // RFC 2883 §4.2, §4 (3): a subsegment at either end or in the middle of what arrives; §4 (4): the block that it is in.
    native_only!();
    for (from, to, duplicate, block) in [
        (1500, 2500, (2000, 2500), (1500, 3000)),
        (2500, 3500, (2500, 3000), (2000, 3500)),
        (1500, 3500, (2000, 3000), (1500, 3500)),
        (2200, 2800, (2200, 2800), (2000, 3000)),
        (2000, 3500, (2000, 3000), (2000, 3500)),
    ] {
        let mut s = expecting(1000);
        check(&mut s, 2000, 3000, 1000, &[(2000, 3000)]);
        check(&mut s, from, to, 1000, &[duplicate, block]);
    }
}

#[test]
fn dsack_reports_one_subsegment_of_a_segment_that_the_port_delivers_in_pieces() {
    // RFC 2883 §4.2: the first subsegment of the segment, in whichever of its buffers that lies.
    native_only!();
    for first in [100, 600, 1100] {
        let mut s = expecting(1000);
        check(&mut s, 1500, 2000, 1000, &[(1500, 2000)]);
        check(&mut s, 2100, 2200, 1000, &[(2100, 2200), (1500, 2000)]);
        s.inject_chain(segment(1000, 2250), first);
        s.expect(ack(1, 2250).sack(&[(1500, 2000)]));
    }
}

#[test]
fn dsack_reports_a_duplicate_that_paws_discards() {
    // RFC 2883 §4.3: the report does not depend on PAWS. Beside timestamps there is room for three blocks.
    native_only!();
    let mut s = expecting_with(peer().timestamps(), 3000);
    s.pass(secs(1));
    receive(&mut s, &[(3000, 3500), (3500, 4000)]);
    check(&mut s, 5000, 5500, 4000, &[(5000, 5500)]);
    for (from, to, blocks) in [
        (3000, 3500, &[(3000, 3500), (5000, 5500)][..]),
        (3500, 4200, &[(3500, 4000), (5000, 5500)]),
        (4800, 5200, &[(5000, 5200), (5000, 5500)]),
    ] {
        s.inject(segment(from, to).junk().timestamp(PEER_CLOCK - 1, 0));
        s.expect(ack(1, 4000).sack(blocks));
    }
    check(&mut s, 4000, 5000, 5500, &[]);
}

#[test]
fn dsack_reports_a_segment_that_the_network_has_replicated() {
    // RFC 2883 §5.1.
    native_only!();
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000), (1000, 1500)]);
    check(&mut s, 1000, 1500, 1500, &[(1000, 1500)]);
}

#[test]
fn dsack_reports_a_false_retransmission_after_reordering() {
    // RFC 2883 §5.2.
    native_only!();
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000)]);
    check(&mut s, 1500, 2000, 1000, &[(1500, 2000)]);
    check(&mut s, 2000, 2500, 1000, &[(1500, 2500)]);
    check(&mut s, 2500, 3000, 1000, &[(1500, 3000)]);
    check(&mut s, 1000, 1500, 3000, &[]);
    check(&mut s, 1000, 1500, 3000, &[(1000, 1500)]);
}

#[test]
fn dsack_reports_a_retransmission_after_lost_acknowledgements() {
    // RFC 2883 §5.3: the time-out expires because all acknowledgements were lost.
    native_only!();
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000), (1000, 1500), (1500, 2000), (2000, 2500)]);
    check(&mut s, 500, 1000, 2500, &[(500, 1000)]);
}

#[test]
fn dsack_reports_each_segment_of_an_early_retransmission() {
    // RFC 2883 §5.4: the time-out expires because everything is late. §4 (2): each duplicate is reported once.
    native_only!();
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000), (1000, 1500), (1500, 2000), (2000, 2500)]);
    for from in [500, 1000, 1500, 2000] {
        check(&mut s, from, from + 500, 2500, &[(from, from + 500)]);
    }
}

#[test]
fn duplicates_are_not_reported_to_a_peer_without_sack() {
    // RFC 2883 §3: an extension of the SACK option, and used where that was negotiated.
    let mut s = Script::accepted(peer());
    s.inject(segment(501, 1001));
    s.expect(ack(1, 1));
    s.inject(segment(1, 1001));
    s.expect(ack(1, 1001));
    s.expect_delivered(1000);
}
