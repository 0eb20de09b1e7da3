//! Timestamps: echoed values, and protection against wrapped sequence numbers (PAWS). RFC 7323.

use crate::harness::*;

/// Returns a connection with timestamps whose last TSval from the peer was `recent`.
fn with_recent(recent: u32) -> Script {
    let mut s = Script::listen(peer().timestamps().sack(), |_| {});
    s.inject(syn(0).mss(1012).sack_permitted().timestamp(recent, 0));
    let tsval = s.expect(syn_ack(0, 1).echoing(recent)).tsval();
    s.inject(ack(1, 1).timestamp(recent, tsval)).expect_opened();
    s
}

#[test]
fn delayed_ack_echoes_earliest_timestamp() {
    // RFC 7323 §4.3 (A).
    let mut s = with_recent(100);
    s.inject(data(1, 1000).timestamp(101, 0)).expect_nothing();
    s.pass(ms(1));
    s.inject(data(1001, 1000).timestamp(102, 0)).expect(ack(1, 2001).echoing(101));
    s.inject_burst([data(2001, 1000).timestamp(103, 0), data(3001, 1000).timestamp(104, 0)]);
    s.expect(ack(1, 4001).echoing(103));
}

#[test]
fn ack_of_gap_echoes_last_in_order_timestamp() {
    // RFC 7323 §4.3 (B) and (C): its second figure.
    let mut s = with_recent(100);
    s.inject(data(1, 1000).timestamp(101, 0)).expect_within(DELAYED_ACK, ack(1, 1001).echoing(101));
    s.inject(data(2001, 1000).timestamp(103, 0)).expect(ack(1, 1001).echoing(101).any_sack());
    s.inject(data(1001, 1000).timestamp(102, 0)).expect(ack(1, 3001).echoing(102));
    s.inject(data(4001, 1000).timestamp(105, 0)).expect(ack(1, 3001).echoing(102).any_sack());
    s.inject(data(3001, 1000).timestamp(104, 0)).expect(ack(1, 5001).echoing(104));
}

#[test]
fn timestamps_of_final_handshake_ack_and_fin_are_echoed() {
    // RFC 7323 §4.3: the timestamp of every segment at Last.ACK.sent is echoed, also without data.
    let mut s = Script::listen(peer().timestamps().sack(), |_| {});
    s.inject(syn(0).mss(1012).sack_permitted().timestamp(100, 0));
    let tsval = s.expect(syn_ack(0, 1).echoing(100)).tsval();
    s.inject(ack(1, 1).timestamp(101, tsval)).expect_opened();
    let tsval = s.write(10).expect(data(1, 10).echoing(101)).tsval();
    s.inject(fin(1, 11).timestamp(102, tsval)).expect_within(DELAYED_ACK, ack(11, 2).echoing(102));
}

#[test]
fn tsval_advances_with_clock() {
    // RFC 7323 §3.2; §5.4: a tick of 1 ms to 1 s. The harness checks that timestamps are present and monotonic.
    let mut s = Script::accepted(peer().timestamps());
    let first = s.write(10).expect(data(1, 10)).tsval();
    s.inject(ack(1, 11));
    s.pass(secs(10));
    let ticks = s.write(10).expect(data(11, 10)).tsval().wrapping_sub(first);
    let expected = 10 * TIMESTAMP_HZ as u32;
    assert!((expected - 2..=expected + 2).contains(&ticks), "{ticks} ticks in 10 s");
}

#[test]
fn paws_acknowledges_and_drops_old_timestamp() {
    // RFC 7323 §5.3 R1.
    let mut s = with_recent(1000);
    s.inject(data(1, 100).timestamp(900, 0).junk()).expect(ack(1, 1).echoing(1000));
    s.expect_delivered(0);
    s.inject(data(1, 100).timestamp(1000, 0)).expect_within(DELAYED_ACK, ack(1, 101));
    s.expect_delivered(100);
}

#[test]
fn paws_applies_to_acks_and_fins() {
    // RFC 7323 §5.3 R1: to every segment except a reset.
    let mut s = with_recent(1000);
    s.write(100).expect(data(1, 100));
    s.inject(fin(1, 101).timestamp(900, 0)).expect(ack(101, 1).echoing(1000));
    s.expect_no_event();
    // The ACK was ignored too: the data is retransmitted.
    let again = s.drain_for(secs(1));
    assert!(again.iter().any(|got| got.seq == 1 && got.len == 100));
}

#[test]
fn timestamps_wrap() {
    // RFC 7323 §5.2: compared modulo 2^32.
    let mut s = with_recent(u32::MAX - 1);
    s.inject(data(1, 100).timestamp(u32::MAX, 0)).expect_within(DELAYED_ACK, ack(1, 101).echoing(u32::MAX));
    s.inject(data(101, 100).timestamp(3, 0)).expect_within(DELAYED_ACK, ack(1, 201).echoing(3));
    s.inject(data(201, 100).timestamp(u32::MAX - 50, 0).junk()).expect(ack(1, 201).echoing(3));
}

#[test]
fn paws_ignores_timestamp_older_than_24_days() {
    // RFC 7323 §5.5: after 24 days without a segment TS.Recent is invalid.
    let mut s = with_recent(1000);
    s.pass(secs(25 * 24 * 3600));
    s.inject(data(1, 100).timestamp(999, 0)).expect_within(DELAYED_ACK, ack(1, 101).echoing(999));
    s.expect_delivered(100);
}

#[test]
fn rst_is_accepted_with_any_timestamp() {
    // RFC 7323 §5.2: PAWS does not apply to resets; §3.2: they may lack timestamps.
    let mut s = with_recent(1000);
    s.inject(rst(1).timestamp(1, 0)).expect_closed(CloseReason::Reset);
    let mut s = with_recent(1000);
    s.inject(rst(1).no_timestamp()).expect_closed(CloseReason::Reset);
}

#[test]
fn segment_without_negotiated_timestamps_is_dropped() {
    // RFC 7323 §3.2: SHOULD be dropped silently.
    let mut s = with_recent(1000);
    s.inject(data(1, 100).no_timestamp().junk());
    s.inject(fin(1, 1).no_timestamp()).expect_nothing_for(ms(500));
    s.expect_no_event();
    s.expect_delivered(0);
    s.inject(data(1, 100).timestamp(1001, 0)).expect_within(DELAYED_ACK, ack(1, 101));
}

#[test]
fn segment_outside_window_does_not_update_ts_recent() {
    // RFC 7323 §4.3 (2) and §5.3 R3: only a segment at the left edge of the window.
    let mut s = with_recent(1000);
    let edge = s.flow().right_edge;
    s.inject(data(edge + 10, 100).timestamp(2000, 0)).expect(ack(1, 1).echoing(1000));
    s.inject(data(1, 100).timestamp(1001, 0)).expect_within(DELAYED_ACK, ack(1, 101).echoing(1001));
}

#[test]
fn timestamps_without_negotiation_are_ignored() {
    // RFC 7323 §3.2.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100).timestamp(5, 5)).expect_within(DELAYED_ACK, ack(1, 101).no_timestamp());
    s.inject(data(101, 100).timestamp(1, 5)).expect_within(DELAYED_ACK, ack(1, 201).no_timestamp());
    s.expect_delivered(200);
}

#[test]
fn initiated_connection_echoes_timestamp_of_syn_ack() {
    // RFC 7323 §3.2, §4.3.
    let mut s = Script::connecting(peer().timestamps(), |_| {});
    let tsval = s.expect(syn(0)).tsval();
    s.inject(syn_ack(0, 1).mss(1012).timestamp(777, tsval)).expect(ack(1, 1).echoing(777));
    s.write(10).expect(data(1, 10).echoing(777));
}

#[test]
fn syn_ack_with_unknown_tsecr_is_discarded() {
    // RFC 7323 §3.2: TSecr is a TSval of this end. A SYN-ACK with another value belongs to an earlier connection.
    let mut s = Script::connecting(peer().timestamps(), |_| {});
    let first = s.expect(syn(0)).tsval();
    for wrong in [first.wrapping_add(1), first.wrapping_sub(1), first.wrapping_sub(100_000), first ^ 1 << 31] {
        s.inject(syn_ack(0, 1).mss(1012).timestamp(777, wrong)).expect_nothing();
    }
    let last = s.expect_after(INITIAL_RTO, syn(0)).tsval();
    s.inject(syn_ack(0, 1).mss(1012).timestamp(778, last.wrapping_add(1))).expect_nothing();
    s.expect_no_event();
    assert_eq!(s.drops("SYN-ACK that echoes a timestamp never sent"), 5);
    // A SYN-ACK of the first SYN is as valid as one of the last.
    s.inject(syn_ack(0, 1).mss(1012).timestamp(779, first)).expect(ack(1, 1).echoing(779));
    s.expect_opened();
}

#[test]
fn syn_ack_may_echo_last_tsval_or_none() {
    // RFC 7323 §3.2. A TSecr of zero counts as none, as in common systems.
    for echoes_last in [true, false] {
        let mut s = Script::connecting(peer().timestamps(), |_| {});
        s.expect(syn(0));
        let last = s.expect_after(INITIAL_RTO, syn(0)).tsval();
        s.inject(syn_ack(0, 1).mss(1012).timestamp(777, if echoes_last { last } else { 0 }));
        s.expect(ack(1, 1).echoing(777));
        s.expect_opened();
    }
}
