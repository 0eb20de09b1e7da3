//! Congestion window: RFC 5681, RFC 6928, RFC 9438.

use super::{RTT, in_flight_for_rtt};
use crate::harness::*;

#[test]
fn initial_window_is_ten_segments() {
    // RFC 6928 §2.
    for peer in [peer(), peer().timestamps().sack(), peer().ipv6()] {
        let mut s = Script::accepted(peer.clone());
        s.write(30_000).expect_flight(1, INITIAL_WINDOW);
        s.expect_nothing();
        let mut s = Script::connected(peer);
        s.write(30_000).expect_flight(1, INITIAL_WINDOW);
        s.expect_nothing();
    }
}

#[test]
fn initial_window_of_large_segments_is_two() {
    // RFC 6928 §2: min(10 × MSS, max(2 × MSS, 14 600)).
    let mut s = Script::listen_on_mtu(peer().mss(8960).window_scale(4), 9000, |_| {});
    s.inject_syn(syn(0)).expect(syn_ack(0, 1).mss(8960));
    s.inject(ack(1, 1)).expect_opened();
    s.write(60_000).expect(data(1, 8960));
    s.expect(data(8961, 8960));
    s.expect_nothing();
}

#[test]
fn initial_window_after_lost_syn_ack_is_one_segment() {
    // RFC 5681 §3.1.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.expect_after(INITIAL_RTO, syn_ack(0, 1));
    s.inject(ack(1, 1)).expect_opened();
    s.write(10_000).expect_flight(1, 1);
    s.expect_nothing();
}

#[test]
fn slow_start_sends_two_segments_per_acknowledged_segment() {
    // RFC 5681 §3.1.
    let mut s = in_flight_for_rtt(peer().sack(), 60);
    for n in 0..10 {
        s.inject(ack(1, 1001 + n * SEG)).expect_flight(10_001 + 2 * n * SEG, 2);
        s.expect_nothing();
    }
}

#[test]
fn slow_start_sends_three_or_four_segments_per_ack_of_two() {
    // RFC 5681 §3.1: one segment of growth per ACK; RFC 3465 §2.2: per acknowledged segment.
    let mut s = in_flight_for_rtt(peer().sack(), 60);
    let sent = s.inject(ack(1, 2001)).drain().len();
    assert!((3..=4).contains(&sent), "{sent} segments");
}

#[test]
fn ack_division_gains_nothing() {
    // RFC 5681 §3.1: the window grows by the acknowledged bytes, at most one segment per ACK.
    let mut s = in_flight_for_rtt(peer().sack(), 60);
    for n in 1..=20 {
        s.inject(ack(1, 1 + 50 * n));
    }
    let sent: Rel = s.drain().iter().map(|got| got.len).sum();
    assert!(sent <= 2 * SEG, "{sent} bytes for 1000 acknowledged bytes");
}

#[test]
fn unused_cwnd_does_not_grow() {
    // RFC 9438 §5.8; RFC 7661 §1.
    let mut s = Script::accepted(peer().sack().rtt(ms(1)));
    let mut next = 1;
    for _ in 0..40 {
        s.write(2 * SEG).expect_flight(next, 2);
        next += 2 * SEG;
        s.pass(ms(1));
        s.inject(ack(1, next));
    }
    let flight = s.write(60 * SEG).drain().len() as Rel;
    assert!(flight <= INITIAL_WINDOW + 2, "{flight} segments in flight, after at most two");
}

#[test]
fn cwnd_restarts_after_idle_period_but_not_after_short_pause() {
    // RFC 5681 §4.1: idle for longer than the retransmission timeout, or shorter.
    for (idle, permitted) in [(secs(5), 1..=INITIAL_WINDOW), (ms(50), 20..=60)] {
        let mut s = in_flight_for_rtt(peer().sack(), 30);
        s.ack_each(1, 10_001);
        s.expect_flight(10_001, 20);
        s.pass(RTT);
        s.ack_each(10_001, 30_001);
        s.expect_nothing_for(idle);
        let flight = s.write(60 * SEG).drain().len() as Rel;
        assert!(permitted.contains(&flight), "{flight} segments after {idle:?}");
    }
}

#[test]
fn newreno_grows_one_segment_per_rtt() {
    // RFC 5681 §3.1: congestion avoidance, after a loss that halved 20 segments.
    let mut s = Script::accepted_with(peer().sack().rtt(RTT), settings::newreno);
    s.write(30 * SEG).expect_flight(1, INITIAL_WINDOW);
    s.pass(RTT);
    s.ack_each(1, 10_001);
    s.expect_flight(10_001, 20);
    s.pass(RTT);
    s.inject(ack(1, 10_001).sack(&[(11_001, 30_001)])).expect(data(10_001, 1000));
    s.pass(RTT);
    s.inject(ack(1, 30_001));
    let mut in_flight = s.write(60 * SEG).drain().len() as Rel;
    assert!((9..=11).contains(&in_flight), "{in_flight} segments after the loss");
    let (mut acknowledged, before) = (30_001, in_flight);
    for _ in 0..3 {
        s.pass(RTT);
        for _ in 0..in_flight {
            acknowledged += SEG;
            s.inject(ack(1, acknowledged));
        }
        in_flight = s.drain().len() as Rel;
    }
    assert!((before + 2..=before + 3).contains(&in_flight), "from {before} to {in_flight} in three round trips");
}

#[test]
fn receive_window_of_peer_bounds_cwnd() {
    // RFC 5681 §3.1: the minimum of the two.
    let mut s = Script::accepted(peer().window(2000));
    s.write(10_000).expect_flight(1, 2);
    s.expect_nothing();
    s.inject(ack(1, 2001)).expect_flight(2001, 2);
    s.expect_nothing();
}
