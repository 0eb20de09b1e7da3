//! Timing and SACK blocks of acknowledgements: RFC 9293 §3.8.6.3, RFC 5681 §4.2, RFC 2018, RFC 2883.

use crate::harness::*;

#[test]
fn ack_of_single_segment_is_delayed() {
    // RFC 9293 §3.8.6.3 SHLD-18, MUST-40.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 1000)).expect_nothing();
    s.expect_within(DELAYED_ACK, ack(1, 1001));
    s.expect_nothing_for(secs(1));
}

#[test]
fn ack_delay_counts_from_first_segment() {
    // RFC 9293 §3.8.6.3: the delay is bounded.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100));
    s.pass(DELAYED_ACK - ms(10));
    s.inject(data(101, 100));
    let acknowledged = s.drain_for(ms(11)).last().map(|got| got.ack);
    assert!(acknowledged >= Some(101), "no acknowledgement of the first segment within {DELAYED_ACK:?}");
}

#[test]
fn second_full_segment_is_acknowledged_immediately() {
    // RFC 9293 §3.8.6.3 SHLD-19; RFC 5681 §4.2.
    let mut s = Script::accepted(peer());
    for n in 0..5 {
        s.inject(data(1 + 2000 * n, 1000)).expect_nothing();
        s.pass(ms(1));
        s.inject(data(1001 + 2000 * n, 1000)).expect(ack(1, 2001 + 2000 * n));
    }
    s.expect_nothing_for(ms(500));
}

#[test]
fn burst_is_acknowledged_once() {
    // RFC 9293 §3.10.7.4, first, MUST-58, MUST-59.
    let mut s = Script::accepted(peer());
    s.inject_burst((0..8).map(|n| data(1 + 1000 * n, 1000))).expect_within(DELAYED_ACK, ack(1, 8001));
    s.expect_nothing_for(secs(1));
}

#[test]
fn burst_of_several_connections_is_acknowledged_once_each() {
    // RFC 9293 §3.10.7.4, first, MUST-58, MUST-59.
    let mut s = Script::listen(peer(), |_| {});
    let ports = [5000, 5001, 5002];
    for port in ports {
        s.on_port(port).handshake();
    }
    let segments = (0..4).flat_map(|n| ports.map(|port| data(1 + 1000 * n, 1000).port(port)));
    s.inject_burst(segments.collect::<Vec<_>>());
    s.pass(DELAYED_ACK);
    let mut acknowledged: Vec<(u16, Rel)> = s.drain().iter().map(|got| (got.port, got.ack)).collect();
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, ports.map(|port| (port, 4001)));
}

#[test]
fn out_of_order_segment_is_acknowledged_immediately() {
    // RFC 5681 §4.2: the sender needs the duplicate ACKs.
    let mut s = Script::accepted(peer());
    for n in 1..5 {
        s.inject(data(1 + 1000 * n, 1000)).expect(ack(1, 1));
    }
}

#[test]
fn segment_that_fills_gap_is_acknowledged_immediately() {
    // RFC 5681 §4.2: for a whole gap or a part.
    let mut s = Script::accepted(peer());
    s.inject(data(1001, 1000)).expect(ack(1, 1));
    s.inject(data(3001, 1000)).expect(ack(1, 1));
    s.inject(data(1, 1000)).expect(ack(1, 2001));
    s.inject(data(2001, 500)).expect(ack(1, 2501));
    s.inject(data(2501, 500)).expect(ack(1, 4001));
    s.expect_nothing_for(secs(1));
}

#[test]
fn immediate_answer_carries_ack() {
    // RFC 9293 §3.10.7.4, seventh: piggybacked.
    let mut s = Script::accepted(peer());
    s.write_on_readable(100);
    s.inject(data(1, 100)).expect(data(1, 100).ack(101));
    s.inject(ack(101, 101)).expect_nothing_for(secs(1));
}

#[test]
fn answer_within_delay_carries_ack() {
    // RFC 9293 §3.8.6.3: the purpose of the delay.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100));
    s.pass(ms(5));
    s.write(10).expect(data(1, 10).ack(101));
    s.inject(ack(101, 11)).expect_nothing_for(secs(1));
}

#[test]
fn pure_ack_is_not_acknowledged() {
    // RFC 9293 §3.4: ACKs occupy no sequence space.
    let mut s = Script::accepted(peer());
    s.inject(ack(1, 1));
    s.inject(ack(1, 1).window(1000));
    s.inject(ack(1, 1)).expect_nothing_for(secs(1));
}

#[test]
fn out_of_order_burst_is_acknowledged_once() {
    // RFC 9293 §3.10.7.4, first, MUST-59; RFC 2018 §4.
    let mut s = Script::accepted(peer().sack());
    s.inject_burst([data(2001, 1000), data(3001, 1000), data(5001, 1000)]);
    s.expect(ack(1, 1).sack(&[(5001, 6001), (2001, 4001)]));
    s.expect_nothing();
}

#[test]
fn gap_filled_within_burst_is_not_reported() {
    // RFC 9293 §3.10.7.4, first, MUST-59: all queued segments are processed before an ACK is sent.
    let mut s = Script::accepted(peer().sack());
    s.inject_burst([data(1001, 1000), data(1, 1000)]).expect(ack(1, 2001));
    s.expect_nothing();
}

#[test]
fn four_sack_blocks_are_sent_most_recent_first() {
    // RFC 2018 §4: the first block holds the segment that caused the ACK; the others are the most recently reported.
    let mut s = Script::accepted(peer().sack());
    let island = |n: Rel| (1001 + 2000 * n, 2001 + 2000 * n);
    s.inject(data(1001, 1000)).expect(ack(1, 1).sack(&[island(0)]));
    s.inject(data(3001, 1000)).expect(ack(1, 1).sack(&[island(1), island(0)]));
    s.inject(data(5001, 1000)).expect(ack(1, 1).sack(&[island(2), island(1), island(0)]));
    s.inject(data(7001, 1000)).expect(ack(1, 1).sack(&[island(3), island(2), island(1), island(0)]));
    s.inject(data(9001, 1000)).expect(ack(1, 1).sack(&[island(4), island(3), island(2), island(1)]));
    // A block that grows moves to the front.
    s.inject(data(4001, 500)).expect(ack(1, 1).sack(&[(3001, 4501), island(4), island(3), island(2)]));
    // Two blocks merge.
    let got = s.inject(data(4501, 500)).expect(ack(1, 1).any_sack());
    // The RFC does not require that a displaced block is remembered.
    assert_eq!(got.sack[..3], [(3001, 6001), island(4), island(3)]);
    s.inject(data(1, 1000)).expect(ack(1, 2001).sack(&[(3001, 6001), island(4), island(3)]));
}

#[test]
fn three_sack_blocks_are_sent_with_timestamps() {
    // RFC 2018 §3.
    let mut s = Script::accepted(peer().sack().timestamps());
    for n in 0..5 {
        let got = s.inject(data(1001 + 2000 * n, 1000)).expect(ack(1, 1).any_sack());
        let want: Vec<_> = (0..=n).rev().take(3).map(|n| (1001 + 2000 * n, 2001 + 2000 * n)).collect();
        assert_eq!(got.sack, want);
    }
}

#[test]
fn duplicate_below_rcv_nxt_is_reported_once() {
    // RFC 2883 §4.1.
    let mut s = Script::accepted(peer().sack());
    s.inject(data(1, 1000)).expect_within(DELAYED_ACK, ack(1, 1001));
    s.inject(data(1, 1000)).expect(ack(1, 1001).sack(&[(1, 1001)]));
    s.inject_burst([data(1001, 1000), data(2001, 1000)]).expect_within(DELAYED_ACK, ack(1, 3001));
}

#[test]
fn duplicate_is_reported_before_other_blocks() {
    // RFC 2883 §4.1.2.
    let mut s = Script::accepted(peer().sack());
    s.inject(data(1, 1000)).expect_within(DELAYED_ACK, ack(1, 1001));
    s.inject(data(2001, 1000)).expect(ack(1, 1001).sack(&[(2001, 3001)]));
    s.inject(data(501, 500)).expect(ack(1, 1001).sack(&[(501, 1001), (2001, 3001)]));
    s.inject(data(3001, 1000)).expect(ack(1, 1001).sack(&[(2001, 4001)]));
}

#[test]
fn duplicate_above_rcv_nxt_is_reported_with_enclosing_block() {
    // RFC 2883 §4 (3), §4.2.
    let mut s = Script::accepted(peer().sack());
    s.inject_burst([data(1001, 1000), data(2001, 1000)]).expect(ack(1, 1).sack(&[(1001, 3001)]));
    s.inject(data(2001, 1000)).expect(ack(1, 1).sack(&[(2001, 3001), (1001, 3001)]));
}

#[test]
fn data_segments_carry_sack_blocks_if_they_fit() {
    // RFC 2018 §3: one block takes 12 bytes with padding.
    for (len, fits) in [(SEG - 12, true), (SEG - 11, false)] {
        let mut s = Script::accepted(peer().sack());
        s.inject(data(101, 100)).expect(ack(1, 1).sack(&[(101, 201)]));
        s.write(len);
        let blocks: &[(Rel, Rel)] = if fits { &[(101, 201)] } else { &[] };
        s.expect(data(1, len).sack(blocks));
    }
}

#[test]
fn old_part_of_segment_is_reported_as_duplicate() {
    // RFC 2883 §4.3.
    let mut s = Script::accepted(peer().sack());
    s.inject(data(1, 1000)).expect_within(DELAYED_ACK, ack(1, 1001));
    s.inject(data(501, 1000)).expect_within(DELAYED_ACK, ack(1, 1501).sack(&[(501, 1001)]));
}

#[test]
fn duplicate_without_sack_is_only_acknowledged() {
    // RFC 2018 §2, §3.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 1000)).expect_within(DELAYED_ACK, ack(1, 1001));
    s.inject(data(1, 1000)).expect(ack(1, 1001));
    s.inject(data(2001, 1000)).expect(ack(1, 1001));
}
