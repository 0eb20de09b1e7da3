//! When the worker acknowledges, and with which SACK blocks: RFC 9293 §3.8.6.3, RFC 5681 §4.2, RFC 2018, RFC 2883.

use super::harness::*;

#[test]
fn a_lone_segment_is_acknowledged_a_little_later() {
    // RFC 9293 §3.8.6.3 SHLD-18, MUST-40.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 1000));
    s.expect_nothing();
    s.expect_within(DELAYED_ACK, ack(1, 1001));
    s.expect_nothing_for(secs(1));
}

#[test]
fn the_delay_counts_from_the_first_segment_that_waits() {
    // RFC 9293 §3.8.6.3: the delay of an acknowledgement is bounded.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100));
    s.pass(DELAYED_ACK - ms(10));
    s.inject(data(101, 100));
    s.pass(ms(11));
    let acknowledged = s.drain().last().map(|got| got.ack);
    assert!(acknowledged >= Some(101), "no acknowledgement of the first segment within {DELAYED_ACK:?}");
}

#[test]
fn every_second_full_segment_is_acknowledged_at_once() {
    // RFC 9293 §3.8.6.3 SHLD-19; RFC 5681 §4.2.
    let mut s = Script::accepted(peer());
    for n in 0..5 {
        s.inject(data(1 + 2000 * n, 1000));
        s.expect_nothing();
        s.pass(ms(1));
        s.inject(data(1001 + 2000 * n, 1000));
        s.expect(ack(1, 2001 + 2000 * n));
    }
    s.expect_nothing_for(ms(500));
}

#[test]
fn a_burst_is_acknowledged_once() {
    // RFC 9293 §3.10.7.4, first, MUST-58, MUST-59.
    let mut s = Script::accepted(peer());
    s.inject_burst((0..8).map(|n| data(1 + 1000 * n, 1000)));
    s.expect_within(DELAYED_ACK, ack(1, 8001));
    s.expect_nothing_for(secs(1));
}

#[test]
fn a_burst_of_several_connections_is_acknowledged_once_each() {
    // RFC 9293 §3.10.7.4, first, MUST-58, MUST-59.
    let mut s = Script::listen(peer(), |_| {});
    let ports = [5000, 5001, 5002];
    for port in ports {
        s.on_port(port).shake_hands();
    }
    let segments = (0..4).flat_map(|n| ports.map(|port| data(1 + 1000 * n, 1000).port(port)));
    s.inject_burst(segments.collect::<Vec<_>>());
    s.pass(DELAYED_ACK);
    let mut acknowledged: Vec<(u16, Rel)> = s.drain().iter().map(|got| (got.port, got.ack)).collect();
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, ports.map(|port| (port, 4001)));
}

#[test]
fn a_segment_out_of_order_is_acknowledged_at_once() {
    // RFC 5681 §4.2: so that the sender sees duplicates.
    let mut s = Script::accepted(peer());
    for n in 1..5 {
        s.inject(data(1 + 1000 * n, 1000));
        s.expect(ack(1, 1));
    }
}

#[test]
fn a_segment_that_fills_a_gap_is_acknowledged_at_once() {
    // RFC 5681 §4.2: all of a gap, or a part of it.
    let mut s = Script::accepted(peer());
    s.inject(data(1001, 1000));
    s.expect(ack(1, 1));
    s.inject(data(3001, 1000));
    s.expect(ack(1, 1));
    s.inject(data(1, 1000));
    s.expect(ack(1, 2001));
    s.inject(data(2001, 500));
    s.expect(ack(1, 2501));
    s.inject(data(2501, 500));
    s.expect(ack(1, 4001));
    s.expect_nothing_for(secs(1));
}

#[test]
fn data_that_the_service_answers_at_once_is_acknowledged_by_the_answer() {
    // RFC 9293 §3.10.7.4, seventh: piggybacked.
    let mut s = Script::accepted(peer());
    s.answer(100);
    s.inject(data(1, 100));
    s.expect(data(1, 100).ack(101));
    s.inject(ack(101, 101));
    s.expect_nothing_for(secs(1));
}

#[test]
fn data_that_the_service_answers_soon_is_acknowledged_by_the_answer() {
    // RFC 9293 §3.8.6.3: what the delay is for.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100));
    s.pass(ms(5));
    s.write(10);
    s.expect(data(1, 10).ack(101));
    s.inject(ack(101, 11));
    s.expect_nothing_for(secs(1));
}

#[test]
fn a_pure_acknowledgement_is_not_acknowledged() {
    // RFC 9293 §3.4: acknowledgements take up no sequence space; answering them would have no end.
    let mut s = Script::accepted(peer());
    s.inject(ack(1, 1));
    s.inject(ack(1, 1).window(1000));
    s.inject(ack(1, 1));
    s.expect_nothing_for(secs(1));
}

#[test]
fn segments_out_of_order_in_one_burst_are_acknowledged_once() {
    // RFC 9293 §3.10.7.4, first, MUST-59; RFC 2018 §4.
    native_only!();
    let mut s = Script::accepted(peer().sack());
    s.inject_burst([data(2001, 1000), data(3001, 1000), data(5001, 1000)]);
    s.expect(ack(1, 1).sack(&[(5001, 6001), (2001, 4001)]));
    s.expect_nothing();
}

#[test]
fn a_gap_that_is_filled_within_one_burst_leaves_no_trace() {
    // RFC 9293 §3.10.7.4, first, MUST-59: all queued segments are processed before anything is acknowledged.
    native_only!();
    let mut s = Script::accepted(peer().sack());
    s.inject_burst([data(1001, 1000), data(1, 1000)]);
    s.expect(ack(1, 2001));
    s.expect_nothing();
}

#[test]
fn sack_blocks_come_with_the_most_recent_first_and_four_fit() {
    // RFC 2018 §4: the first block holds the segment that caused it; the others are those reported most recently.
    native_only!();
    let mut s = Script::accepted(peer().sack());
    let island = |n: Rel| (1001 + 2000 * n, 2001 + 2000 * n);
    s.inject(data(1001, 1000));
    s.expect(ack(1, 1).sack(&[island(0)]));
    s.inject(data(3001, 1000));
    s.expect(ack(1, 1).sack(&[island(1), island(0)]));
    s.inject(data(5001, 1000));
    s.expect(ack(1, 1).sack(&[island(2), island(1), island(0)]));
    s.inject(data(7001, 1000));
    s.expect(ack(1, 1).sack(&[island(3), island(2), island(1), island(0)]));
    s.inject(data(9001, 1000));
    s.expect(ack(1, 1).sack(&[island(4), island(3), island(2), island(1)]));
    // What has grown comes first, as it is now.
    s.inject(data(4001, 500));
    s.expect(ack(1, 1).sack(&[(3001, 4501), island(4), island(3), island(2)]));
    // Two that have become one.
    s.inject(data(4501, 500));
    let got = s.expect(ack(1, 1).any_sack());
    // Whether one that has had to give way is remembered is not said.
    assert_eq!(got.sack[..3], [(3001, 6001), island(4), island(3)]);
    s.inject(data(1, 1000));
    s.expect(ack(1, 2001).sack(&[(3001, 6001), island(4), island(3)]));
}

#[test]
fn beside_timestamps_three_sack_blocks_fit() {
    // RFC 2018 §3.
    native_only!();
    let mut s = Script::accepted(peer().sack().timestamps());
    for n in 0..5 {
        s.inject(data(1001 + 2000 * n, 1000));
        let got = s.expect(ack(1, 1).any_sack());
        let want: Vec<_> = (0..=n).rev().take(3).map(|n| (1001 + 2000 * n, 2001 + 2000 * n)).collect();
        assert_eq!(got.sack, want);
    }
}

#[test]
fn a_duplicate_below_what_is_acknowledged_is_reported_once() {
    // RFC 2883 §4.1.
    native_only!();
    let mut s = Script::accepted(peer().sack());
    s.inject(data(1, 1000));
    s.expect_within(DELAYED_ACK, ack(1, 1001));
    s.inject(data(1, 1000));
    s.expect(ack(1, 1001).sack(&[(1, 1001)]));
    s.inject_burst([data(1001, 1000), data(2001, 1000)]);
    s.expect_within(DELAYED_ACK, ack(1, 3001));
}

#[test]
fn a_duplicate_is_reported_in_front_of_the_other_blocks() {
    // RFC 2883 §4.1.2.
    native_only!();
    let mut s = Script::accepted(peer().sack());
    s.inject(data(1, 1000));
    s.expect_within(DELAYED_ACK, ack(1, 1001));
    s.inject(data(2001, 1000));
    s.expect(ack(1, 1001).sack(&[(2001, 3001)]));
    s.inject(data(501, 500));
    s.expect(ack(1, 1001).sack(&[(501, 1001), (2001, 3001)]));
    s.inject(data(3001, 1000));
    s.expect(ack(1, 1001).sack(&[(2001, 4001)]));
}

#[test]
fn a_duplicate_above_what_is_acknowledged_is_reported_with_the_block_that_holds_it() {
    // RFC 2883 §4, (3), §4.2.
    native_only!();
    let mut s = Script::accepted(peer().sack());
    s.inject_burst([data(1001, 1000), data(2001, 1000)]);
    s.expect(ack(1, 1).sack(&[(1001, 3001)]));
    s.inject(data(2001, 1000));
    s.expect(ack(1, 1).sack(&[(2001, 3001), (1001, 3001)]));
}

#[test]
fn data_report_what_is_held_where_the_option_fits_beside_them() {
    // RFC 2018 §3: one block takes 12 bytes with its padding.
    native_only!();
    for (len, fits) in [(SEG - 12, true), (SEG - 11, false)] {
        let mut s = Script::accepted(peer().sack());
        s.inject(data(101, 100));
        s.expect(ack(1, 1).sack(&[(101, 201)]));
        s.write(len);
        let blocks: &[(Rel, Rel)] = if fits { &[(101, 201)] } else { &[] };
        s.expect(data(1, len).sack(blocks));
    }
}

#[test]
fn the_old_part_of_a_segment_is_reported_as_a_duplicate() {
    // RFC 2883 §4.3.
    native_only!();
    let mut s = Script::accepted(peer().sack());
    s.inject(data(1, 1000));
    s.expect_within(DELAYED_ACK, ack(1, 1001));
    s.inject(data(501, 1000));
    s.expect_within(DELAYED_ACK, ack(1, 1501).sack(&[(501, 1001)]));
}

#[test]
fn a_duplicate_reported_to_a_peer_without_sack_is_only_acknowledged() {
    // RFC 2018 §2, §3.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 1000));
    s.expect_within(DELAYED_ACK, ack(1, 1001));
    s.inject(data(1, 1000));
    s.expect(ack(1, 1001));
    s.inject(data(2001, 1000));
    s.expect(ack(1, 1001));
}
