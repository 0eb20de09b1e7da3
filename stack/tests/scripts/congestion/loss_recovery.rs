//! Loss recovery before a time-out: SACK and RACK (RFC 8985), duplicate acknowledgements (RFC 5681, RFC 6582), limited
//! transmit (RFC 3042), proportional rate reduction (RFC 9937).

use super::harness::*;

const RTT: Duration = ms(100);

/// A connection to a peer at a distance of [`RTT`] that has just been sent `segments` segments, of which at most the initial
/// window has gone out; the first acknowledgement is due.
fn in_flight(peer: Peer, segments: Rel) -> Script {
    let mut s = Script::accepted(peer.rtt(RTT));
    s.write(segments * SEG);
    s.expect_flight(1, segments.min(INITIAL_WINDOW));
    s.expect_nothing_for(RTT);
    s
}

/// As [`in_flight`], with twice the initial window in flight, from the returned sequence number on.
fn twenty_in_flight(configure: impl FnOnce(&mut linerate_stack::Config), more: Rel) -> (Script, Rel) {
    let mut s = Script::accepted_with(peer().sack().rtt(RTT), configure);
    s.write((30 + more) * SEG);
    s.expect_flight(1, INITIAL_WINDOW);
    s.expect_nothing_for(RTT);
    s.ack_each(1, 10_001);
    s.expect_flight(10_001, 20);
    s.expect_nothing_for(RTT);
    (s, 10_001)
}

#[test]
fn the_third_sacked_segment_brings_the_lost_one_back() {
    // RFC 8985 §6.2 step 4: without reordering the window for it is zero once DupThresh segments are SACKed.
    native_only!();
    let mut s = in_flight(peer().sack(), 10);
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.expect_nothing();
    s.inject(ack(1, 1).sack(&[(1001, 3001)]));
    s.expect_nothing();
    s.inject(ack(1, 1).sack(&[(1001, 4001)]));
    s.expect(data(1, 1000));
    s.inject(ack(1, 10_001));
    s.expect_nothing_for(secs(10));
}

#[test]
fn a_lost_segment_comes_back_a_quarter_of_a_round_trip_after_one_behind_it_is_sacked() {
    // RFC 8985 §6.2 steps 4 and 5: with fewer than DupThresh the reordering window is min_RTT/4.
    native_only!();
    let mut s = in_flight(peer().sack(), 2);
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.expect_after(RTT / 4, data(1, 1000));
    s.inject(ack(1, 2001));
    s.expect_nothing_for(secs(10));
}

#[test]
fn the_third_duplicate_acknowledgement_brings_the_lost_segment_back() {
    // RFC 5681 §3.2.
    native_only!();
    let mut s = in_flight(peer(), 10);
    for _ in 0..2 {
        s.inject(ack(1, 1));
        s.expect_nothing();
    }
    s.inject(ack(1, 1));
    s.expect(data(1, 1000));
    s.inject(ack(1, 10_001));
    s.expect_nothing_for(secs(10));
}

#[test]
fn what_is_no_duplicate_acknowledgement_brings_nothing_back() {
    // RFC 5681 §2: no data, no SYN or FIN, the same window.
    native_only!();
    let mut s = in_flight(peer(), 10);
    for n in 0..5 {
        s.inject(data(1 + 10 * n, 10).ack(1));
        s.inject(ack(1 + 10 * (n + 1), 1).window(60_000 + n as u16));
    }
    s.pass(DELAYED_ACK);
    assert!(s.drain().iter().all(|got| got.len == 0), "nothing is sent again");
}

#[test]
fn without_sack_a_partial_acknowledgement_brings_the_next_lost_segment_back() {
    // RFC 6582 §3.2 step 3.
    native_only!();
    let mut s = in_flight(peer(), 10);
    for _ in 0..3 {
        s.inject(ack(1, 1));
    }
    s.expect(data(1, 1000));
    for _ in 0..5 {
        s.inject(ack(1, 1));
    }
    s.expect_nothing();
    s.pass(RTT);
    s.inject(ack(1, 4001));
    s.expect(data(4001, 1000));
    s.pass(RTT);
    s.inject(ack(1, 10_001));
    s.expect_nothing_for(secs(10));
}

#[test]
fn the_first_two_duplicate_acknowledgements_let_new_segments_out() {
    // RFC 3042 §2.
    native_only!();
    let mut s = in_flight(peer(), 20);
    s.inject(ack(1, 1));
    s.expect(data(10_001, 1000));
    s.inject(ack(1, 1));
    s.expect(data(11_001, 1000));
    s.inject(ack(1, 1));
    s.expect(data(1, 1000));
}

#[test]
fn the_first_two_sacked_segments_let_new_segments_out() {
    // RFC 3042 §2 with RFC 6675: what is SACKed is no longer in flight.
    native_only!();
    let mut s = in_flight(peer().sack(), 20);
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.expect(data(10_001, 1000));
    s.inject(ack(1, 1).sack(&[(1001, 3001)]));
    s.expect(data(11_001, 1000));
    s.inject(ack(1, 1).sack(&[(1001, 4001)]));
    s.expect(data(1, 1000));
}

/// Loses these segments of twenty, and returns what is sent until all have arrived.
fn lose(lost: &[Rel], limit: Duration) -> Vec<Got> {
    let (mut s, first) = twenty_in_flight(|_| {}, 20);
    let end = s.flow().peer_end;
    let mut receiver = Receiver::new(first, RTT, true);
    receiver.seq = end;
    // The twenty have been expected already: what arrived of them is acknowledged now.
    for n in (0..20).filter(|n| !lost.contains(n)) {
        let seg = receiver.take_data(first + n * SEG, SEG);
        s.inject(seg);
        s.pass(Duration::from_micros(100));
    }
    receiver.play(&mut s, 1 + 50 * SEG, limit, |_| false)
}

#[test]
fn two_losses_in_one_window_recover_without_a_time_out() {
    // RFC 8985 §6.2 step 5; RFC 6675.
    native_only!();
    let sent = lose(&[0, 5], 6 * RTT);
    let again: Vec<Rel> = retransmissions_below(&sent, 30_001);
    assert_eq!(again, [10_001, 15_001]);
}

#[test]
fn three_losses_in_one_window_recover_without_a_time_out() {
    // RFC 8985 §6.2 step 5; RFC 6675.
    native_only!();
    let sent = lose(&[1, 2, 9], 6 * RTT);
    assert_eq!(retransmissions_below(&sent, 30_001), [11_001, 12_001, 19_001]);
}

#[test]
fn ten_losses_in_one_window_recover_without_a_time_out() {
    // RFC 8985 §6.2 step 5; RFC 9937 keeps retransmissions going.
    native_only!();
    let lost: Vec<Rel> = (0..10).map(|n| 2 * n).collect();
    let sent = lose(&lost, 8 * RTT);
    let want: Vec<Rel> = lost.iter().map(|n| 10_001 + n * SEG).collect();
    assert_eq!(retransmissions_below(&sent, 30_001), want);
}

#[test]
fn ten_losses_in_a_row_recover_without_a_time_out() {
    // RFC 8985 §6.2 step 5; RFC 9937.
    native_only!();
    let lost: Vec<Rel> = (0..10).collect();
    let sent = lose(&lost, 8 * RTT);
    let want: Vec<Rel> = lost.iter().map(|n| 10_001 + n * SEG).collect();
    assert_eq!(retransmissions_below(&sent, 30_001), want);
}

/// The first bytes of the segments of `sent` that lie below `end`, sorted: all of them were sent before.
fn retransmissions_below(sent: &[Got], end: Rel) -> Vec<Rel> {
    let mut again: Vec<Rel> = sent.iter().filter(|got| got.len > 0 && got.seq < end).map(|got| got.seq).collect();
    again.sort_unstable();
    again
}

#[test]
fn a_retransmission_that_is_lost_comes_back_without_a_time_out() {
    // RFC 8985 §3.3, §6.2 step 5: something sent after it has been delivered.
    native_only!();
    let mut s = in_flight(peer().sack(), 40);
    let mut sent = Vec::new();
    for n in 1..10 {
        s.inject(ack(1, 1).sack(&[(1001, 1001 + n * SEG)]));
        s.pass(ms(1));
        sent.extend(s.drain());
    }
    assert_eq!(transmissions(&sent, 1), 1);
    let again = sent.iter().position(|got| got.seq == 1).unwrap_or(0);
    let behind = sent[again + 1..].iter().map(Got::end).max().expect("new segments behind the retransmission");
    s.expect_nothing_for(RTT - ms(10));
    s.pass(ms(10));
    s.inject(ack(1, 1).sack(&[(1001, behind)]));
    let sent = s.drain_for(ms(30));
    assert_eq!(transmissions(&sent, 1), 1, "the lost retransmission is sent again, once");
}

#[test]
fn a_little_reordering_brings_nothing_back() {
    // RFC 8985 §6.2 steps 4 and 5: fewer than DupThresh, for less than the reordering window.
    native_only!();
    let mut s = in_flight(peer().sack(), 10);
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(ack(1, 1).sack(&[(1001, 3001)]));
    s.expect_nothing_for(RTT / 4 - ms(5));
    s.inject(ack(1, 3001));
    s.expect_nothing_for(ms(20));
    s.inject(ack(1, 10_001));
    s.expect_nothing_for(secs(10));
}

#[test]
fn once_reordering_has_been_seen_many_segments_may_overtake_one() {
    // RFC 8985 §6.2 steps 3 and 4: DupThresh counts no longer, only time does.
    native_only!();
    let mut s = in_flight(peer().sack(), 32);
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(ack(1, 2001));
    s.ack_each(2001, 10_001);
    let sent = s.drain();
    assert!(retransmissions(&sent).is_empty() && sent.len() >= 19);
    s.pass(RTT);
    s.drain();
    for n in 1..19 {
        s.inject(ack(1, 10_001).sack(&[(11_001, 11_001 + n * SEG)]));
        s.pass(ms(1));
        assert_eq!(transmissions(&s.drain(), 10_001), 0, "after {n} segments");
    }
    s.inject(ack(1, 29_001));
    let sent = s.drain_for(ms(50));
    assert!(sent.iter().all(|got| got.seq >= 29_001));
}

#[test]
fn a_needless_retransmission_that_is_reported_widens_the_reordering_window() {
    // RFC 8985 §6.2 step 4: RACK.reo_wnd_mult grows with every round in which a D-SACK arrives.
    native_only!();
    let mut s = in_flight(peer().sack(), 10);
    // Reordering is seen: segment 1 behind segment 2.
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(ack(1, 2001));
    s.inject(ack(1, 10_001));
    s.expect_nothing();
    // A segment is late by more than a quarter of a round trip: sent again for nothing.
    s.write(5000);
    s.expect_flight(10_001, 5);
    s.expect_nothing_for(RTT);
    s.inject(ack(1, 10_001).sack(&[(11_001, 15_001)]));
    s.expect_after(RTT / 4, data(10_001, 1000));
    s.inject(ack(1, 15_001));
    s.pass(RTT);
    s.inject(ack(1, 15_001).sack(&[(10_001, 11_001)]));
    s.expect_nothing();
    // The next may be that late.
    s.write(5000);
    let sent = s.drain();
    assert!(sent.len() >= 4 && sent[0].seq == 15_001);
    s.pass(RTT);
    s.inject(ack(1, 15_001).sack(&[(16_001, 16_001 + 3 * SEG)]));
    let sent = s.drain_for(RTT / 4 + ms(10));
    assert_eq!(transmissions(&sent, 15_001), 0);
}

#[test]
fn recovery_sends_in_proportion_to_what_is_delivered() {
    // RFC 9937 §6.2: with NewReno a segment for every two that arrive, one at a time, the first at once.
    native_only!();
    let (mut s, first) = twenty_in_flight(settings::newreno, 40);
    let mut sent = Vec::new();
    for n in 1..20 {
        s.inject(ack(1, first).sack(&[(first + SEG, first + SEG + n * SEG)]));
        let now = s.drain();
        if n == 3 {
            assert!(now.iter().any(|got| got.seq == first), "the retransmission comes first");
        }
        assert!(now.len() <= 2, "{} segments for one that was delivered", now.len());
        if n >= 3 {
            sent.extend(now);
        }
        s.pass(ms(1));
    }
    // 17 acknowledgements from the one that began it, at one half.
    assert!((7..=11).contains(&sent.len()), "{} segments during recovery", sent.len());
}

#[test]
fn after_recovery_the_window_is_what_the_congestion_control_says() {
    // RFC 9937 §6.2: at the end it is ssthresh. RFC 5681 §3.1: half; RFC 9438 §4.6: 0.7 of it.
    native_only!();
    type Configure = fn(&mut linerate_stack::Config);
    for (configure, want) in [(settings::newreno as Configure, 10), ((|_| {}) as Configure, 14)] {
        let (mut s, first) = twenty_in_flight(configure, 0);
        for n in 1..20 {
            s.inject(ack(1, first).sack(&[(first + SEG, first + SEG + n * SEG)]));
            s.pass(ms(1));
        }
        assert_eq!(transmissions(&s.drain(), first), 1);
        s.pass(RTT - ms(20));
        s.inject(ack(1, 30_001));
        s.write(60 * SEG);
        let flight = s.drain().len() as Rel;
        assert!((want - 1..=want + 1).contains(&flight), "{flight} segments in flight, not {want}");
    }
}

#[test]
fn blocks_that_make_no_sense_mark_nothing() {
    // RFC 2018 §8, RFC 6675 §2: beyond what was sent, below what is acknowledged, the wrong way round, or empty.
    native_only!();
    let mut s = in_flight(peer().sack(), 10);
    for block in [(20_001, 21_001), (5001, 3001), (-5000, -4000), (3001, 3001), (9001, 12_001), (1, 1 << 31)] {
        s.inject(ack(1, 1).sack(&[block]));
        s.expect_nothing();
    }
    s.expect_nothing_for(ms(50));
    s.inject(ack(1, 10_001));
    s.expect_nothing_for(secs(10));
}

#[test]
fn what_a_peer_has_sacked_and_thrown_away_is_sent_again() {
    // RFC 2018 §8: nothing may be forgotten before it is acknowledged cumulatively.
    native_only!();
    let mut s = in_flight(peer().sack(), 10);
    s.inject(ack(1, 1).sack(&[(1001, 10_001)]));
    s.expect(data(1, 1000));
    s.pass(RTT);
    s.inject(ack(1, 1001));
    let mut receiver = Receiver::new(1001, RTT, true);
    receiver.play(&mut s, 10_001, secs(20), |_| false);
}

#[test]
fn nothing_that_was_sacked_is_sent_again_after_a_time_out() {
    // RFC 6675 §5.1; RFC 8985 §6.3: the retransmission is lost too, and there is nothing behind it.
    native_only!();
    let mut s = in_flight(peer().sack(), 10);
    s.inject(ack(1, 1).sack(&[(1001, 10_001)]));
    s.expect(data(1, 1000));
    s.expect_within(secs(1), data(1, 1000));
    s.expect_nothing_for(ms(100));
    s.inject(ack(1, 10_001));
    s.expect_nothing_for(secs(10));
}

#[test]
fn acknowledgements_with_nothing_in_flight_are_no_duplicates() {
    // RFC 5681 §2: a duplicate acknowledgement comes while data are outstanding.
    native_only!();
    for recovered in [false, true] {
        let mut s = Script::accepted(peer().rtt(ms(20)));
        s.write(5 * SEG);
        s.expect_flight(1, 5);
        s.pass(ms(20));
        if recovered {
            (0..3).for_each(|_| s.inject(ack(1, 1)));
            s.expect(data(1, SEG));
            s.pass(ms(20));
        }
        let end = 1 + 5 * SEG;
        s.inject(ack(1, end));
        (0..5).for_each(|_| s.inject(ack(1, end)));
        // Acknowledged, so that an episode that may have been is over.
        s.write(SEG);
        s.expect(data(end, SEG));
        s.pass(ms(20));
        let end = end + SEG;
        s.inject(ack(1, end));
        (0..5).for_each(|_| s.inject(ack(1, end)));
        s.write(3 * SEG);
        s.expect_flight(end, 3);
        (0..2).for_each(|_| s.inject(ack(1, end)));
        s.expect_nothing();
        s.inject(ack(1, end));
        s.expect(data(end, SEG));
    }
}
