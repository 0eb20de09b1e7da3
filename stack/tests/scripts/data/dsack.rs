//! Reports of duplicates (D-SACK): every example of RFC 2883, from the receiver's side, and RFC 2018 §4.
//!
//! Sequence numbers are those of the RFC: the RFC's 1000-1499 is `segment(1000, 1500)` here. The RFC acknowledges every
//! segment. Here ACKs of in-order data are delayed and not compared.

use crate::harness::*;

/// Returns a segment with the bytes from `from` up to, not including, `to`.
fn segment(from: Rel, to: Rel) -> Seg {
    data(from, to - from)
}

/// Returns a connection to `peer`, with SACK, on which everything before `next` has been received and acknowledged.
fn expecting_with(peer: Peer, next: Rel) -> Script {
    // Segments of the examples have up to 1500 bytes of payload, others here 2000.
    let mut s = Script::listen_on_mtu(peer.sack(), 3000, |_| {});
    s.handshake();
    let mut seq = 1;
    while seq < next {
        let len = SEG.min(next - seq);
        s.inject(data(seq, len)).drain_for(DELAYED_ACK + ms(5));
        seq += len;
    }
    s
}

fn expecting(next: Rel) -> Script {
    expecting_with(peer(), next)
}

/// Delivers segments in order and discards their ACKs.
fn receive(s: &mut Script, segments: &[(Rel, Rel)]) {
    for &(from, to) in segments {
        s.inject(segment(from, to)).drain_for(DELAYED_ACK + ms(5));
    }
}

/// Delivers a segment and expects an immediate ACK with these blocks.
#[track_caller]
fn check(s: &mut Script, from: Rel, to: Rel, acknowledged: Rel, blocks: &[(Rel, Rel)]) {
    s.inject(segment(from, to)).expect(ack(1, acknowledged).sack(blocks));
    s.expect_nothing();
}

#[test]
fn dsack_reports_duplicate_segment() {
    // RFC 2883 §4.1.1, example 1.
    let mut s = expecting(3000);
    receive(&mut s, &[(3000, 3500), (3500, 4000)]);
    check(&mut s, 3000, 3500, 4000, &[(3000, 3500)]);
    // §4 (2): reported once.
    check(&mut s, 4500, 5000, 4000, &[(4500, 5000)]);
}

#[test]
fn dsack_precedes_out_of_order_segment() {
    // RFC 2883 §4.1.2, example 2.
    let mut s = expecting(3000);
    receive(&mut s, &[(3000, 3500), (3500, 4000)]);
    check(&mut s, 4500, 5000, 4000, &[(4500, 5000)]);
    check(&mut s, 3000, 3500, 4000, &[(3000, 3500), (4500, 5000)]);
}

#[test]
fn dsack_reports_duplicate_of_out_of_order_segment() {
    // RFC 2883 §4.1.3, example 3: the second block encloses the duplicate.
    let mut s = expecting(3500);
    receive(&mut s, &[(3500, 4000)]);
    check(&mut s, 4500, 5000, 4000, &[(4500, 5000)]);
    check(&mut s, 5000, 5500, 4000, &[(4500, 5500)]);
    check(&mut s, 5000, 5500, 4000, &[(5000, 5500), (4500, 5500)]);
}

#[test]
fn dsack_reports_single_duplicate_subsegment() {
    // RFC 2883 §4.2.1, example 4.
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000)]);
    check(&mut s, 2000, 2500, 1000, &[(2000, 2500)]);
    check(&mut s, 1000, 1500, 1500, &[(2000, 2500)]);
    check(&mut s, 1000, 2000, 2500, &[(1000, 1500)]);
}

#[test]
fn dsack_reports_first_of_two_subsegments_below_ack() {
    // RFC 2883 §4.2.2, example 5.
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000)]);
    check(&mut s, 3000, 3500, 1000, &[(3000, 3500)]);
    check(&mut s, 1000, 1500, 1500, &[(3000, 3500)]);
    check(&mut s, 2000, 2500, 1500, &[(2000, 2500), (3000, 3500)]);
    check(&mut s, 1000, 2500, 2500, &[(1000, 1500), (3000, 3500)]);
}

#[test]
fn dsack_reports_first_of_two_subsegments_above_ack() {
    // RFC 2883 §4.2.3, example 6: the second block is the merged one.
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000)]);
    check(&mut s, 3500, 4000, 1000, &[(3500, 4000)]);
    check(&mut s, 1500, 2000, 1000, &[(1500, 2000), (3500, 4000)]);
    check(&mut s, 2500, 3000, 1000, &[(2500, 3000), (1500, 2000), (3500, 4000)]);
    check(&mut s, 1500, 3000, 1000, &[(1500, 2000), (1500, 3000), (3500, 4000)]);
}

#[test]
fn dsack_reports_held_subsegment_when_ack_passes_it() {
    // RFC 2883 §4.2: the first subsegment that had arrived, although all data is acknowledged now.
    let mut s = expecting(100);
    check(&mut s, 200, 300, 100, &[(200, 300)]);
    check(&mut s, 400, 500, 100, &[(400, 500), (200, 300)]);
    check(&mut s, 600, 700, 100, &[(600, 700), (400, 500), (200, 300)]);
    check(&mut s, 100, 600, 700, &[(200, 300)]);
    s.expect_delivered(699);
}

#[test]
fn dsack_reports_held_part_of_segment() {
    // RFC 2883 §4.2, §4 (3): a subsegment at either end or in the middle of the arriving segment; §4 (4): its enclosing
    // block.
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
fn dsack_reports_one_subsegment_of_chained_packet() {
    // RFC 2883 §4.2: the first subsegment of the segment, in any buffer of the chain.
    for first in [100, 600, 1100] {
        let mut s = expecting(1000);
        check(&mut s, 1500, 2000, 1000, &[(1500, 2000)]);
        check(&mut s, 2100, 2200, 1000, &[(2100, 2200), (1500, 2000)]);
        s.inject_chain(segment(1000, 2250), first);
        s.expect(ack(1, 2250).sack(&[(1500, 2000)]));
    }
}

#[test]
fn dsack_reports_duplicate_discarded_by_paws() {
    // RFC 2883 §4.3: the report is independent of PAWS. Three blocks fit with timestamps.
    let mut s = expecting_with(peer().timestamps(), 3000);
    s.pass(secs(1));
    receive(&mut s, &[(3000, 3500), (3500, 4000)]);
    check(&mut s, 5000, 5500, 4000, &[(5000, 5500)]);
    for (from, to, blocks) in [
        (3000, 3500, &[(3000, 3500), (5000, 5500)][..]),
        (3500, 4200, &[(3500, 4000), (5000, 5500)]),
        (4800, 5200, &[(5000, 5200), (5000, 5500)]),
    ] {
        s.inject(segment(from, to).junk().timestamp(PEER_CLOCK - 1, 0)).expect(ack(1, 4000).sack(blocks));
    }
    check(&mut s, 4000, 5000, 5500, &[]);
}

#[test]
fn dsack_reports_segment_replicated_by_network() {
    // RFC 2883 §5.1.
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000), (1000, 1500)]);
    check(&mut s, 1000, 1500, 1500, &[(1000, 1500)]);
}

#[test]
fn dsack_reports_spurious_retransmission_after_reordering() {
    // RFC 2883 §5.2.
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000)]);
    check(&mut s, 1500, 2000, 1000, &[(1500, 2000)]);
    check(&mut s, 2000, 2500, 1000, &[(1500, 2500)]);
    check(&mut s, 2500, 3000, 1000, &[(1500, 3000)]);
    check(&mut s, 1000, 1500, 3000, &[]);
    check(&mut s, 1000, 1500, 3000, &[(1000, 1500)]);
}

#[test]
fn dsack_reports_retransmission_after_lost_acks() {
    // RFC 2883 §5.3: the timeout expires because all ACKs were lost.
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000), (1000, 1500), (1500, 2000), (2000, 2500)]);
    check(&mut s, 500, 1000, 2500, &[(500, 1000)]);
}

#[test]
fn dsack_reports_each_segment_of_early_retransmission() {
    // RFC 2883 §5.4: the timeout expires because all segments are late. §4 (2): each duplicate is reported once.
    let mut s = expecting(500);
    receive(&mut s, &[(500, 1000), (1000, 1500), (1500, 2000), (2000, 2500)]);
    for from in [500, 1000, 1500, 2000] {
        check(&mut s, from, from + 500, 2500, &[(from, from + 500)]);
    }
}

#[test]
fn dsack_is_not_sent_without_sack() {
    // RFC 2883 §3: an extension of the SACK option.
    let mut s = Script::accepted(peer());
    s.inject(segment(501, 1001)).expect(ack(1, 1));
    s.inject(segment(1, 1001)).expect(ack(1, 1001));
    s.expect_delivered(1000);
}
